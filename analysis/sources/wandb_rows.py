"""Which training step does each row of a wandb history belong to?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from analysis.sources.hf_logs import STEP_TIME, window_verdict, windows_of
from analysis.sources.record import STEPS_LOGGED, TIMERS, SourceRead, StepRecord, as_number
from analysis.verdicts import Verdict

# How a row tells its training step: verl's by its own counter, TRL's and ms-swift's by transformers' (wandb's own
# `_step` runs ahead of that), or by wandb's, which verl sets.
VERL_STEP = "training/global_step"
HF_STEP = "train/global_step"
WANDB_STEP = "_step"
# What TRL and ms-swift log with every call of a timer: a row of its own, when the call has ended. It has no step, or
# that of the row before: transformers' wandb callback defines its counter with step_sync, and wandb fills it in.
CALLS = "profiling/"
EVALUATION = "eval/"

# A file or a cached page, the number of the record or line in it, and the row.
Row = tuple[Path, int, dict[str, Any]]


def steps_of(rows: Iterable[Row], shown_as: str, flat: bool = False) -> SourceRead:
    """A history's training steps, by the trainer's own counter.

    Phases are the keys `timing_s/<path>`; with `flat` they stay among the scalars, for the tree to sort, and the
    seconds of TRL's and ms-swift's calls (`profiling/Time taken: GRPOTrainer.<name>`) are there summed over the step
    that they led to. A row of theirs that stands for several steps says so (`STEPS_LOGGED`). A step's other rows add
    their keys; where two rows disagree, the row with the timings counts. A row without timings (an evaluation, the
    closing summary) is no training step. A step that comes again after it was timed was trained again: the later one
    counts.
    """
    return _flat_steps(rows, shown_as) if flat else _nested_steps(rows, shown_as)


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    numbers = {}
    for name, value in row.items():
        number = value if type(value) is float else as_number(value)
        if number is not None and not name.startswith("_"):
            numbers[name] = number
    return numbers


def _time(row: dict[str, Any]) -> float | None:
    return as_number(row.get("_timestamp"))


def _step(value: float | None) -> int | None:
    return int(value) if value is not None and value >= 1 and value == int(value) else None


def _nested_steps(rows: Iterable[Row], shown_as: str) -> SourceRead:
    steps = _Steps(shown_as)
    for file, number, row in rows:
        numbers = _numbers(row)
        step = _step(numbers.pop(HF_STEP, None))
        if step is None:
            continue
        phases = {k.removeprefix(TIMERS): v for k, v in numbers.items() if k.startswith(TIMERS)}
        scalars = {k: v for k, v in numbers.items() if not k.startswith(TIMERS)}
        steps.add(StepRecord(step, phases, scalars, {}, None, file, number, time=_time(row)), bool(phases))
    return steps.read()


def _flat_steps(rows: Iterable[Row], shown_as: str) -> SourceRead:
    steps = _Steps(shown_as)
    calls: dict[str, float] = {}
    for file, number, row in rows:
        numbers = _numbers(row)
        logged = numbers.get(VERL_STEP, numbers.get(HF_STEP))
        verl = any(name.startswith(TIMERS) for name in numbers)
        counted = numbers.keys() - {HF_STEP, "train/epoch"}
        if (logged is None and not verl) or (counted and all(name.startswith(CALLS) for name in counted)):
            for name, value in numbers.items():
                if name.startswith(CALLS):
                    calls[name] = calls.get(name, 0.0) + value
            continue
        step = _step(as_number(row.get(WANDB_STEP)) if logged is None else logged)
        # The calls since the row before led to this one: to the step that it logs, or to an evaluation after it.
        # ms-swift's calls are in the row itself.
        if any(name.startswith(EVALUATION) for name in numbers) and STEP_TIME not in numbers and not verl:
            calls = {}
            numbers = {name: value for name, value in numbers.items() if not name.startswith(CALLS)}
        ours, calls = calls, {}
        if step is None:
            continue
        timed = verl or bool(ours) or any(name == STEP_TIME or name.startswith(CALLS) for name in numbers)
        record = StepRecord(step, {}, {**numbers, **ours}, {}, None, file, number, time=_time(row))
        steps.add(record, timed, tuple(ours), means=not verl)
    return steps.read()


@dataclass
class _Steps:
    """The steps so far."""

    shown_as: str
    records: dict[int, StepRecord] = field(default_factory=dict)
    timed: set[int] = field(default_factory=set)
    again: list[tuple[int, StepRecord, StepRecord]] = field(default_factory=list)
    calls: dict[int, tuple[str, ...]] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    means: set[int] = field(default_factory=set)

    def add(self, record: StepRecord, timed: bool, calls: tuple[str, ...] = (), means: bool = False) -> None:
        """Adds a row; `calls` are the sums in it, and `means` says that it may stand for several steps."""
        step = record.step
        earlier = self.records.get(step)
        if earlier is not None and not timed:
            for name, value in record.scalars.items():
                earlier.scalars.setdefault(name, value)
            return
        if timed:
            went_back = bool(self.order) and step <= self.order[-1]
            if earlier is not None and step in self.timed:
                self.again.append((step, earlier, record))
            elif earlier is not None:
                record = replace(record, scalars={**earlier.scalars, **record.scalars})
            if went_back:
                record = replace(record, resumed=True)
            self.timed.add(step)
            self.order.append(step)
            self.calls[step] = calls
            (self.means.add if means else self.means.discard)(step)
        self.records[step] = record

    def read(self) -> SourceRead:
        """The timed steps, and what was odd."""
        found = SourceRead({step: record for step, record in self.records.items() if step in self.timed})
        found.again = {step for step, _, _ in self.again}
        if self.again:
            step, earlier, later = self.again[0]
            text = (
                f"{self.shown_as} times {len(self.again)} steps more than once; the later times count (step {step}, "
                f"say, in records {earlier.line} and {later.line})"
            )
            found.verdicts.append(Verdict("warning", "duplicate-step", text))
        windows = self._windows()
        for step, size in windows.items():
            scalars = found.records[step].scalars
            scalars.update({name: scalars[name] / size for name in self.calls[step]})
            scalars[STEPS_LOGGED] = float(size)
        if windows:
            found.verdicts.append(window_verdict(self.shown_as, windows.values()))
        return found

    def _windows(self) -> dict[int, int]:
        """How many steps each record stands for, where that is more than one."""
        # A single row has the calls of all steps since the start.
        alone = len(self.order) == 1 and self.calls[self.order[0]]
        sizes = self.order if alone else windows_of(self.order)
        windows = dict(zip(self.order, sizes, strict=True))
        return {step: size for step, size in windows.items() if size > 1 and step in self.means}
