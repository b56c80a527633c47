"""Makes steps of the rows that transformers' Trainer logs (TRL, ms-swift), and reads its `trainer_state.json`."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.verdicts import Verdict, count_of
from trainers.logs.log_files import list_of
from trainers.logs.printed import half_digit, half_significant, parse_number
from trainers.logs.record import STEPS_LOGGED, TIMERS, Imported, SourceRead, StepRecord, as_number, packed
from trainers.logs.restarts import counter_drops, require_one_run, steps_in_sequence

TRAINER_STATE = "trainer-state"
# What transformers' callbacks put before a row's names in wandb: so a log's names are those of the wandb run.
TRAIN = "train/"
STEP_TIME = "train/step_time"
# transformers 5 prints numbers as texts with so many digits, and no zeros at their end ('.4g').
PRINTED_DIGITS = 4
# A double has no more.
ALL_DIGITS = 15
_EVALUATION = ("eval_", "test_")
# One of these is in every row of a training step. `reward` alone is not: reward functions print samples with it.
_TRAINING = ("learning_rate", "step_time", "loss")
# What a printed dictionary of something else hardly has.
_SURE = ("learning_rate", "step_time")


def is_training_row(row: Mapping[str, Any]) -> bool:
    """Whether a logged row is of a training step: no evaluation, and not the summary at the end (`train_runtime`)."""
    if "train_runtime" in row or any(str(name).startswith(_EVALUATION) for name in row):
        return False
    return any(name in row for name in _TRAINING)


def is_surely_logged(row: Mapping[str, Any]) -> bool:
    """Whether a training row has what only a trainer writes: where one has it, one without is another program's."""
    return any(name in row for name in _SURE)


def numbers_of(row: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """A row's numbers under wandb's names, and the rounding of those that were printed as texts."""
    numbers: dict[str, float] = {}
    rounding: dict[str, float] = {}
    for name, raw in row.items():
        value = as_number(raw)
        if value is not None:
            numbers[TRAIN + name] = value
        elif isinstance(raw, str) and (text := parse_number(raw)) is not None:
            numbers[TRAIN + name] = text.value
            digits = max(significant_digits(raw), PRINTED_DIGITS)
            if text.value != 0.0 and digits < ALL_DIGITS and (cut := half_significant(text.value, digits)) > 0.0:
                rounding[TRAIN + name] = cut
    return numbers, rounding


def significant_digits(text: str) -> int:
    """How many digits a printed number has, without zeros before the first."""
    mantissa = text.strip().lower().partition("e")[0]
    return len("".join(c for c in mantissa if c.isdigit()).lstrip("0"))


def windows_of(order: Sequence[int]) -> list[int]:
    """How many steps, up to its own, each record stands for: transformers logs means since the record before.

    `order` are the steps of a log's records as they come, restarts too. A gap that is larger than most are is a hole,
    not a window; of the first record after a restart it is the most that it can be. A single record says nothing: 1.
    """
    # transformers logs at the multiples of logging_steps, and besides at step 1 if it is told to (logging_first_step).
    starts = [0, *order[1:]] if order[:1] == [1] else order
    gaps = Counter(b - a for a, b in pairwise(starts) if b > a)
    if not gaps:
        return [1] * len(order)
    usual = min(gap for gap, times in gaps.items() if times == max(gaps.values()))
    found: list[int] = []
    for before, step in pairwise([0, *order]):
        if step == before:
            found.append(found[-1])
        else:
            found.append(min(usual, step - before if step > before else step))
    return found


def window_verdicts(shown_as: str, windows: Sequence[int]) -> list[Verdict]:
    """Says which records stand for several steps (transformers' logging_steps); `windows` has a size for each."""
    wide = [size for size in windows if size > 1]
    if not wide:
        return []
    least, most = min(wide), max(wide)
    shown = str(least) if least == most else f"{least} to {most}"
    if 2 * len(wide) > len(windows):
        which = (
            f"was logged every {shown} steps (logging_steps): each of its records stands for the mean of so many steps"
        )
    else:
        which = f"has {count_of(len(wide), 'record')} of {len(windows)} that stand for the mean of {shown} steps"
    return [
        Verdict(
            "warning", "logging-window", f"{shown_as} {which}, and a step that is left out takes the others with it"
        )
    ]


# ms-swift's names for it: seconds per step, in older releases steps per second. It rounds both to six decimals.
SECONDS_PER_STEP = "train_speed(s/it)"
STEPS_PER_SECOND = "train_speed(iter/s)"
_DECIMALS = 6
ELAPSED = "elapsed_time"
_ELAPSED_PARTS = re.compile(r"(?:(\d+)d )?(?:(\d+)h )?(?:(\d+)m )?(\d+(?:\.\d+)?)s")
# `elapsed_time` is told in whole seconds.
_ELAPSED_ROUNDING_S = 0.5
# Steps whose time is known no better than this share of it cannot be compared.
LARGEST_SHARE = 0.25
# No step is shorter, and none takes as many seconds as fit in one.
SHORTEST_S = 1e-9


@dataclass(frozen=True, slots=True)
class Average:
    """A row's average since the start: its step, seconds per step with their rounding, elapsed seconds if told."""

    step: int
    per_step_s: float
    rounding_s: float
    elapsed_s: float | None


def average_of(row: LoggedRow) -> Average | None:
    """The average that the numbers of a row of ms-swift's hold; None where they hold none."""
    since_start_s = row.elapsed_s
    for name in (SECONDS_PER_STEP, STEPS_PER_SECOND):
        value = row.numbers.get(TRAIN + name, 0.0)
        off = max(half_digit(_DECIMALS), row.rounding.get(TRAIN + name, 0.0))
        if not SHORTEST_S <= value <= 1.0 / SHORTEST_S:
            continue
        if name == STEPS_PER_SECOND:
            value, off = 1.0 / value, off / value**2
            # 3.x divides all steps, those before a checkpoint too, and up to 3.7 by a time that begins earlier.
            since_start_s = None
        return Average(row.step, value, off, since_start_s)
    return None


def elapsed_s(text: object) -> float | None:
    """Seconds from `1h 2m 3s`; None for anything else."""
    match = _ELAPSED_PARTS.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    whole = 86400 * days + 3600 * hours + 60 * minutes + seconds
    return whole if math.isfinite(whole) else None


def step_times_s(averages: Sequence[Average], path: Path) -> dict[int, tuple[float, float, int]]:
    """Mean seconds up to each row's step, their worst rounding error and of how many steps, by averages in step order.

    The average times the steps since the start is the time since the start, and the difference of two such times is
    that of the steps between. A run that went on from a checkpoint counts its steps from there: told by the elapsed
    time. `UserError` where the rounding leaves too little of a step's time to compare.
    """
    found: dict[int, tuple[float, float, int]] = {}
    begun = _steps_before(averages[0]) if averages else 0
    before_s, before_rounding_s, before_step = 0.0, 0.0, begun
    for one in averages:
        since = one.step - begun
        whole_s, rounding_s = one.per_step_s * since, one.rounding_s * since
        steps = one.step - before_step
        if steps < 1:
            continue
        found[one.step] = ((whole_s - before_s) / steps, (rounding_s + before_rounding_s) / steps, steps)
        before_s, before_rounding_s, before_step = whole_s, rounding_s, one.step
    poor = [step for step, (seconds, error, _) in found.items() if error > LARGEST_SHARE * abs(seconds)]
    if 2 * len(poor) > len(found):
        seconds, error, _ = found[poor[0]]
        raise UserError(
            f"{path} has no step times, only the average since the start ({SECONDS_PER_STEP}), and its printing cut "
            f"off too much of that: step {poor[0]} took {seconds:.3g} s, give or take {error:.3g} s. Import ms-swift's "
            "logging.jsonl, which holds more digits, or the wandb run, instead"
        )
    return found


def _steps_before(first: Average) -> int:
    """How many steps were done before the life that a row tells the average of."""
    if first.elapsed_s is None or first.per_step_s <= 0.0:
        return 0
    counted = first.elapsed_s / first.per_step_s
    off = _ELAPSED_ROUNDING_S / first.per_step_s + counted * first.rounding_s / first.per_step_s
    if abs(counted - first.step) <= off + 0.01 * first.step:
        return 0
    return max(0, first.step - max(1, round(counted)))


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
    anew = {place for place, (before, record) in enumerate(pairwise(records), start=1) if counter_drops(before, record)}
    read = steps_in_sequence(records, path)
    read.verdicts = [*verdicts, *read.verdicts]
    if not any(STEP_TIME in record.scalars for record in read.records.values()):
        _add_average_times(read, rows, anew, path)
    read.verdicts += window_verdicts(str(path), [int(r.scalars.get(STEPS_LOGGED, 1)) for r in read.records.values()])
    return Imported(read, name)


_AVERAGES = (TRAIN + SECONDS_PER_STEP, TRAIN + STEPS_PER_SECOND)


def _add_average_times(read: SourceRead, rows: Sequence[LoggedRow], anew: Collection[int], path: Path) -> None:
    """Adds the steps' times from ms-swift's average since the start, and says so; `anew` are the places of restarts."""
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
        averages = [average for row in life if (average := average_of(row)) is not None]
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


def read_trainer_state(path: Path) -> Imported:
    """The steps of a `trainer_state.json`, which the Trainer keeps beside each checkpoint, under wandb's names.

    A record's line is its place in the log_history, from 1. Evaluations and the summary at the end are no steps.
    `UserError` when the file is no such state.
    """
    rows: list[LoggedRow] = []
    place = 0
    try:
        history = list_of(path, "log_history")
        if history is None:
            raise UserError(f"{path} has no log_history (a list): it is no trainer_state.json")
        for place, row in enumerate(history, start=1):
            step = row.get("step") if isinstance(row, dict) else None
            if isinstance(step, bool) or not isinstance(step, int) or step < 1 or not is_training_row(row):
                continue
            rows.append(logged_row(step, {k: v for k, v in row.items() if k != "step"}, place))
    except (ValueError, RecursionError, OverflowError) as error:
        raise UserError(
            f"{path} is cut off or corrupt after record {place} of its log_history ({' '.join(str(error).split())}). "
            "Copy it again, or import the trainer_state.json of another checkpoint"
        ) from None
    return imported_rows(rows, path, TRAINER_STATE)
