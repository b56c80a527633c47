"""Reads the rows of wandb's histories, and of TensorBoard's event files, into the training steps of a run."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from sys import intern
from typing import Any

from common.messages import join_first
from common.shown import shown
from common.verdicts import Verdict, count_of
from trainers.logs.hf_rows import STEP_TIME, TRAIN, window_verdicts, windows_of
from trainers.logs.hf_work import Samples, samples_of
from trainers.logs.record import EVALUATED_STEP, STEPS_LOGGED, TIMERS, WALL, SourceRead, StepRecord, as_number
from trainers.logs.restarts import same_numbers, several_runs, steps_in_sequence
from trainers.logs.sync_cycles import training_steps
from trainers.registry import trainers

# The counter of a row's training step: verl's own, or transformers' (TRL and ms-swift, where wandb's `_step` runs
# ahead), or wandb's, which verl sets.
VERL_STEP = "training/global_step"
HF_STEP = "train/global_step"
WANDB_STEP = "_step"
# TRL and ms-swift log these with every call of a timer. TRL logs a separate row at the end of the call. That row has no
# step, or wandb fills in that of the row before (transformers' callback defines its counter with step_sync).
CALLS = "profiling/"
# Every row of a training step that transformers logs has one of these.
TRAINING = frozenset((STEP_TIME, "train/loss", "train/learning_rate"))
# The last name of every evaluation by transformers (`eval/runtime`, `eval/<data set>_runtime`).
EVALUATION, EVALUATED = "eval/", "runtime"
# Prefix of ms-swift's timers that are not phases (trainers/swift/trainer.toml).
LAST_CALL = "last_call_s/"

# A file or a cached page, the number of the record or line in it, and the row.
Row = tuple[Path, int, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Calls:
    """The timer calls that belong to a row of transformers, which may stand for several steps."""

    names: tuple[str, ...]
    in_row: bool
    """Whether the row itself has them (ms-swift)."""
    evaluated: int | None
    """The step of an evaluation since the row before: the calls before it are not known."""


@dataclass(frozen=True, slots=True)
class _Logged:
    """A timed row; `calls` where it is of transformers."""

    record: StepRecord
    calls: _Calls | None = None


def _number(raw: object) -> float | None:
    try:
        return as_number(raw)
    except OverflowError:
        return None


def time_of(row: dict[str, Any]) -> float | None:
    return _number(row.get("_timestamp"))


class History:
    """The timed rows of one process's history, in their order, under the trainer's own step.

    Every number stays a scalar, timers too: the timer tree sorts them later. The seconds of TRL's and ms-swift's calls
    (`profiling/Time taken: GRPOTrainer.<name>`) are summed over the step that they led to. A step's other rows add
    their keys; the row with the timings overrides them. A row without timings (an evaluation, a row of the user's code,
    the closing summary) is not a training step.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self.steps: list[_Logged] = []
        self.written_by = ""
        self.samples: Samples | None = None
        self._known = [(trainer.logs.rows, trainer.name) for trainer in trainers() if trainer.logs.rows is not None]
        self._others: dict[int, dict[str, float]] = {}
        """By step, the numbers of rows without timings."""
        # The seconds of the calls, and the step of an evaluation, since the row before.
        self._calls: dict[str, float] = {}
        self._evaluated: int | None = None
        # Of the row before, by a trainer that times no step, and whether it evaluated since.
        self._last_s: float | None = None
        self._evaluated_others = False
        for row in rows:
            values = {name: _number(raw) for name, raw in row[2].items() if name[:1] != "_"}
            numbers = {intern(shown(name)): value for name, value in values.items() if value is not None}
            if not (self._of_other_trainer(numbers, row) or self._of_verl(numbers, row)):
                self._of_transformers(numbers, row)
        for place, one in enumerate(self.steps):
            if others := self._others.pop(one.record.step, None):
                record = replace(one.record, scalars={**others, **one.record.scalars})
                self.steps[place] = replace(one, record=record)

    def _add(self, step: int, numbers: dict[str, float], row: Row, timed: bool, calls: _Calls | None = None) -> None:
        if not timed:
            self._others.setdefault(step, {}).update(numbers)
            return
        file, number, values = row
        elapsed_s = _number(values.get("_runtime"))
        record = StepRecord(step, {}, numbers, {}, None, file, number, time=time_of(values), elapsed_s=elapsed_s)
        self.steps.append(_Logged(record, calls))

    def _of_other_trainer(self, numbers: dict[str, float], row: Row) -> bool:
        """Add a row with the mark of a trainer that has its own names (`Logs.rows`); whether the row has one.

        A history that has steps of verl or transformers has no others: a user's code may log such a name.
        """
        values = row[2]
        if self.steps and not self.written_by:
            return False
        found = next(((names, trainer) for names, trainer in self._known if names.mark in values), None)
        if found is None or VERL_STEP in numbers or STEP_TIME in numbers:
            self._evaluated_others |= any(names.evaluated in values for names, _ in self._known if names.evaluated)
            return False
        names, self.written_by = found
        parsed = names.logged_step(numbers, _number(values.get(names.counter)))
        if parsed is None:
            return True
        if names.by_the_wall:
            # The seconds since the row before; the first row has none.
            now = _number(values.get("_runtime"))
            if now is not None and self._last_s is not None:
                parsed.numbers[WALL] = now - self._last_s
            self._last_s = now
        if names.evaluated and self._evaluated_others and parsed.timed:
            parsed.numbers[EVALUATED_STEP] = 0.0
            self._evaluated_others = False
        self._add(parsed.step, parsed.numbers, row, parsed.timed)
        return True

    def _of_verl(self, numbers: dict[str, float], row: Row) -> bool:
        timed = any(name.startswith(TIMERS) for name in numbers)
        if not timed and VERL_STEP not in numbers:
            return False
        if timed:  # our own driver also logs TRL's timers
            numbers, self._calls = self._calls | numbers, {}
        counter = numbers.get(VERL_STEP, numbers.get(HF_STEP, _number(row[2].get(WANDB_STEP))))
        if (step := _step(counter)) is not None:
            self._add(step, numbers, row, timed)
        return True

    def _of_transformers(self, numbers: dict[str, float], row: Row) -> None:
        step = _step(numbers.get(HF_STEP))
        summary = {name.removeprefix(TRAIN): value for name, value in numbers.items() if name.startswith(TRAIN)}
        self.samples = samples_of(summary, row[0], row[1]) or self.samples
        in_row = {name: value for name, value in numbers.items() if name.startswith(CALLS)}
        numbers = {name: value for name, value in numbers.items() if name not in in_row}
        calls = None
        if TRAINING & numbers.keys():
            # The calls since the row before led to this one; ms-swift's are in the row itself.
            of_row = {**self._calls, **in_row}
            numbers |= of_row
            if of_row or STEP_TIME in numbers:
                calls = _Calls(tuple(of_row), bool(in_row), self._evaluated)
            self._calls, self._evaluated = {}, None
        elif any(name.startswith(EVALUATION) and name.endswith(EVALUATED) for name in numbers):
            # The evaluation's calls are among the calls so far, and no row says which.
            self._calls, self._evaluated = {}, step if step is not None else 0 if HF_STEP in numbers else None
        else:
            # A row of calls, or of the user's code, which may contain ms-swift's calls.
            for name, value in in_row.items():
                self._calls[name] = self._calls.get(name, 0.0) + value
        if step is not None and numbers.keys() - {HF_STEP, "train/epoch"}:
            self._add(step, numbers, row, calls is not None, calls)


def _step(counter: float | None) -> int | None:
    return int(counter) if counter is not None and counter >= 1 and counter.is_integer() else None


def steps_of(rows: Iterable[Row], shown_as: str) -> SourceRead:
    """The training steps of one history (see `steps_of_lives`)."""
    return steps_of_lives([History(rows)], shown_as)


def steps_of_lives(lives: Sequence[History], shown_as: str, from_scratch: bool = True) -> SourceRead:
    """The steps of a run by the histories of its processes, in the order of their start; a step's later row counts.

    Where the first step comes again, the run started from scratch: everything before is left out, or, if it is another
    process's and `from_scratch` is false, a `UserError`. A row of transformers that stands for several steps has their
    number (`STEPS_LOGGED`), which follows from the gaps between the steps of all lives.
    """
    logged = [one for life in lives for one in life.steps]
    begins = {id(life.steps[0]) for life in lives[1:] if life.steps}
    start = 0
    for place, one in enumerate(logged[1:], start=1):
        first, again = logged[start].record, one.record
        if again.step <= first.step and not same_numbers(first, again):
            if id(one) in begins and not from_scratch:
                raise several_runs(Path(shown_as), first, first, again)
            start = place
    verdicts = [restarted_verdict(shown_as, logged[:start], logged[start])] if start else []
    logged = logged[start:]
    begin_at = [place for place, one in enumerate(logged) if place and id(one) in begins]
    for place in begin_at:
        # Another process counts its seconds from 0.
        logged[place] = replace(logged[place], record=replace(logged[place].record, elapsed_s=None))
    resumed_at = {logged[place].record.step for place in begin_at}
    records, of_windows = _with_windows(logged, shown_as)
    records, more = training_steps(records, shown_as)
    verdicts += more
    read = steps_in_sequence(records, Path(shown_as), resumed_at, lambda _: "import the log of each by itself")
    read.verdicts = [*verdicts, *read.verdicts, *of_windows]
    for life in lives:
        read.written_by = life.written_by or read.written_by
        if life.samples is not None:
            life.samples.added_to(read)
    return read


def restarted_verdict(shown_as: str, left_out: Sequence[_Logged], first: _Logged) -> Verdict:
    """The finding that a run started from scratch, so that the steps before are left out."""
    steps = sorted({one.record.step for one in left_out})
    text = (
        f"{shown_as}: the run started from scratch at step {first.record.step}; {count_of(len(steps), 'step')} "
        f"({steps[0]} to {steps[-1]}) of the training before it are left out"
    )
    return Verdict("warning", "began-anew", text)


def _with_windows(logged: Sequence[_Logged], shown_as: str) -> tuple[list[StepRecord], list[Verdict]]:
    """The records with the number of steps that they stand for, and their calls as means of these."""
    order = [one.record.step for one in logged]
    gaps_known = any(before < step for before, step in pairwise(order))
    sizes = [size if one.calls else 1 for one, size in zip(logged, windows_of(order), strict=True)]
    records = [
        replace(one.record, scalars={**one.record.scalars, STEPS_LOGGED: float(size)}) if size > 1 else one.record
        for one, size in zip(logged, sizes, strict=True)
    ]
    of_transformers = [size for one, size in zip(logged, sizes, strict=True) if one.calls]
    verdicts = window_verdicts(shown_as, of_transformers)
    if any(one.calls and one.calls.in_row for one in logged):
        several = max(sizes) > 1 or (not gaps_known and max(order) > 1)
        more = _drop_last_calls(records, logged, shown_as) if several else []
    else:
        more = _divide_calls(records, logged, sizes, gaps_known, shown_as)
    return records, verdicts + more


def _drop_last_calls(records: list[StepRecord], logged: Sequence[_Logged], shown_as: str) -> list[Verdict]:
    """Renames ms-swift's calls, so that they are not phases: they are of the last step, the row of several."""
    for place, one in enumerate(logged):
        names = one.calls.names if one.calls else ()
        last = {LAST_CALL + name.partition(".")[2]: one.record.scalars[name] for name in names}
        records[place] = _replaced(records[place], last, names)
    text = (
        f"{shown_as}: ms-swift gives wandb only the last call of each timer, and its rows stand, or may stand, for "
        "several steps (logging_steps). The timers' seconds are those of the last step and are not phases "
        f"({LAST_CALL}*). With logging_steps 1 they are"
    )
    return [Verdict("warning", "last-calls-only", text)]


def _divide_calls(
    records: list[StepRecord], logged: Sequence[_Logged], sizes: Sequence[int], gaps_known: bool, shown_as: str
) -> list[Verdict]:
    """Turns the sums of TRL's calls into means; a sum over an unknown number of steps does not count."""
    fewer, unknown = [], []
    means: set[str] = set()
    for place, (one, size) in enumerate(zip(logged, sizes, strict=True)):
        calls, step = one.calls, one.record.step
        if calls is None or not (calls.names or calls.evaluated is not None):
            continue
        count = size if gaps_known or step == 1 else 0
        if calls.evaluated is not None:
            count = min(step - calls.evaluated, size) if gaps_known else step - calls.evaluated
        if count <= 0:
            unknown.append(place)
            continue
        if calls.evaluated is not None and count < size:
            fewer.append((step, count, size))
        means.update(calls.names)
        records[place] = _replaced(records[place], {name: one.record.scalars[name] / count for name in calls.names})
    for place in unknown:
        # A missing phase would count as 0 s; this one took time where other steps have it.
        calls = logged[place].calls
        records[place] = _replaced(records[place], dict.fromkeys(means, math.nan), calls.names if calls else ())
    verdicts = []
    if fewer:
        step, count, size = fewer[0]
        text = (
            f"{shown_as}: {count_of(len(fewer), 'row')} had an evaluation among the steps that they stand for: their "
            f"phases are means of the steps after it (for example step {step}: of {count} of {size})"
        )
        verdicts.append(Verdict("warning", "evaluation-in-window", text))
    if unknown:
        steps = join_first([logged[place].record.step for place in unknown], 5)
        text = (
            f"{shown_as}: the timers' calls of {count_of(len(unknown), 'step')} ({steps}) are sums over an unknown "
            "number of steps: " + ("these steps do not count" if means else "no phases, only the steps")
        )
        verdicts.append(Verdict("warning", "calls-left-out", text))
    return verdicts


def _replaced(record: StepRecord, more: dict[str, float], without: Collection[str] = ()) -> StepRecord:
    kept = {name: value for name, value in record.scalars.items() if name not in without}
    return replace(record, scalars=kept | more)
