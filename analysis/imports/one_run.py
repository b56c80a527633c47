"""Finds out which logs of an arm are one run: they tell the same steps, or go on with each other's (docs/import.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from common.dotted import flatten
from trainers.logs.record import STEPS_LOGGED, TIMERS, Imported, SourceRead, StepRecord
from trainers.logs.restarts import CLOCK_TOLERANCE_S
from trainers.registry import trainers

RELATIVE_TOLERANCE = 1e-9
"""Doubles that were written as text and read again differ by less."""
# Two runs' seconds are equal by chance where few digits are printed: so many different ones must be so many times what
# rounding hides away from the step before.
_CERTAIN, _ROUNDINGS = 4, 10.0
# Names that a run keeps when it is started again.
_IDENTITY = ("seed", "experiment_name", "run_name")


@dataclass(frozen=True)
class Log:
    """One log of an arm."""

    source: str
    content: Imported

    @property
    def records(self) -> Mapping[int, StepRecord]:
        return self.content.read.records


class RunLogs(list[Log]):
    """The logs of one run, in the sequence of their steps."""

    @property
    def first(self) -> int:
        return min(self[0].records)

    @property
    def last(self) -> int:
        return max(max(log.records) for log in self)

    @property
    def gap(self) -> int:
        """How far the counter goes from row to row."""
        return min((b - a for log in self for a, b in pairwise(sorted(log.records))), default=1)

    @property
    def from_the_beginning(self) -> bool:
        return self.first <= max(self.gap, int(self[0].records[self.first].scalars.get(STEPS_LOGGED, 1.0)))

    @property
    def named(self) -> str:
        return " and ".join(log.source for log in self)


def runs_among(read: Mapping[str, Imported]) -> tuple[list[list[str]], list[str]]:
    """The runs in an arm's logs, each as a list of its logs; and a sentence for each log that is left out.

    The sequence of the logs changes nothing.
    """
    runs: list[RunLogs] = []
    sentences: list[str] = []
    for part in sorted(_same_steps(read), key=lambda one: (one.first, one.last, one.named)):
        before = [run for run in runs if _may_go_on(run, part)]
        if not before:
            runs.append(part)
            continue
        apart = [why for run in before if (why := two_runs(run, part))]
        fitting = [run for run in before if not two_runs(run, part)]
        near = [run for run in fitting if _folder(run) == _folder(part)] or fitting
        if len(near) == 1:
            near[0].extend(part)
            continue
        names = " or ".join(run.named for run in near or before)
        why = f"it may go on with {names}: put the logs of each run into a folder"
        if not near:
            why = f"it does not go on with {names}: {apart[0]}"
        sentences.append(f"{part.named} begins with step {part.first} and is left out, because {why}")
    given = list(read)
    runs.sort(key=lambda run: min(given.index(log.source) for log in run))
    return [[log.source for log in run] for run in runs], sentences


def _folder(run: RunLogs) -> Path:
    return Path(run[-1].source).parent


def _same_steps(read: Mapping[str, Imported]) -> list[RunLogs]:
    """The logs, together where they tell the same steps."""
    found: list[RunLogs] = []
    for log in sorted((Log(*one) for one in read.items()), key=lambda log: (min(log.records), max(log.records))):
        same = [run for run in found if any(tell_the_same_steps(log.content.read, one.content.read) for one in run)]
        found = [run for run in found if run not in same]
        found.append(RunLogs([*(one for run in same for one in run), log]))
    return found


def _may_go_on(run: RunLogs, part: RunLogs) -> bool:
    """Whether a part may be the run's next one: it begins later, and brings new steps.

    A start from the last checkpoint trains fewer steps again than were trained before it.
    """
    again, before = run.last - part.first + part.gap, part.first - run.first
    return not part.from_the_beginning and before > 0 and run.last < part.last and again <= before


def two_runs(run: Sequence[Log], part: Sequence[Log]) -> str:
    """Why a part does not go on with a run, although its steps would: settings that differ, or clocks; else ""."""
    for a in run:
        for b in part:
            known, other = _settings(a.content), _settings(b.content)
            for key in sorted(known.keys() & other.keys()):
                if known[key] != other[key]:
                    return f"{key} is {other[key]}, not {known[key]}"
    ends = [end for log in run if (end := _clock(log.content)[1]) is not None]
    starts = [start for log in part if (start := _clock(log.content)[0]) is not None]
    return "it began before that had ended" if ends and starts and min(starts) < max(ends) - CLOCK_TOLERANCE_S else ""


def _settings(one: Imported) -> dict[str, Any]:
    """What a run keeps when it is started again; hosts, places and trackers may change."""
    names = frozenset().union(*(trainer.rules.bookkeeping for trainer in trainers())).difference(_IDENTITY)
    config = flatten(one.config) if one.config else one.overrides
    kept = {key: value for key, value in config.items() if key.rpartition(".")[2] not in names}
    packages = {trainer.distribution for trainer in trainers()}
    kept |= {f"the release of {name}": version for name, version in one.versions.items() if name in packages}
    return kept | ({"the list of GPUs": gpus} if (gpus := one.hardware.get("gpus")) else {})


def _clock(one: Imported) -> tuple[float | None, float | None]:
    """When a log's run began, or logged its first step, and when it ended, or logged its last."""
    times = [record.time for record in one.read.records.values() if record.time is not None]
    start = one.started if one.started is not None else min(times, default=None)
    return start, max(times, default=one.finished)


def tell_the_same_steps(a: SourceRead, b: SourceRead) -> bool:
    """Whether two logs are of the same steps: every number that both have agrees, and enough seconds are certain."""
    steps = sorted(a.records.keys() & b.records.keys())
    if not steps:
        return False
    names = a.records[steps[0]].scalars.keys() & b.records[steps[0]].scalars.keys()
    timers = sorted(name for name in names if name.startswith(TIMERS))
    if not any(same_seconds(seconds_of(a, name, steps), seconds_of(b, name, steps)) for name in timers):
        return False
    return all(same_step(a.records[step], b.records[step]) for step in steps)


Seconds = Mapping[int, tuple[float, float]]
"""Step -> its seconds, and half a unit of their last digit."""


def seconds_of(read: SourceRead, name: str, steps: Sequence[int]) -> Seconds:
    """A timer at these steps, where it is logged."""
    records = ((step, read.records[step]) for step in steps)
    return {step: (one.scalars[name], one.rounding.get(name, 0.0)) for step, one in records if name in one.scalars}


def same_seconds(a: Seconds, b: Seconds) -> bool:
    """Whether all steps that two runs have took equally long within rounding, and not by chance."""
    certain, before = set[float](), math.inf
    for step in sorted(a.keys() & b.keys()):
        (x, off), (y, other) = a[step], b[step]
        if not agree(x, y, off + other):
            return False
        if abs(x - before) > max(_ROUNDINGS * (off + other), RELATIVE_TOLERANCE * abs(x)):
            certain.add(x)
        before = x
    return len(certain) >= _CERTAIN


def agree(x: float, y: float, rounding: float) -> bool:
    """Whether two numbers are one within rounding; a missing one agrees with any."""
    return x == y or math.isnan(x) or math.isnan(y) or abs(x - y) <= rounding + RELATIVE_TOLERANCE * max(abs(x), abs(y))


def same_step(a: StepRecord, b: StepRecord) -> bool:
    """Whether all numbers that two logs have of a step agree."""
    scalars, others = dict(a.scalars), dict(b.scalars)
    return all(
        agree(scalars[name], others[name], a.rounding.get(name, 0.0) + b.rounding.get(name, 0.0))
        for name in scalars.keys() & others.keys() - {STEPS_LOGGED}
    )
