"""Finds finished experiments in folders and reads what a history needs from their reports, of any age."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from analysis.factors import factors_of
from analysis.verdict.arm_verdict import is_too_wide
from common.contracts import DoneFile, ImportedFile, PlanFile, SpecFile, read_file
from common.errors import UserError
from common.messages import join_first
from common.verdicts import REPORT_FORMAT, ReportFile, RunInReport

NOT_SEARCHED = ("runs", "tables", "figures", "inputs")
"""Folders of an experiment, in which no other experiment is."""
# The report's estimate, by its present and its earlier name -> the name of its quantity in a history.
RATIOS = {
    "per_step": "ratio",
    "equal_work": "ratio_equal_work",
    "raw": "ratio",
    "standardised": "ratio_equal_work",
}


class Skipped(NamedTuple):
    """A folder that is not in the history."""

    folder: Path
    why: str


class PastRatio(NamedTuple):
    """A ratio of a report with its 95% interval over runs, NaN where there is none."""

    quantity: str
    arm: str
    factors: dict[str, Any]
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class FinishedExperiment:
    """One experiment's report."""

    name: str
    folder: Path
    baseline: str
    time: float
    """Of its first run, in seconds since 1970."""
    has_time: bool
    """Whether a run has recorded its start; else it is the time of report.json."""
    runs: list[RunInReport]
    ratios: list[PastRatio]


def read_experiments(given: Sequence[Path]) -> tuple[list[FinishedExperiment], list[Skipped]]:
    """The finished experiments in these folders and below them, the oldest first, and what was skipped.

    `UserError` for a folder that does not exist, and if no experiment can be read.
    """
    found: list[FinishedExperiment] = []
    skipped: list[Skipped] = []
    first_with: dict[str, Path] = {}
    folders = list(dict.fromkeys(folder for one in given for folder in _experiment_folders(one)))
    for folder in folders:
        try:
            experiment = _read(folder)
        except UserError as error:
            skipped.append(Skipped(folder, str(error)))
            continue
        numbers = sorted((run["run_id"], run["started"], run["step_s"]) for run in experiment.runs)
        same = first_with.setdefault(json.dumps(numbers), folder)
        if same == folder:
            found.append(experiment)
        else:
            skipped.append(Skipped(folder, f"it has the same runs as {same}, which counts"))
    if not found:
        what = join_first([f"{one.folder}: {one.why}" for one in skipped], 1)
        shown = join_first(given, 3)
        raise UserError(f"no finished experiment in {shown}" + (f"; {what}" if skipped else " (a folder of results/)"))
    return sorted(found, key=lambda one: (one.time, str(one.folder))), skipped


def _experiment_folders(top: Path) -> Iterator[Path]:
    if not top.is_dir():
        raise UserError(
            f"{top} is {'no folder' if top.exists() else 'not there'}; give folders of experiments' results"
        )
    for at, folders, files in os.walk(top):
        folders[:] = sorted(name for name in folders if name not in NOT_SEARCHED and not name.startswith("."))
        if "report.json" in files or "plan.json" in files:
            folders.clear()
            yield Path(at)


def _read(folder: Path) -> FinishedExperiment:
    """One folder's experiment; `UserError` says why it cannot be read."""
    if parts := sorted(folder.glob(".*.part")):
        raise UserError(f"it is being written ({parts[0].name})")
    if not (folder / "report.json").is_file():
        raise UserError("no report.json: it is not finished, or its report is older than that file")
    report = read_file(ReportFile, folder / "report.json", "the report", ("experiment", "baseline"))
    version = report.get("format", REPORT_FORMAT)
    if version != REPORT_FORMAT:
        raise UserError(
            f"its report.json has format {version!r}, this version reads {REPORT_FORMAT}: update rolloutbench"
        )
    try:
        _require_current(folder, report)
        runs = report["runs"] if "runs" in report else _older_runs(folder, report)
        if not runs:
            raise UserError("none of its runs has a counted step")
        for run in runs:
            if not 0 < run["step_s"] < math.inf or not isinstance(run["factors"], dict):
                raise ValueError(f"step_s of run {run['run_id']} is {run['step_s']!r}")
        started = [run["started"] for run in runs if run["started"] is not None]
        return FinishedExperiment(
            name=str(report["experiment"]),
            folder=folder,
            baseline=str(report["baseline"]),
            time=float(min(started)) if started else (folder / "report.json").stat().st_mtime,
            has_time=bool(started),
            runs=runs,
            ratios=list(_ratios(report)),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"its report.json is damaged ({type(error).__name__}: {error}); make the report again"
        ) from None


def _require_current(folder: Path, report: ReportFile) -> None:
    """`UserError` if plan.json plans other runs than those of the report: they are being trained."""
    if not (folder / "plan.json").is_file():
        return
    planned = read_file(PlanFile, folder / "plan.json", "the plan", ("fingerprints",))["fingerprints"]
    other = [row["run_id"] for row in report["tables"]["runs"] if planned.get(row["run_id"]) != row["fingerprint"]]
    if other:
        raise UserError(f"its plan has changed since its report (run {join_first(other, 3)}): it is being run again")


def _older_runs(folder: Path, report: ReportFile) -> list[RunInReport]:
    """The runs of a report without `runs`, from the runs' own files and tables/steps.parquet."""
    # Newer reports need neither pandas nor pyarrow.
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    from analysis.report.provenance import run_columns, run_in_report
    from trainers.command import as_logged
    from trainers.registry import brings_work

    steps = folder / "tables" / "steps.parquet"
    try:
        with pq.ParquetFile(steps) as file:
            columns = [name for name in ("run_id", "counted", *run_columns()) if name in file.schema_arrow.names]
            wide: pd.DataFrame = file.read(columns).to_pandas()
    except (OSError, pa.ArrowInvalid) as error:
        text = (str(error).splitlines() or [""])[0]
        raise UserError(f"its report.json has no runs, and {steps.name} cannot be read ({text})") from None
    by_run = dict(iter(wide[wide["counted"].astype(bool)].groupby("run_id", sort=False)))
    found = []
    for row in report["tables"]["runs"]:
        run_id = str(row["run_id"])
        if run_id not in by_run:
            continue
        at = folder / "runs" / run_id
        spec: Mapping[str, Any] = dict(read_file(SpecFile, at / "spec.json", "the plan"))
        from_log = brings_work(str(spec.get("trainer")))
        imported = "import" in spec or from_log
        kind, name = (ImportedFile, "imported.json") if imported else (DoneFile, "done.json")
        done: Any = read_file(kind, at / name, "the run")
        spec = as_logged(spec, done) if from_log else spec
        found.append(run_in_report(run_id, spec, done, by_run[run_id]))
    return found


def _ratios(report: ReportFile) -> Iterator[PastRatio]:
    """The ratios that are narrow enough to be printed."""
    for row in report["tables"]["estimates"]:
        if row["estimate"] in RATIOS and row["value"] is not None:
            low, high = (math.nan if row[end] is None else float(row[end]) for end in ("low", "high"))
            if not is_too_wide(row["value"], low, high):
                of = RATIOS[row["estimate"]], str(row["arm"]), factors_of(row["factors"])
                yield PastRatio(*of, float(row["value"]), low, high)
