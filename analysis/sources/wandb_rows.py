"""Reads the rows of a wandb history into training steps."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from sys import intern
from typing import Any

from common.messages import join_first
from common.shown import shown
from common.verdicts import Verdict, count_of
from trainers.logs.hf_rows import STEP_TIME, window_verdicts, windows_of
from trainers.logs.record import EVALUATED_STEP, STEPS_LOGGED, TIMERS, WALL, SourceRead, StepRecord, as_number
from trainers.logs.restarts import Restart, counter_drops, restart_verdicts
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
# Prefix of ms-swift's timers that are not phases (trainers/swift/timers.py).
LAST_CALL = "last_call_s/"

# A file or a cached page, the number of the record or line in it, and the row.
Row = tuple[Path, int, dict[str, Any]]


def steps_of(rows: Iterable[Row], shown_as: str) -> SourceRead:
    """A history's training steps, by the trainer's own counter (see `logged_steps`)."""
    return read_steps([logged_steps(rows, shown_as)])[0]


def _number(raw: object) -> float | None:
    try:
        return as_number(raw)
    except OverflowError:
        return None


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    """The numbers that the program logged, without wandb's own."""
    values = {name: raw if type(raw) is float else _number(raw) for name, raw in row.items() if name[:1] != "_"}
    return {intern(shown(name)): value for name, value in values.items() if value is not None}


def time_of(row: dict[str, Any]) -> float | None:
    return _number(row.get("_timestamp"))


def _record(step: int, numbers: dict[str, float], row: Row) -> StepRecord:
    file, number, values = row
    elapsed_s = _number(values.get("_runtime"))
    return StepRecord(step, {}, numbers, {}, None, file, number, time=time_of(values), elapsed_s=elapsed_s)


def logged_steps(rows: Iterable[Row], shown_as: str) -> LoggedSteps:
    """A history's rows by the trainer's own counter; `read_steps` makes its steps of them.

    Every number stays a scalar, timers too: the timer tree sorts them later. The seconds of TRL's and ms-swift's calls
    (`profiling/Time taken: GRPOTrainer.<name>`) are summed over the step that they led to. A step's other rows add
    their keys; the row with the timings overrides them. A row without timings (an evaluation, a row of the user's code,
    the closing summary) is not a training step. Of a step that is timed twice the later row counts. Where the first
    step comes again, the run started from scratch: everything before is left out.
    """
    steps = LoggedSteps(shown_as)
    # The seconds of the calls, and the step of an evaluation, since the row before.
    calls: dict[str, float] = {}
    evaluated: int | None = None
    others = _OtherTrainers()
    for entry in rows:
        row = entry[2]
        numbers = _numbers(row)
        if others.add(steps, numbers, entry):
            continue
        counter = numbers.get(VERL_STEP, numbers.get(HF_STEP))
        number = _number(row.get(WANDB_STEP)) if counter is None else counter
        step = int(number) if number is not None and number >= 1 and number.is_integer() else None
        verl_timers = any(name.startswith(TIMERS) for name in numbers)
        if verl_timers or VERL_STEP in numbers:
            if verl_timers:  # our own driver also logs TRL's timers
                numbers, calls = calls | numbers, {}
            if step is not None:
                steps.add(_record(step, numbers, entry), verl_timers)
            continue
        in_row = {name: value for name, value in numbers.items() if name.startswith(CALLS)}
        numbers = {name: value for name, value in numbers.items() if name not in in_row}
        timed = False
        if TRAINING & numbers.keys():
            # The calls since the row before led to this one; ms-swift's are in the row itself.
            of_row = _Calls(tuple({**calls, **in_row}), bool(in_row), evaluated)
            numbers |= calls | in_row
            timed = bool(of_row.names) or STEP_TIME in numbers
            calls, evaluated = {}, None
        elif any(name.startswith(EVALUATION) and name.endswith(EVALUATED) for name in numbers):
            # The evaluation's calls are among the calls so far, and no row says which.
            calls, evaluated = {}, int(counter) if counter is not None else None
        else:
            # A row of calls, or of the user's code, which may contain ms-swift's calls.
            for name, value in in_row.items():
                calls[name] = calls.get(name, 0.0) + value
        if counter is not None and step is not None and numbers.keys() - {HF_STEP, "train/epoch"}:
            steps.add(_record(step, numbers, entry), timed, of_row if timed else None)
    return steps


class _OtherTrainers:
    """Reads the rows of trainers that have their own names for steps and timers (`Logs.rows`)."""

    def __init__(self) -> None:
        self._known = [(trainer.logs.rows, trainer.name) for trainer in trainers() if trainer.logs.rows is not None]
        self._last_s: float | None = None
        self._evaluated = False

    def add(self, steps: LoggedSteps, numbers: dict[str, float], entry: Row) -> bool:
        """Adds a row with such a trainer's mark; returns whether the row has one.

        A history that has steps of verl or transformers has no others: a user's code may log such a name.
        """
        row = entry[2]
        if steps.order and not steps.written_by:
            return False
        found = next(((names, trainer) for names, trainer in self._known if names.mark in row), None)
        if found is None or VERL_STEP in numbers or STEP_TIME in numbers:
            self._evaluated |= any(names.evaluated in row for names, _ in self._known if names.evaluated)
            return False
        names, steps.written_by = found
        parsed = names.logged_step(numbers, _number(row.get(names.counter)))
        if parsed is None:
            return True
        if names.by_the_wall:
            # The seconds since the row before; the first row has none.
            now = _number(row.get("_runtime"))
            if now is not None and self._last_s is not None:
                parsed.numbers[WALL] = now - self._last_s
            self._last_s = now
        if names.evaluated and self._evaluated and parsed.timed:
            parsed.numbers[EVALUATED_STEP] = 0.0
            self._evaluated = False
        steps.add(_record(parsed.step, parsed.numbers, entry), parsed.timed)
        return True


@dataclass(frozen=True, slots=True)
class _Calls:
    """The timer calls that belong to a row of transformers."""

    names: tuple[str, ...]
    in_row: bool
    """Whether the row itself has them (ms-swift)."""
    evaluated: int | None
    """The step of an evaluation since the row before: the calls before it are not known."""


@dataclass
class LoggedSteps:
    """The steps of one history so far."""

    shown_as: str
    records: dict[int, StepRecord] = field(default_factory=dict)
    timed: set[int] = field(default_factory=set)
    again: list[tuple[int, int, int]] = field(default_factory=list)
    """The steps that were timed twice, each with the two rows' numbers."""
    calls: dict[int, _Calls] = field(default_factory=dict)
    """By step, of the rows that may stand for several steps."""
    order: list[int] = field(default_factory=list)
    left_out: set[int] = field(default_factory=set)
    """Steps of a training before the run started from scratch."""
    restarts: list[Restart] = field(default_factory=list)
    written_by: str = ""

    def add(self, record: StepRecord, timed: bool, calls: _Calls | None = None) -> None:
        """Adds a row; `calls` where it may stand for several steps."""
        step = record.step
        went_back = timed and bool(self.order) and step <= self.order[-1]
        if went_back and len(self.order) > 1 and step <= self.order[0]:
            # The run started from scratch: the rows before are of another training.
            self.left_out |= self.timed
            for earlier_training in (self.records, self.timed, self.again, self.calls, self.order, self.restarts):
                earlier_training.clear()
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
            if self.order and not went_back and (fell := counter_drops(self.records[self.order[-1]], record)):
                self.restarts.append(Restart(self.records[self.order[-1]], record, fell))
                went_back = True
            if went_back:
                record = replace(record, resumed=True)
            self.timed.add(step)
            self.order.append(step)
            self.calls.pop(step, None)
            if calls is not None:
                self.calls[step] = calls
        self.records[step] = record

    def read(self, windows: Sequence[int], gaps_known: bool, swift: bool) -> SourceRead:
        """The timed steps and the findings; `read_steps` defines the arguments."""
        timed = [record for step, record in self.records.items() if step in self.timed]
        more: list[Verdict] = []
        for divide in (trainer.logs.training_steps for trainer in trainers() if trainer.logs.training_steps):
            timed, verdicts = divide(timed, self.shown_as)
            more += verdicts
        found = SourceRead({record.step: record for record in timed}, more)
        found.repeated = {step for step, _, _ in self.again}
        found.written_by = self.written_by
        if self.again:
            step, earlier, later = self.again[0]
            text = (
                f"{self.shown_as} times {len(self.again)} steps more than once; the later times count (for example "
                f"step {step}, in records {earlier} and {later})"
            )
            found.verdicts.append(Verdict("warning", "duplicate-step", text))
        if self.left_out:
            found.verdicts.append(restarted_verdict(self.shown_as, self.order[0], self.left_out))
        sizes = {s: n for s, n in zip(self.order, windows, strict=True) if s in self.calls}
        for step, size in sizes.items():
            if size > 1:
                _add_scalars(found, step, {STEPS_LOGGED: float(size)})
        restarts = [replace(one, after=found.records[one.after.step]) for one in self.restarts]
        found.verdicts += restart_verdicts(restarts, self.shown_as, lambda _: "import the log of each by itself")
        found.verdicts += window_verdicts(self.shown_as, list(sizes.values()))
        if not swift:
            found.verdicts += self._divide_calls(found, sizes, gaps_known)
        elif any(size > 1 for size in windows) or (not gaps_known and any(step > 1 for step in sizes)):
            found.verdicts += self._drop_last_calls(found)
        return found

    def _drop_last_calls(self, found: SourceRead) -> list[Verdict]:
        """Renames ms-swift's calls, so that they are not phases: they are of the last step, the row of several."""
        steps = {step: calls.names for step, calls in self.calls.items() if calls.names}
        for step, names in steps.items():
            scalars = found.records[step].scalars
            last = {LAST_CALL + name.partition(".")[2]: scalars[name] for name in names}
            _add_scalars(found, step, last, without=names)
        text = (
            f"{self.shown_as}: ms-swift gives wandb only the last call of each timer, and its rows stand, or may "
            "stand, for several steps (logging_steps). The timers' seconds are those of the last step and are not "
            f"phases ({LAST_CALL}*). With logging_steps 1 they are"
        )
        return [Verdict("warning", "last-calls-only", text)] if steps else []

    def _divide_calls(self, found: SourceRead, sizes: dict[int, int], gaps_known: bool) -> list[Verdict]:
        """Turns the sums of TRL's calls into means; a sum over an unknown number of steps does not count."""
        fewer, unknown = [], []
        means: set[str] = set()
        for step, size in sizes.items():
            names, evaluated = self.calls[step].names, self.calls[step].evaluated
            if not names and evaluated is None:
                continue
            count = size if gaps_known or step == 1 else 0
            if evaluated is not None:
                count = min(step - evaluated, size) if gaps_known else step - evaluated
            if count <= 0:
                unknown.append(step)
                continue
            if evaluated is not None and count < size:
                fewer.append((step, count, size))
            means.update(names)
            scalars = found.records[step].scalars
            _add_scalars(found, step, {name: scalars[name] / count for name in names})
        for step in unknown:
            # A missing phase would count as 0 s; this one took time where other steps have it.
            _add_scalars(found, step, dict.fromkeys(means, math.nan), without=self.calls[step].names)
        verdicts = []
        if fewer:
            step, count, size = fewer[0]
            text = (
                f"{self.shown_as}: {count_of(len(fewer), 'row')} had an evaluation among the steps that they stand "
                f"for: their phases are means of the steps after it (for example step {step}: of {count} of {size})"
            )
            verdicts.append(Verdict("warning", "evaluation-in-window", text))
        if unknown:
            text = (
                f"{self.shown_as}: the timers' calls of {count_of(len(unknown), 'step')} ({join_first(unknown, 5)}) "
                "are sums over an unknown number of steps: "
                + ("these steps do not count" if means else "no phases, only the steps")
            )
            verdicts.append(Verdict("warning", "calls-left-out", text))
        return verdicts


def _add_scalars(found: SourceRead, step: int, more: dict[str, float], without: Collection[str] = ()) -> None:
    record = found.records[step]
    kept = {name: value for name, value in record.scalars.items() if name not in without}
    found.records[step] = replace(record, scalars=kept | more)


def restarted_verdict(shown_as: str, first: int, left_out: Collection[int]) -> Verdict:
    """The finding that a run started from scratch at its step `first`, so that the steps before are left out."""
    text = (
        f"{shown_as}: the run started from scratch at step {first}; {count_of(len(left_out), 'step')} "
        f"({min(left_out)} to {max(left_out)}) of the training before it are left out"
    )
    return Verdict("warning", "began-anew", text)


def read_steps(attempts: Sequence[LoggedSteps]) -> list[SourceRead]:
    """The steps of each attempt of a run, in the order of their start.

    A row of transformers that stands for several steps has their number (`STEPS_LOGGED`). The number follows from the
    gaps between the steps of all attempts: an attempt that ended after a single row has no gap.
    """
    order = [step for steps in attempts for step in steps.order]
    windows = iter(windows_of(order))
    gaps_known = any(before < step for before, step in pairwise(order))
    swift = any(calls.in_row for steps in attempts for calls in steps.calls.values())
    return [steps.read(list(islice(windows, len(steps.order))), gaps_known, swift) for steps in attempts]
