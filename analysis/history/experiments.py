"""Finds finished experiments in folders and reads their reports."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from common.contracts import read_file
from common.errors import UserError
from common.messages import join_first
from common.verdicts import REPORT_FORMAT, ReportFile, RunInReport

NOT_SEARCHED = ("runs", "tables", "figures", "inputs")
"""Folders of an experiment, in which no other experiment is."""


class FinishedExperiment(NamedTuple):
    """One experiment's report, and the start of its first run in seconds since 1970."""

    time: float
    folder: Path
    report: ReportFile


def read_experiments(given: Sequence[Path]) -> tuple[list[FinishedExperiment], list[str]]:
    """The finished experiments in these folders and below them, the oldest first, and what was skipped or is doubted.

    `UserError` for a folder that does not exist, and if no experiment can be read.
    """
    found: dict[str, FinishedExperiment] = {}
    notes = []
    for folder in dict.fromkeys(folder for top in given for folder in _experiment_folders(top)):
        try:
            report = _read(folder)
            numbers = json.dumps(sorted((run["run_id"], run["started"], run["step_s"]) for run in report["runs"]))
            if numbers in found:
                raise UserError(f"it has the same runs as {found[numbers].folder}, which counts")
        except UserError as error:
            notes.append(f"{folder} is skipped: {error}")
            continue
        started = [run["started"] for run in report["runs"] if run["started"] is not None]
        if not started:
            notes.append(f"no run recorded its start in {folder}: the file time of report.json is used")
        time = min(started, default=(folder / "report.json").stat().st_mtime)
        found[numbers] = FinishedExperiment(time, folder, report)
    if not found:
        text = f"; {notes[0]}" if notes else " (a folder of results/)"
        raise UserError(f"no finished experiment in {join_first(given, 3)}{text}")
    return sorted(found.values(), key=lambda one: one[:2]), notes


def _experiment_folders(top: Path) -> Iterator[Path]:
    if not top.is_dir():
        what = "no folder" if top.exists() else "not there"
        raise UserError(f"{top} is {what}; give folders of experiments' results")
    for at, folders, files in os.walk(top):
        folders[:] = sorted(name for name in folders if name not in NOT_SEARCHED and not name.startswith("."))
        if "report.json" in files or "plan.json" in files:
            folders.clear()
            yield Path(at)


def _read(folder: Path) -> ReportFile:
    """One folder's report; `UserError` says why it cannot be used."""
    if not (folder / "report.json").is_file():
        raise UserError("no report.json: it is not finished")
    report = read_file(ReportFile, folder / "report.json", "the report", ("experiment", "baseline"))
    if (version := report.get("format")) != REPORT_FORMAT:
        raise UserError(f"its report.json has format {version!r}, not {REPORT_FORMAT}: make the report again")
    try:
        for rows, keys in (
            (report["runs"], RunInReport.__annotations__.keys()),
            (report["tables"]["estimates"], {"arm", "factors", "estimate", "value"}),
        ):
            if missing := [key for row in rows for key in keys if key not in row]:
                raise KeyError(missing[0])
        if not all(0 < run["step_s"] < math.inf for run in report["runs"]):
            raise ValueError("step_s")
    except (LookupError, TypeError, ValueError) as error:
        text = f"its report.json is damaged ({type(error).__name__}: {error}); make the report again"
        raise UserError(text) from None
    return report
