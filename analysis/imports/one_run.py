"""Finds out which logs of an arm are one run, joins the steps of its logs, and where it goes on with other settings.

Its steps from there on are another measurement (docs/import.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any

from common.contracts import LaterSettings
from common.dotted import as_text, flatten
from common.errors import UserError
from common.messages import join_first, shortened
from common.redaction import without_secrets
from common.verdicts import Verdict, count_of
from trainers.logs.hf_rows import STEP_TIME
from trainers.logs.record import STEPS_LOGGED, TIMERS, WALL, Imported, LaterConfiguration, SourceRead, StepRecord
from trainers.logs.restarts import CLOCK_TOLERANCE_S
from trainers.registry import trainers

ONE_RUN = "one-run"
"""The code of the finding that several sources are one run."""
# Doubles that were written as text and read again differ by less.
_RELATIVE = 1e-9
# Two runs' seconds are equal by chance where few digits are printed: so many different ones must be so many times what
# rounding hides away from the step before.
_CERTAIN, _ROUNDINGS = 4, 10.0
# Names that a run keeps when it is started again.
_IDENTITY = ("seed", "experiment_name", "run_name")

_MOST_SHOWN, _LONGEST_SHOWN = 3, 40

Seconds = Mapping[int, tuple[float, float]]
"""Step -> its seconds, and half a unit of their last digit."""


class OneRun:
    """The logs of one run, in the sequence of their steps."""

    def __init__(self, logs: Sequence[tuple[str, Imported]]) -> None:
        self.logs = sorted(logs, key=lambda log: (min(log[1].read.records), max(log[1].read.records), log[0]))
        steps = sorted({step for _, log in logs for step in log.read.records})
        self.first, self.last = steps[0], steps[-1]
        rows = self.logs[0][1].read.records[self.first].scalars.get(STEPS_LOGGED)
        self.gap = int(rows or min((b - a for a, b in pairwise(steps)), default=1))
        self.named = " and ".join(source for source, _ in self.logs)
        self.folder = Path(self.logs[-1][0]).parent

    def may_go_on_with(self, part: OneRun) -> bool:
        """Whether a part may be the run's next one: it begins later, and brings new steps.

        A start from the last checkpoint trains fewer steps again than were trained before it.
        """
        again, before = self.last - part.first + part.gap, part.first - self.first
        return part.first > part.gap and before > 0 and part.last > self.last and again <= before


def runs_among(read: Mapping[str, Imported]) -> tuple[list[list[str]], list[str]]:
    """The runs in an arm's logs, each as a list of its logs; and a sentence for each log that is left out.

    The sequence of the logs changes nothing.
    """
    parts: list[OneRun] = []
    for log in OneRun(list(read.items())).logs:
        same = [one for one in parts if any(tell_the_same_steps(log[1].read, other.read) for _, other in one.logs)]
        parts = [one for one in parts if one not in same]
        parts.append(OneRun([*(other for one in same for other in one.logs), log]))
    runs: list[OneRun] = []
    sentences: list[str] = []
    for part in sorted(parts, key=lambda one: (one.first, one.last, one.named)):
        before = {run: two_runs(run, part) for run in runs if run.may_go_on_with(part)}
        fitting = [run for run, why in before.items() if not why]
        near = [run for run in fitting if run.folder == part.folder] or fitting
        if before and len(near) != 1:
            names = " or ".join(run.named for run in near or before)
            why = f"it may go on with {names}: give a folder with the logs of each run"
            if not near:
                why = f"it does not go on with {names}: {next(iter(before.values()))}"
            sentences.append(f"{part.named} begins with step {part.first} and is left out, because {why}")
        else:
            runs = [run for run in runs if run not in near]
            runs.append(OneRun([*(log for run in near for log in run.logs), *part.logs]))
    given = list(read)
    found = [[source for source, _ in run.logs] for run in runs]
    return sorted(found, key=lambda run: min(map(given.index, run))), sentences


def two_runs(run: OneRun, part: OneRun) -> str:
    """Why a part does not go on with a run, although its steps would: settings that differ, or clocks; else ""."""
    packages = {trainer.distribution for trainer in trainers()}

    def facts(log: Imported) -> dict[str, Any]:
        kept = kept_settings(log.config or log.overrides, identity=True)
        kept |= {f"the release of {name}": version for name, version in log.versions.items() if name in packages}
        return kept | ({"the list of GPUs": gpus} if (gpus := log.hardware.get("gpus")) else {})

    for known in [facts(log) for _, log in run.logs]:
        for other in [facts(log) for _, log in part.logs]:
            for key in sorted(known.keys() & other.keys()):
                if known[key] != other[key]:
                    return f"{key} is {other[key]}, not {known[key]}"
    end, start = (
        [one.time for _, log in side.logs for one in log.read.records.values() if one.time is not None]
        + [at for _, log in side.logs if (at := getattr(log, name)) is not None]
        for side, name in ((run, "finished"), (part, "started"))
    )
    return "it began before that had ended" if end and start and min(start) < max(end) - CLOCK_TOLERANCE_S else ""


def kept_settings(config: Mapping[str, Any], identity: bool) -> dict[str, Any]:
    """The settings that a run keeps when it is started again, by dotted key; hosts, places and trackers may change.

    A path is its last part, as its folders may be those of another machine. `identity`: also what names the run.
    """
    names = frozenset().union(*(trainer.bookkeeping for trainer in trainers()))
    resumable = [pattern for trainer in trainers() for pattern in trainer.resumable]
    kept: dict[str, Any] = {}
    for key, value in flatten(config).items():
        name = key.rpartition(".")[2]
        may_change = name in names or name.endswith("_dir") or any(fnmatchcase(key, pattern) for pattern in resumable)
        if identity if name in _IDENTITY or name.endswith("seed") else not may_change:
            kept[key] = value.rstrip("/").rpartition("/")[2] if isinstance(value, str) else value
    return kept


def tell_the_same_steps(a: SourceRead, b: SourceRead) -> bool:
    """Whether two logs are of the same steps: every number that both have agrees, and enough seconds are certain."""
    steps = sorted(a.records.keys() & b.records.keys())
    if not steps or any(disagreement(a.records[step], b.records[step]) for step in steps):
        return False
    for name in filter(lambda name: name.startswith(TIMERS), a.records[steps[0]].scalars):
        pair = [[(step, read.records[step]) for step in steps] for read in (a, b)]
        seconds = [{n: (r.scalars[name], r.rounding.get(name, 0.0)) for n, r in of if name in r.scalars} for of in pair]
        if same_seconds(*seconds):
            return True
    return False


def same_seconds(a: Seconds, b: Seconds) -> bool:
    """Whether all steps that two runs have took equally long within rounding, and not by chance."""
    certain, before = set[float](), math.inf
    for step in sorted(a.keys() & b.keys()):
        (x, off), (y, other) = a[step], b[step]
        if not _agree(x, y, off + other):
            return False
        if abs(x - before) > max(_ROUNDINGS * (off + other), _RELATIVE * abs(x)):
            certain.add(x)
        before = x
    return len(certain) >= _CERTAIN


def _agree(x: float, y: float, rounding: float) -> bool:
    """Whether two numbers are one within rounding; a missing one agrees with any."""
    return x == y or math.isnan(x) or math.isnan(y) or abs(x - y) <= rounding + _RELATIVE * max(abs(x), abs(y))


def disagreement(a: StepRecord, b: StepRecord) -> str:
    """The first number of a step that two logs have differently; "" without any."""
    scalars, others = dict(a.scalars), dict(b.scalars)
    for name in scalars:
        allowed = a.rounding.get(name, 0.0) + b.rounding.get(name, 0.0)
        if name in others and name != STEPS_LOGGED and not _agree(scalars[name], others[name], allowed):
            return name
    return ""


def merged(reads: Sequence[SourceRead], run_id: str) -> SourceRead:
    """The steps of several sources of one run.

    Of steps that two have, each value must agree within both roundings; the more precise one counts, or the first.
    Where a source begins later and has other values, the run was started again, and the later source's steps count.
    `UserError` names both places where sources disagree otherwise.
    """
    if len(reads) == 1:
        return reads[0]
    found, again, starts, named = SourceRead(), set[int](), list[int](), list[str]()
    for read in sorted((read for read in reads if read.records), key=lambda one: (min(one.records), max(one.records))):
        found.verdicts += read.verdicts
        found.repeated |= read.repeated
        first, last = min(read.records), max(read.records)
        common = read.records.keys() & found.records.keys()
        later = bool(found.records) and first > min(found.records) and last > max(found.records)
        differs = any(disagreement(found.records[step], read.records[step]) for step in common) if common else True
        if later and differs and (common or first > max(found.records)):
            starts.append(first)
            again |= common
            common = set()
        named.append(f"{read.records[first].file} (steps {first} to {last})")
        for step, record in read.records.items():
            found.records[step] = _joined(found.records[step], record, run_id) if step in common else record
    found.records = dict(sorted(found.records.items()))
    found.repeated |= again
    for step in starts:
        found.records[step] = replace(found.records[step], resumed=True)
    text = f"{run_id}: {', '.join(named[:-1])} and {named[-1]} are one run"
    text += f", started again at step {join_first(starts)}: the first step after a start does not count" * bool(starts)
    text += f". Of {count_of(len(again), 'step')} that were trained again the later count" * bool(again)
    found.verdicts.append(Verdict("note", ONE_RUN, text))
    return found


def _joined(a: StepRecord, b: StepRecord, run_id: str) -> StepRecord:
    """A step of two sources; `UserError` where these disagree."""
    scalars, rounding, origins = dict(a.scalars), dict(a.rounding), dict(a.origins)
    if name := disagreement(a, b):
        (file_a, line_a), (file_b, line_b) = (one.origins.get(name, (one.file, one.line)) for one in (a, b))
        allowed = rounding.get(name, 0.0) + b.rounding.get(name, 0.0)
        raise UserError(
            f"run {run_id}, step {a.step}, {name}: {file_a}:{line_a} says {a.scalars[name]!r}, {file_b}:{line_b} says "
            f"{b.scalars[name]!r}, and rounding explains only {allowed:.3g}. "
            "Sources of one run must agree. These are of two runs, or one was changed: leave one out"
        )
    for name, value in b.scalars.items():
        if name == STEPS_LOGGED and name in scalars:
            # Computed from the rows before: the source that has more rows finds fewer steps, and is right.
            scalars[name] = min(value, scalars[name])
            continue
        precision = b.rounding.get(name, 0.0)
        more_precise = name not in scalars or math.isnan(scalars[name]) or precision < rounding.get(name, 0.0)
        if name in scalars and (math.isnan(value) or not more_precise):
            continue
        scalars[name] = value
        origins[name] = b.origins.get(name, (b.file, b.line))
        rounding.pop(name, None)
        if precision:
            rounding[name] = precision
    if STEP_TIME in scalars and scalars.pop(WALL, None) is not None:
        # The clock of a source without the trainer's own time.
        rounding.pop(WALL, None)
    samples = {**b.samples, **a.samples}
    resumed = a.resumed if b.resumed is None else b.resumed or bool(a.resumed)
    time = a.time if a.time is not None else b.time
    return replace(a, scalars=scalars, rounding=rounding, origins=origins, samples=samples, resumed=resumed, time=time)


def configurations(parts: Sequence[Imported]) -> tuple[dict[str, Any], list[LaterSettings]]:
    """A run's first configuration, {} if no source has one, and the later ones that change what a step is.

    Sources of another format than the first with a configuration may write the same settings otherwise: left out.
    """
    form = next((part.format for part in parts if part.config), "")
    found = [
        one
        for part in parts
        if part.format == form and part.config
        for one in (LaterConfiguration(min(part.read.records, default=0), part.config), *part.later)
    ]
    found.sort(key=lambda one: one.from_step)
    later: list[LaterSettings] = []
    for one in found[1:]:
        before, after = (kept_settings(config, identity=False) for config in (found[0].config, one.config))
        both = {key: [before.get(key), after.get(key)] for key in sorted(before.keys() | after.keys())}
        if changed := {key: values for key, values in both.items() if values[0] != values[1]}:
            resolved = without_secrets(one.config)
            later.append({"from_step": one.from_step, "changed": without_secrets(changed), "resolved": resolved})
    return found[0].config if found else {}, later


def change_reason(later: Sequence[LaterSettings]) -> str:
    """Why the steps from the first change on do not count."""
    changed = later[0]["changed"].items()
    texts = [[shortened("nothing" if one is None else as_text(one), _LONGEST_SHOWN) for one in of] for _, of in changed]
    shown = [f"{key} {a} to {b}" for (key, _), (a, b) in zip(changed, texts, strict=True)]
    more = f" and {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
    return f"from step {later[0]['from_step']} on another configuration: {', '.join(shown[:_MOST_SHOWN])}{more}"
