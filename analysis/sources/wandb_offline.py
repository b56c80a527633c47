"""What an attempt's offline wandb files hold."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.errors import UserError
from analysis.sources.record import TIMERS, SourceRead, StepRecord, as_number
from analysis.verdicts import Verdict

# How a row tells its training step: TRL's by transformers' counter (wandb's own `_step` runs ahead of it),
# verl's by its own, or by wandb's, which verl sets.
STEP_KEY = "train/global_step"
FLAT_STEP_KEY = "training/global_step"
WANDB_STEP = "_step"


def wandb_files(attempt_dir: Path) -> list[Path]:
    """The attempt's offline files, oldest first (their folders are named by time)."""
    return sorted(attempt_dir.glob("wandb/offline-run-*/run-*.wandb"))


def history_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(record number, row) of every history record, read by wandb's own `leet inspect`.

    That reader skips what was cut off or corrupt. `UserError` when it fails altogether.
    """
    argv = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)]
    read = subprocess.run(argv, capture_output=True, text=True, encoding="utf-8", check=False)
    if read.returncode != 0:
        last = (read.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(
            f"wandb cannot read {path} ({last}). `wandb leet inspect` is needed (wandb 0.31 or later): "
            "check the wandb of the controller's environment, or move the file out of the attempt's folder"
        )
    for line in read.stdout.splitlines():
        if '"history"' not in line:
            continue
        record = json.loads(line)
        if record.get("type") == "history":
            yield record["num"], record["history"]["item"]


def read_wandb_offline(path: Path, shown_as: str, flat: bool = False) -> SourceRead:
    """The steps of one offline wandb file, by the trainer's own step.

    Phases are the keys `timing_s/<path>`; with `flat` they stay among the scalars, for the tree to sort. A
    step's other rows add their keys; where two rows disagree, the row with the timings counts.
    """
    found = SourceRead()
    for number, row in history_rows(path):
        values = {name: as_number(value) for name, value in row.items() if not name.startswith("_")}
        raw_step = values.get(FLAT_STEP_KEY, as_number(row.get(WANDB_STEP))) if flat else values.pop(STEP_KEY, None)
        if raw_step is None or raw_step < 1 or raw_step != int(raw_step):
            continue
        step = int(raw_step)
        numbers = {name: value for name, value in values.items() if value is not None}
        phases = {k.removeprefix(TIMERS): v for k, v in numbers.items() if k.startswith(TIMERS)}
        scalars = {k: v for k, v in numbers.items() if not k.startswith(TIMERS)}
        earlier = found.records.get(step)
        if earlier is None:
            found.records[step] = StepRecord(step, phases, scalars, {}, None, path, number)
        elif not phases:
            for name, value in scalars.items():
                earlier.scalars.setdefault(name, value)
        else:
            if earlier.phases:
                found.verdicts.append(
                    Verdict(
                        "warning",
                        "duplicate-step",
                        f"{shown_as} times step {step} in records {earlier.line} and {number}; {number} counts",
                    )
                )
            merged = {**earlier.scalars, **scalars}
            found.records[step] = StepRecord(step, phases, merged, {}, None, path, number)
    # A row without timings (an evaluation, the closing summary) is no training step.
    found.records = {step: r for step, r in found.records.items() if r.phases}
    if flat:
        for step, record in found.records.items():
            timers = {TIMERS + name: seconds for name, seconds in record.phases.items()}
            found.records[step] = replace(record, phases={}, scalars=record.scalars | timers)
    return found
