"""Reads the rows of a wandb history into training steps."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from sys import intern
from typing import Any

from common.verdicts import Verdict, count_of
from trainers.logs.hf_rows import STEP_TIME, window_verdicts, windows_of
from trainers.logs.record import STEPS_LOGGED, TIMERS, SourceRead, StepRecord, as_number
from trainers.logs.restarts import Restart, counter_drops, restart_verdicts
from trainers.logs.step_names import EVALUATED_STEP, WALL, LoggedStep
from trainers.registry import trainers

# How a row tells its training step: verl's by its own counter, TRL's and ms-swift's by transformers' (wandb's own
# `_step` runs ahead of that), or by wandb's, which verl sets.
VERL_STEP = "training/global_step"
HF_STEP = "train/global_step"
WANDB_STEP = "_step"
# What TRL and ms-swift log with every call of a timer: TRL a row of its own, when the call has ended. It has no step,
# or that of the row before: transformers' wandb callback defines its counter with step_sync, and wandb fills it in. So
# it does in what a user's code logs.
CALLS = "profiling/"
# One of these is in every row of a training step that transformers logs.
TRAINING = frozenset((STEP_TIME, "train/loss", "train/learning_rate"))
# What every evaluation of transformers' ends with (`eval/runtime`, `eval/<data set>_runtime`).
EVALUATION, EVALUATED = "eval/", "runtime"
# Where the seconds of ms-swift's timers are kept that are no phases (trainers/swift/timers.py).
LAST_CALL = "last_call_s/"

# A file or a cached page, the number of the record or line in it, and the row.
Row = tuple[Path, int, dict[str, Any]]


def steps_of(rows: Iterable[Row], shown_as: str) -> SourceRead:
    """A history's training steps, by the trainer's own counter (see `logged_steps`)."""
    return read_steps([logged_steps(rows, shown_as)])[0]


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    numbers = {}
    for name, value in row.items():
        number = value if type(value) is float else _number(value)
        if number is not None and not name.startswith("_"):
            numbers[intern(name)] = number
    return numbers


def _number(raw: object) -> float | None:
    try:
        return as_number(raw)
    except OverflowError:
        return None


def time_of(row: dict[str, Any]) -> float | None:
    return _number(row.get("_timestamp"))


def _record(step: int, numbers: dict[str, float], row: Row) -> StepRecord:
    file, number, values = row
    elapsed_s = _number(values.get("_runtime"))
    return StepRecord(step, {}, numbers, {}, None, file, number, time=time_of(values), elapsed_s=elapsed_s)


def _step(value: float | None) -> int | None:
    return int(value) if value is not None and value >= 1 and value.is_integer() else None


def logged_steps(rows: Iterable[Row], shown_as: str) -> LoggedSteps:
    """A history's rows, by the trainer's own counter; `read_steps` makes its steps of them.

    Every number stays a scalar, timers too, for a tree to sort. The seconds of TRL's and ms-swift's calls
    (`profiling/Time taken: GRPOTrainer.<name>`) are summed over the step that they led to. A step's other rows add
    their keys; where two rows disagree, the row with the timings counts. A row without timings (an evaluation, what a
    user's code logs, the closing summary) is no training step. A step that comes again after it was timed was trained
    again: the later one counts. Where the first one comes again, after others, the run began anew: what was before is
    left out.
    """
    steps = LoggedSteps(shown_as)
    # The seconds of the calls since the row before, and the step of an evaluation since then.
    calls: dict[str, float] = {}
    evaluated: int | None = None
    others = _Others()
    for one in rows:
        row = one[2]
        numbers = _numbers(row)
        if others.added(steps, numbers, one):
            continue
        logged = numbers.get(VERL_STEP, numbers.get(HF_STEP))
        step = _step(_number(row.get(WANDB_STEP)) if logged is None else logged)
        verl = any(name.startswith(TIMERS) for name in numbers)
        if verl or VERL_STEP in numbers:
            if verl:  # a run of our own driver logs TRL's timers besides
                numbers, calls = calls | numbers, {}
            if step is not None:
                steps.add(_record(step, numbers, one), verl)
            continue
        ours = {name: value for name, value in numbers.items() if name.startswith(CALLS)}
        numbers = {name: value for name, value in numbers.items() if name not in ours}
        timed = False
        if TRAINING & numbers.keys():
            # The calls since the row before led to this one; ms-swift's are in the row itself.
            led_to = _Calls(tuple({**calls, **ours}), bool(ours), evaluated)
            numbers |= calls | ours
            timed = bool(led_to.names) or STEP_TIME in numbers
            calls, evaluated = {}, None
        elif any(name.startswith(EVALUATION) and name.endswith(EVALUATED) for name in numbers):
            # The evaluation's calls are among those so far, and no row tells which.
            calls, evaluated = {}, int(logged) if logged is not None else None
        else:
            # Calls, and what a user's code logs, which may take ms-swift's along.
            for name, value in ours.items():
                calls[name] = calls.get(name, 0.0) + value
        if logged is None or step is None or not numbers.keys() - {HF_STEP, "train/epoch"}:
            continue
        steps.add(_record(step, numbers, one), timed, led_to if timed else None)
    return steps


class _Others:
    """The rows of trainers that name their steps and timers in their own way (`Trainer.rows`)."""

    def __init__(self) -> None:
        self._known = [(one.rows, one.name) for one in trainers() if one.rows is not None]
        self._last_s: float | None = None
        self._evaluated = False

    def added(self, steps: LoggedSteps, numbers: dict[str, float], one: Row) -> bool:
        """Adds a row that is such a trainer's by its mark; whether it is.

        A history that has steps of verl's or transformers' has no others: a user's code may log such a name.
        """
        row = one[2]
        if steps.order and not steps.written_by:
            return False
        found = next(((names, trainer) for names, trainer in self._known if names.mark in row), None)
        if found is None or VERL_STEP in numbers or STEP_TIME in numbers:
            self._evaluated |= any(names.evaluated in row for names, _ in self._known if names.evaluated)
            return False
        names, steps.written_by = found
        told = names.logged_step(numbers, _number(row.get(names.counter)))
        if told is not None:
            if names.by_the_wall:
                self._add_clock(told, _number(row.get("_runtime")))
            if names.evaluated and self._evaluated and told.timed:
                told.numbers[EVALUATED_STEP] = 0.0
                self._evaluated = False
            steps.add(_record(told.step, told.numbers, one), told.timed)
        return True

    def _add_clock(self, told: LoggedStep, now: float | None) -> None:
        """The seconds since the row before; the first has none."""
        if now is not None and self._last_s is not None:
            told.numbers[WALL] = now - self._last_s
        self._last_s = now


@dataclass(frozen=True, slots=True)
class _Calls:
    """The calls in a row of transformers': their names, and whether it holds them itself (ms-swift).

    `evaluated` is the step of the evaluation that those before went with, if there was one since the row before.
    """

    names: tuple[str, ...]
    in_row: bool
    evaluated: int | None


@dataclass
class LoggedSteps:
    """The steps of one history so far; `calls` are those of the rows that may stand for several steps.

    `again` are the steps that were timed more than once, each with the two rows' numbers.
    """

    shown_as: str
    records: dict[int, StepRecord] = field(default_factory=dict)
    timed: set[int] = field(default_factory=set)
    again: list[tuple[int, int, int]] = field(default_factory=list)
    calls: dict[int, _Calls] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    given_up: set[int] = field(default_factory=set)
    restarts: list[Restart] = field(default_factory=list)
    written_by: str = ""

    def add(self, record: StepRecord, timed: bool, calls: _Calls | None = None) -> None:
        """Adds a row; `calls` are those in it, where it may stand for several steps."""
        step = record.step
        went_back = timed and bool(self.order) and step <= self.order[-1]
        if went_back and len(self.order) > 1 and step <= self.order[0]:
            # Began anew: what was logged before is of another training.
            self.given_up |= self.timed
            for kept in (self.records, self.timed, self.again, self.calls, self.order, self.restarts):
                kept.clear()
        earlier = self.records.get(step)
        if earlier is not None and not timed:
            more = {name: value for name, value in record.scalars.items() if name not in earlier.scalars}
            self.records[step] = replace(earlier, scalars={**earlier.scalars, **more})
            return
        if timed:
            if earlier is not None and step in self.timed:
                self.again.append((step, earlier.line, record.line))
            elif earlier is not None:
                record = replace(record, scalars={**earlier.scalars, **record.scalars})
            before = self.records[self.order[-1]] if self.order else None
            fell = counter_drops(before, record) if before is not None and not went_back else []
            if before is not None and fell:
                self.restarts.append(Restart(before, record, fell))
            if went_back or fell:
                record = replace(record, resumed=True)
            self.timed.add(step)
            self.order.append(step)
            self.calls.pop(step, None)
            if calls is not None:
                self.calls[step] = calls
        self.records[step] = record

    def read(self, windows: Sequence[int], known: bool, swift: bool) -> SourceRead:
        """The timed steps, and what was odd; `read_steps` says what the arguments are."""
        found = SourceRead({step: record for step, record in self.records.items() if step in self.timed})
        found.repeated = {step for step, _, _ in self.again}
        found.written_by = self.written_by
        if self.again:
            step, earlier, later = self.again[0]
            text = (
                f"{self.shown_as} times {len(self.again)} steps more than once; the later times count (step {step}, "
                f"say, in records {earlier} and {later})"
            )
            found.verdicts.append(Verdict("warning", "duplicate-step", text))
        if self.given_up:
            found.verdicts.append(anew_verdict(self.shown_as, self.order[0], self.given_up))
        sizes = {s: n for s, n in zip(self.order, windows, strict=True) if s in self.calls}
        for step, size in sizes.items():
            if size > 1:
                record = found.records[step]
                found.records[step] = replace(record, scalars={**record.scalars, STEPS_LOGGED: float(size)})
        restarts = [replace(one, after=found.records[one.after.step]) for one in self.restarts]
        found.verdicts += restart_verdicts(restarts, self.shown_as, lambda _: "import the log of each by itself")
        found.verdicts += window_verdicts(self.shown_as, list(sizes.values()))
        if swift:
            # What it logged is the last step's, and the step the mean of several.
            if any(size > 1 for size in windows) or (not known and any(step > 1 for step in sizes)):
                found.verdicts += self._last_calls(found)
        else:
            found.verdicts += self._means(found, sizes, known)
        return found

    def _last_calls(self, found: SourceRead) -> list[Verdict]:
        """Makes ms-swift's calls no phases."""
        having = [step for step, calls in self.calls.items() if calls.names]
        for step in having:
            record, calls = found.records[step], self.calls[step].names
            scalars = {name: value for name, value in record.scalars.items() if name not in calls}
            last = {LAST_CALL + name.partition(".")[2]: record.scalars[name] for name in calls}
            found.records[step] = replace(record, scalars=scalars | last)
        text = (
            f"{self.shown_as}: ms-swift hands wandb the last call of each timer alone, and its rows stand, or may "
            "stand, for several steps (logging_steps): the timers' seconds are of the last step and are no phases "
            f"({LAST_CALL}*). With logging_steps 1 they are"
        )
        return [Verdict("warning", "last-calls-only", text)] if having else []

    def _means(self, found: SourceRead, sizes: dict[int, int], known: bool) -> list[Verdict]:
        """Makes means of the sums of TRL's calls; those that are of nobody knows how many steps do not count."""
        fewer, unknown = [], []
        means: set[str] = set()
        for step, size in sizes.items():
            names, evaluated = self.calls[step].names, self.calls[step].evaluated
            if not names and evaluated is None:
                continue
            of = size if known or step == 1 else 0
            if evaluated is not None:
                of = min(step - evaluated, size) if known else step - evaluated
            if of <= 0:
                unknown.append(step)
                continue
            if evaluated is not None and of < size:
                fewer.append((step, of, size))
            means.update(names)
            record = found.records[step]
            mean = {name: record.scalars[name] / of for name in names}
            found.records[step] = replace(record, scalars={**record.scalars, **mean})
        for step in unknown:
            record, names = found.records[step], self.calls[step].names
            scalars = {name: value for name, value in record.scalars.items() if name not in names}
            # A phase that is not there took no time, and this one did where other steps have it.
            found.records[step] = replace(record, scalars=scalars | dict.fromkeys(means, math.nan))
        verdicts = []
        if fewer:
            step, of, size = fewer[0]
            text = (
                f"{self.shown_as}: {count_of(len(fewer), 'row')} had an evaluation among the steps that they stand "
                f"for: their phases are means of the steps after it (step {step}, say, of {of} of {size})"
            )
            verdicts.append(Verdict("warning", "evaluation-in-window", text))
        if unknown:
            text = (
                f"{self.shown_as}: nothing tells of how many steps the timers' calls of "
                f"{count_of(len(unknown), 'step')} ({', '.join(map(str, unknown[:5]))}"
                f"{', ...' if len(unknown) > 5 else ''}) are: "
                + ("such a step does not count" if means else "no phases, only the steps")
            )
            verdicts.append(Verdict("warning", "calls-left-out", text))
        return verdicts


def anew_verdict(shown_as: str, first: int, given_up: Collection[int]) -> Verdict:
    """Says that a run began anew at its step `first`, and that the steps of the training before are left out."""
    text = (
        f"{shown_as}: the run began anew at step {first}; {count_of(len(given_up), 'step')} ({min(given_up)} to "
        f"{max(given_up)}) of the training before are of another one and are left out"
    )
    return Verdict("warning", "began-anew", text)


def read_steps(attempts: Sequence[LoggedSteps]) -> list[SourceRead]:
    """The steps of each attempt of a run, in the order of their start; a row of transformers' that stands for several
    steps says so (`STEPS_LOGGED`).

    Of how many steps a row holds the means is told by the steps of all attempts: one that ended after a single row says
    nothing about it by itself.
    """
    order = [step for steps in attempts for step in steps.order]
    windows = iter(windows_of(order))
    known = any(before < step for before, step in pairwise(order))
    swift = any(calls.in_row for steps in attempts for calls in steps.calls.values())
    return [steps.read(list(islice(windows, len(steps.order))), known, swift) for steps in attempts]
