"""What steps do the rows make that transformers' Trainer logged (TRL, ms-swift), from whichever file they were read?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from common.verdicts import Verdict
from trainers.logs.counters import falls
from trainers.logs.cumulative import (
    ELAPSED,
    SECONDS_PER_STEP,
    STEPS_PER_SECOND,
    average_of,
    elapsed_s,
    step_times_s,
)
from trainers.logs.hf_logs import STEP_TIME, TRAIN, numbers_of, window_verdict, windows_of
from trainers.logs.numbers import packed
from trainers.logs.record import STEPS_LOGGED, TIMERS, Imported, StepRecord
from trainers.logs.restarts import require_one_run, steps_in_sequence

# The time of a step from one logged row to the next, where the trainer timed no step itself.
WALL = TIMERS + "wall"


@dataclass(frozen=True, slots=True)
class LoggedRow:
    """A training step's row: its numbers and their rounding under wandb's names, its line, and the seconds since the
    start where it has them (`elapsed_time`).

    A row is kept packed; what else of it counts is asked of the row as it was logged (`logged_row`).
    """

    step: int
    numbers: Mapping[str, float]
    rounding: Mapping[str, float]
    line: int
    elapsed_s: float | None


def logged_row(step: int, row: Mapping[str, Any], line: int) -> LoggedRow:
    """What is kept of a row as it was logged."""
    numbers, rounding = numbers_of(row)
    return LoggedRow(step, packed(numbers), packed(rounding), line, elapsed_s(row.get(ELAPSED)))


def imported_rows(
    rows: Sequence[LoggedRow], path: Path, name: str, verdicts: Sequence[Verdict] = (), unnumbered: bool = False
) -> Imported:
    """The steps of a file's rows under wandb's names; `name` is that of the format.

    A row that stands for several steps says so (`STEPS_LOGGED`). Where no row has `step_time`, the step's seconds come
    from ms-swift's average since the start, with the error that its rounding leaves, and a verdict says so.
    `unnumbered`: nothing beside a row tells its step, so that rows of several runs, or from before a restart, are an
    error.
    """
    records = []
    windows = windows_of([row.step for row in rows])
    for row, window in zip(rows, windows, strict=True):
        numbers = {**row.numbers, STEPS_LOGGED: float(window)} if window > 1 else row.numbers
        records.append(
            StepRecord(row.step, {}, numbers, {}, None, path, row.line, row.rounding, elapsed_s=row.elapsed_s)
        )
    if unnumbered:
        require_one_run(records, path)
    anew = {place for place, (before, record) in enumerate(pairwise(records), start=1) if falls(before, record)}
    read = steps_in_sequence(records, path)
    read.verdicts = [*verdicts, *read.verdicts]
    if read.records and not any(STEP_TIME in record.scalars for record in read.records.values()):
        # A run that was started again counts its average from there.
        lives: list[list[LoggedRow]] = []
        for place, row in enumerate(rows):
            if lives and replace(row, line=lives[-1][-1].line) == lives[-1][-1]:
                continue
            if not lives or row.step <= lives[-1][-1].step or place in anew:
                lives.append([])
            lives[-1].append(row)
        times: dict[int, tuple[float, float, int]] = {}
        for life in lives:
            found = (average_of(row.numbers, row.rounding, row.elapsed_s, row.step, row.line) for row in life)
            averages = [average for average in found if average is not None]
            times.update(step_times_s(averages, path))
        for step, (seconds, error, window) in times.items():
            record = read.records[step]
            scalars = {k: v for k, v in record.scalars.items() if k not in (*_AVERAGES, STEPS_LOGGED)} | {WALL: seconds}
            # What is rounded is there.
            rounding = {k: v for k, v in record.rounding.items() if k in scalars} | {WALL: error}
            if window > 1:
                scalars[STEPS_LOGGED] = float(window)
            read.records[step] = replace(record, scalars=scalars, rounding=rounding)
        if times:
            text = (
                f"{path} holds no step times, only the average since the start: the times are differences of that, "
                "each from one logged row to the next, with checkpoints and evaluations in between"
            )
            read.verdicts.append(Verdict("warning", "times-from-average", text))
    wider = [int(r.scalars[STEPS_LOGGED]) for r in read.records.values() if STEPS_LOGGED in r.scalars]
    if wider:
        read.verdicts.append(window_verdict(str(path), wider))
    return Imported(read, name)


_AVERAGES = (TRAIN + SECONDS_PER_STEP, TRAIN + STEPS_PER_SECOND)
