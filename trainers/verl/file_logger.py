"""Reads the file of verl's own file logger: lines `{"step": 3, "data": {"timing_s/gen": 382.9, ...}}`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.verdicts import Verdict
from trainers.logs.log_files import json_lines
from trainers.logs.record import TIMERS, Imported, StepRecord, as_number
from trainers.logs.restarts import steps_in_sequence
from trainers.verl.sync_cycles import training_steps

FORMAT = "verl-jsonl"


def read_verl_jsonl(path: Path) -> Imported:
    """The steps of verl's file logger (0.6 and later), every number in full under verl's name.

    A line without any timer (a validation) is skipped. A line that is not JSON gives a verdict, except a truncated last
    one. `UserError` if the file contains several runs.
    """
    verdicts: list[Verdict] = []
    records = list(json_lines(path, str(path), lambda row, number: _record(row, path, number), verdicts))
    records, more = training_steps(records, str(path))
    read = steps_in_sequence(records, path)
    read.verdicts = [*verdicts, *more, *read.verdicts]
    return Imported(read, FORMAT)


def _record(row: Any, path: Path, number: int) -> StepRecord | None:
    if not isinstance(row, dict) or not isinstance(row.get("data"), dict):
        raise TypeError('expected {"step": ..., "data": {...}}')
    step = row.get("step")
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"step must be a whole number from 0 (got {step!r})")
    scalars = {}
    for name, value in row["data"].items():
        # orjson writes NaN and infinity as null.
        number_read = float("nan") if value is None else as_number(value)
        if number_read is not None:
            scalars[name] = number_read
    if step == 0 or not any(name.startswith(TIMERS) for name in scalars):
        return None
    return StepRecord(step, {}, scalars, {}, None, path, number)
