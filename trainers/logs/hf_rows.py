"""Turns rows that transformers' Trainer logs (TRL, ms-swift) into steps, and reads its `trainer_state.json`."""

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
from trainers.logs.hf_work import Samples, samples_of
from trainers.logs.log_files import half_digit, half_significant, parse_json, parse_number
from trainers.logs.record import STEPS_LOGGED, WALL, Imported, SourceRead, StepRecord, as_number
from trainers.logs.restarts import counter_drops, require_one_run, steps_in_sequence

TRAINER_STATE = "trainer-state"
TIMES_FROM_BARS, BARS_TOO_COARSE, SUPERVISED = "times-from-bars", "bars-too-coarse", "supervised"
# A row of reinforcement learning has names with one of these.
_OF_RL = ("reward", "completion")
# The prefix that transformers' callbacks give a row's names in wandb; logs get the names of the wandb run.
TRAIN = "train/"
STEP_TIME = "train/step_time"
# transformers 5 prints numbers as texts with '.4g': at least this many digits, without zeros at the end.
_PRINTED_DIGITS = 4
# A double has no more.
_ALL_DIGITS = 15
_EVALUATION = ("eval_", "test_")
# Every row of a training step has one of these. `reward` is not among them: reward functions print samples with it.
_TRAINING = ("learning_rate", "step_time", "loss")


def is_training_row(row: Mapping[str, Any]) -> bool:
    """Whether a logged row is a training step: no evaluation, and not the summary at the end (`train_runtime`)."""
    if "train_runtime" in row or any(str(name).startswith(_EVALUATION) for name in row):
        return False
    return any(name in row for name in _TRAINING)


def numbers_of(row: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """A row's numbers under wandb's names, and the rounding of those printed as texts."""
    numbers: dict[str, float] = {}
    rounding: dict[str, float] = {}
    for name, raw in row.items():
        value = as_number(raw)
        if value is not None:
            numbers[TRAIN + name] = value
        elif isinstance(raw, str) and (number := parse_number(raw)) is not None:
            numbers[TRAIN + name] = number.value
            mantissa = raw.strip().lower().partition("e")[0]
            shown = len("".join(c for c in mantissa if c.isdigit()).lstrip("0"))
            digits = max(shown, _PRINTED_DIGITS)
            if digits < _ALL_DIGITS and (half := half_significant(number.value, digits)) > 0.0:
                rounding[TRAIN + name] = half
    return numbers, rounding


def windows_of(order: Sequence[int]) -> list[int]:
    """The number of steps, up to its own, that each record averages: transformers logs means since the record before.

    `order` are the steps of a log's records in file order, restarts included. A gap above the usual one is missing
    data, not a window. The first record after a restart gets the largest possible window, a single record 1.
    """
    # transformers logs at multiples of logging_steps, and also at step 1 with logging_first_step.
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
    """A warning if records average several steps (transformers' logging_steps); `windows` has the size for each."""
    wide = [size for size in windows if size > 1]
    if not wide:
        return []
    least, most = min(wide), max(wide)
    shown = str(least) if least == most else f"{least} to {most}"
    if 2 * len(wide) > len(windows):
        which = f"was logged every {shown} steps (logging_steps): each record is the mean of that many steps"
    else:
        which = f"has {count_of(len(wide), 'record')} of {len(windows)} that are the mean of {shown} steps"
    text = f"{shown_as} {which}. A step that does not count removes its whole record"
    return [Verdict("warning", "logging-window", text)]


# ms-swift's average since the start: seconds per step, in older releases steps per second, rounded to six decimals.
SECONDS_PER_STEP = "train_speed(s/it)"
STEPS_PER_SECOND = "train_speed(iter/s)"
_AVERAGES = (TRAIN + SECONDS_PER_STEP, TRAIN + STEPS_PER_SECOND)
_DECIMALS = 6
ELAPSED = "elapsed_time"
_ELAPSED_PARTS = re.compile(r"(?:(\d+)d )?(?:(\d+)h )?(?:(\d+)m )?(\d+(?:\.\d+)?)s")
# `elapsed_time` is in whole seconds.
_ELAPSED_ROUNDING_S = 0.5
# The difference of two times in whole seconds is off by less.
_WHOLE_SECONDS_OFF_S = 1.0
# Steps are not comparable if their time's error exceeds this share of it.
_LARGEST_SHARE = 0.25
# Plausible seconds per step lie between this and its inverse.
_SHORTEST_S = 1e-9


@dataclass(frozen=True, slots=True)
class Average:
    """A row's average since the start: its step, seconds per step with their rounding, and elapsed seconds."""

    step: int
    per_step_s: float
    rounding_s: float
    elapsed_s: float | None


def _average_of(row: StepRecord) -> Average | None:
    """The average in a row of ms-swift's; None if it has none."""
    for name in (SECONDS_PER_STEP, STEPS_PER_SECOND):
        value = row.scalars.get(TRAIN + name, 0.0)
        error = max(half_digit(_DECIMALS), row.rounding.get(TRAIN + name, 0.0))
        if not _SHORTEST_S <= value <= 1.0 / _SHORTEST_S:
            continue
        if name == SECONDS_PER_STEP:
            return Average(row.step, value, error, row.elapsed_s)
        # 3.x counts the steps before a checkpoint too, and up to 3.7 its clock begins earlier: no elapsed time.
        return Average(row.step, 1.0 / value, error / value**2, None)
    return None


def elapsed_s(text: object) -> float | None:
    """Seconds from `1h 2m 3s`; None for anything else."""
    match = _ELAPSED_PARTS.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    total_s = 86400 * days + 3600 * hours + 60 * minutes + seconds
    return total_s if math.isfinite(total_s) else None


def step_times_s(averages: Sequence[Average], path: Path) -> dict[int, tuple[float, float, int]]:
    """By step, from averages in step order: mean seconds since the row before, their worst error, and their steps.

    The average times the steps since the start is the time since the start; the difference of two such times is the
    time of the steps between. A resumed run counts its steps from the checkpoint, which the elapsed time shows.
    `UserError` if the rounding makes most times useless.
    """
    found: dict[int, tuple[float, float, int]] = {}
    first_step = _steps_before(averages[0]) if averages else 0
    before_s, before_error_s, before_step = 0.0, 0.0, first_step
    for average in averages:
        since = average.step - first_step
        total_s, error_s = average.per_step_s * since, average.rounding_s * since
        steps = average.step - before_step
        if steps < 1:
            continue
        found[average.step] = ((total_s - before_s) / steps, (error_s + before_error_s) / steps, steps)
        before_s, before_error_s, before_step = total_s, error_s, average.step
    poor = [step for step, (seconds, error, _) in found.items() if error > _LARGEST_SHARE * abs(seconds)]
    if 2 * len(poor) > len(found):
        seconds, error, _ = found[poor[0]]
        raise UserError(
            f"{path} has no step times, only the average since the start ({SECONDS_PER_STEP}), printed with too few "
            f"digits: step {poor[0]} took {seconds:.3g} s, give or take {error:.3g} s. Import ms-swift's "
            "logging.jsonl, which has more digits, or the wandb run instead"
        )
    return found


def _steps_before(first: Average) -> int:
    """The number of steps before the checkpoint that a run resumed from, by its first average."""
    if first.elapsed_s is None or first.per_step_s <= 0.0:
        return 0
    counted = first.elapsed_s / first.per_step_s
    error = _ELAPSED_ROUNDING_S / first.per_step_s + counted * first.rounding_s / first.per_step_s
    if abs(counted - first.step) <= error + 0.01 * first.step:
        return 0
    return max(0, first.step - max(1, round(counted)))


def row_record(step: int, row: Mapping[str, Any], path: Path, line: int) -> StepRecord:
    """The record of a row as it was logged, with its `elapsed_time`."""
    numbers, rounding = numbers_of(row)
    return StepRecord(step, {}, numbers, {}, None, path, line, rounding, elapsed_s=elapsed_s(row.get(ELAPSED)))


def imported_rows(
    rows: Sequence[StepRecord],
    path: Path,
    name: str,
    verdicts: Sequence[Verdict] = (),
    unnumbered: bool = False,
    samples: Samples | None = None,
) -> Imported:
    """The steps of a file's rows under wandb's names; `name` is the format's.

    A row that averages several steps has the scalar `STEPS_LOGGED`. If no row has `step_time`, the seconds come from
    ms-swift's average since the start, with the error of its rounding and a verdict. `unnumbered`: the rows have no
    step numbers of their own, so several runs or a restart in the file are an error. Without such averages either, they
    are those of the progress bars.
    """
    records = [
        replace(row, scalars={**row.scalars, STEPS_LOGGED: float(window)}) if window > 1 else row
        for row, window in zip(rows, windows_of([row.step for row in rows]), strict=True)
    ]
    if unnumbered:
        require_one_run(records, path)
    read = steps_in_sequence(records, path)
    read.verdicts = [*verdicts, *read.verdicts]
    if not any(STEP_TIME in record.scalars for record in read.records.values()):
        restarts = {at for at, (a, b) in enumerate(pairwise(records), start=1) if counter_drops(a, b)}
        _add_average_times(read, rows, restarts, path)
        if not any(WALL in record.scalars for record in read.records.values()):
            _add_bar_times(read, path)
        if records and not any(word in name for record in records for name in record.scalars for word in _OF_RL):
            text = f"{path}: a log of supervised fine-tuning: it has losses, and no rewards or completions"
            read.verdicts.append(Verdict("note", SUPERVISED, text))
    if samples is not None:
        samples.added_to(read)
    read.verdicts += window_verdicts(str(path), [int(r.scalars.get(STEPS_LOGGED, 1)) for r in read.records.values()])
    return Imported(read, name)


def _add_average_times(read: SourceRead, rows: Sequence[StepRecord], restarts: Collection[int], path: Path) -> None:
    """Add step times from ms-swift's average since the start; `restarts` are the indices of first rows after one."""
    # The average begins again at each restart.
    lives: list[list[StepRecord]] = []
    for place, row in enumerate(rows):
        if lives and replace(row, line=lives[-1][-1].line) == lives[-1][-1]:
            continue
        if not lives or row.step <= lives[-1][-1].step or place in restarts:
            lives.append([])
        lives[-1].append(row)
    times: dict[int, tuple[float, float, int]] = {}
    for life in lives:
        averages = [average for row in life if (average := _average_of(row)) is not None]
        times.update(step_times_s(averages, path))
    for step, (seconds, error, window) in times.items():
        record = read.records[step]
        scalars = {k: v for k, v in record.scalars.items() if k not in (*_AVERAGES, STEPS_LOGGED)} | {WALL: seconds}
        rounding = {k: v for k, v in record.rounding.items() if k in scalars} | {WALL: error}
        if window > 1:
            scalars[STEPS_LOGGED] = float(window)
        read.records[step] = replace(record, scalars=scalars, rounding=rounding)
    if times:
        text = (
            f"{path} has no step times, only the average since the start. Each time is the difference from one logged "
            "row to the next, and includes checkpoints and evaluations between them"
        )
        read.verdicts.append(Verdict("warning", "times-from-average", text))


def _add_bar_times(read: SourceRead, path: Path) -> None:
    """Add step times from the whole seconds since the start beside the rows, such as a progress bar's."""
    times: dict[int, tuple[float, float]] = {}
    before_step, before_s = 0, 0.0
    for step, record in sorted(read.records.items()):
        window = int(record.scalars.get(STEPS_LOGGED, 1))
        if record.elapsed_s is None:
            continue
        # After a restart the clock began again, and across a hole it counts other steps too.
        if not record.resumed and step - before_step == window:
            times[step] = (record.elapsed_s - before_s) / window, _WHOLE_SECONDS_OFF_S / window
        before_step, before_s = step, record.elapsed_s
    if not times:
        return
    off_s = max(error for _, error in times.values())
    if 2 * sum(error > _LARGEST_SHARE * seconds for seconds, error in times.values()) > len(times):
        text = f"{path}: its progress bars have whole seconds, too few for its steps (up to {off_s:.2g} s off each)"
        read.verdicts.append(Verdict("warning", BARS_TOO_COARSE, text))
        return
    for step, (seconds, error) in times.items():
        record = read.records[step]
        scalars, rounding = {**record.scalars, WALL: seconds}, {**record.rounding, WALL: error}
        # The time between steps is in these.
        read.records[step] = replace(record, scalars=scalars, rounding=rounding, elapsed_s=None)
    text = (
        f"{path}: its rows have no step_time, so a step's seconds are the progress bar's: whole seconds, up to "
        f"{off_s:.2g} s off each step, with checkpoints and evaluations"
    )
    read.verdicts.append(Verdict("warning", TIMES_FROM_BARS, text))


def read_trainer_state(path: Path) -> Imported:
    """The steps of a `trainer_state.json`, which the Trainer writes with each checkpoint, under wandb's names.

    A record's line is its place in the log_history, from 1. Evaluations and the summary at the end are skipped.
    `UserError` if the file is no such state.
    """
    rows: list[StepRecord] = []
    samples = None
    try:
        state = parse_json(path.read_bytes())
        history = state.get("log_history") if isinstance(state, dict) else None
        if not isinstance(history, list):
            raise UserError(f"{path} has no log_history (a list): it is no trainer_state.json")
        for place, row in enumerate(history, start=1):
            step = row.get("step") if isinstance(row, dict) else None
            if isinstance(step, bool) or not isinstance(step, int) or step < 1:
                continue
            samples = samples_of(row, path, place) or samples
            if not is_training_row(row):
                continue
            rows.append(row_record(step, {k: v for k, v in row.items() if k != "step"}, path, place))
    except (ValueError, OverflowError) as error:
        raise UserError(
            f"{path} is truncated or corrupt ({' '.join(str(error).split())}). Copy it again, or import the "
            "trainer_state.json of another checkpoint"
        ) from None
    return imported_rows(rows, path, TRAINER_STATE, samples=samples)
