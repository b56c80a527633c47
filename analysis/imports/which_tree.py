"""Chooses the timer tree of an imported run, by its trainer's release and by the training loop."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from analysis.imports.source_check import require_of_arm
from common.errors import UserError
from common.messages import join_first
from common.verdicts import Verdict
from trainers.logs.record import TIMERS, Imported, SourceRead, StepRecord
from trainers.registry import mode_of, releases, releases_near, trainer_named, tree_for, trees_of
from trainers.timers.exclusive import overruns
from trainers.timers.flat import nest_timers, timer_places
from trainers.timers.own import own_tree
from trainers.timers.tree import NATIVE, TimerTree, release_of

NEAREST = "release-by-data"
"""The code of the finding that a run's release is not named, or not declared."""
# In this share of the steps the sums must close; more steps than these tell nothing new.
_CLOSING, _MOST_STEPS = 0.95, 400
# The name of verl's default loop in `import.mode`.
SYNCHRONOUS = "sync"
# A loop with the same timers as the synchronous one (verl 0.9.1 trainer_separate_async.py).
UNMARKED = "separate_async"
# The lag, in versions of the weights, of a step's oldest tokens: 0 in a synchronous loop. Every loop of trainer.use_v1
# logs it with each step (verl 0.9.1 trainer/ppo/v1/trainer_base.py, _compute_metrics).
STALENESS = "training/off_policy/trajectory_staleness_worst/max"
# The first steps of every loop have responses of the newest weights.
LEAST_FRESH_STEPS = 3


def tree_of(
    spec: Mapping[str, Any], facts: Mapping[str, Any], parts: Sequence[Imported], read: SourceRead
) -> tuple[TimerTree, str, list[Verdict]]:
    """The tree of the run's timers and its trainer's version: as given, otherwise as the sources say."""
    run_id, trainer, engine = str(spec["run_id"]), str(spec["trainer"]), str(spec["engine"])
    # Checked first: a log of another trainer has none of the arm's timers.
    by_name = list(zip(map(str, facts["sources"]), parts, strict=True))
    require_of_arm(spec, by_name)
    if any(part.tree is not None for part in parts):
        release = str(facts.get("version") or "")
        own = own_tree(trainer, release, engine, [part.tree for part in parts])
        return own, release, list(_own_tree_verdicts(own, read, run_id))
    packages = (trainer_named(trainer).distribution, trainer)
    found = [version for part in parts for name in packages if (version := part.versions.get(name))]
    version = str(facts.get("version") or next(iter(found), ""))
    verdicts: list[Verdict] = []
    if found and release_of(found[0]) != release_of(version):
        text = f"{run_id}: its source says {trainer} {found[0]}, its arm {version}: the arm's version counts"
        verdicts.append(Verdict("warning", "version-differs", text))
    declared = version and any(tree.matches(version) for tree in trees_of(trainer))
    choose = _tree_of_release if declared else _tree_of_nearest_release
    tree, more = choose(spec, facts, parts, read, version)
    return tree, version, [*verdicts, *more]


def _tree_of_nearest_release(
    spec: Mapping[str, Any], facts: Mapping[str, Any], parts: Sequence[Imported], read: SourceRead, version: str
) -> tuple[TimerTree, list[Verdict]]:
    """The tree of a release that is not named (version ""), or not declared.

    Of the declared releases under which the sums close, it is the one that knows most of the run's timers; of several
    the nearest, which is the newest for one that is not named.
    """
    trainer, best, refused = str(spec["trainer"]), None, None
    records = list(read.records.values())[:: max(1, len(read.records) // _MOST_STEPS)]
    usual = ("", NATIVE)
    for series in releases_near(trainer, version):
        try:
            tree, verdicts = _tree_of_release(spec, facts, parts, read, series)
        except UserError as error:
            refused = refused or error
            continue
        closes, known = _fit(tree, records)
        # Of a loop that the settings or the timers show, other releases know more timers only by misreading them.
        doubtful = any(verdict.level == "warning" for verdict in verdicts)
        fit = (tree.mode not in usual, closes, known, not doubtful)
        if best is None or fit > best[0]:
            best = fit, tree, verdicts
    if best is None:
        raise refused or UserError(f"{spec['run_id']}: no timers of {trainer} are declared")
    (_, closes, *_), tree, verdicts = best
    why = f"its log does not name its release of {trainer}"
    if version:
        why = f"the timers of {trainer} {version} are not declared (declared: {', '.join(releases(trainer))})"
    text = f"{spec['run_id']}: {why}. Its timers are read as those of {tree.name}"
    text += "" if closes else ", although phases are longer there than their parent"
    return tree, [Verdict("note" if closes else "warning", NEAREST, text), *verdicts]


def _fit(tree: TimerTree, records: Sequence[StepRecord]) -> tuple[bool, int]:
    """Whether the sums close in nearly all steps, and how many of the timers a tree knows."""
    places, _ = timer_places([one.scalars for one in records], tree, "", [one.rounding for one in records])
    known, closing = set[str](), 0
    for record in records:
        nested = nest_timers(record.scalars, tree, places)
        rounding: dict[str, float] = {}
        for key, name in nested.names.items():
            if name.startswith(TIMERS):
                known.add(key)
                path = name.removeprefix(TIMERS)
                rounding[path] = rounding.get(path, 0.0) + record.rounding.get(key, 0.0)
        closing += not overruns(nested.phases, rounding)
    return closing >= _CLOSING * len(records), len(known)


def _tree_of_release(
    spec: Mapping[str, Any], facts: Mapping[str, Any], parts: Sequence[Imported], read: SourceRead, version: str
) -> tuple[TimerTree, list[Verdict]]:
    """The declared tree of a release and of the given loop, otherwise of the loop that settings or timers show."""
    run_id, trainer, engine = str(spec["run_id"]), str(spec["trainer"]), str(spec["engine"])
    if given := str(facts.get("mode") or ""):
        return tree_for(trainer, version, engine, given.removeprefix(SYNCHRONOUS)), []
    settings = next((p.config for p in parts if p.config), {}) or next((p.overrides for p in parts if p.overrides), {})
    our_timers = any(name.startswith(TIMERS + "step") for record in read.records.values() for name in record.scalars)
    native = any(tree.mode == NATIVE for tree in trees_of(trainer))
    if native and not (our_timers and trainer_named(trainer).driver):
        mode = NATIVE
    else:
        mode = mode_of(trainer, version, spec, {"resolved": {"trainer": settings}})
    tree = tree_for(trainer, version, engine, mode)
    loops = [t for t in trees_of(trainer) if t.matches(version) and t.has(engine)]
    other = _loop_by_timers(tree, loops, read, parts)
    if other is not None:
        text = (
            f"{run_id}: its timers are those of {other.name}, not of {tree.name}, and are read so; confirm it with "
            f"import.mode: {other.mode or SYNCHRONOUS} (compare: --mode)"
        )
        return other, [Verdict("warning", "mode-by-timers", text)]
    unmarked = next((t for t in loops if t.mode == UNMARKED), None)
    if unmarked is not None and not tree.mode and not settings:
        return _by_staleness(tree, unmarked, read, run_id)
    return tree, []


def _own_tree_verdicts(tree: TimerTree, read: SourceRead, run_id: str) -> Iterator[Verdict]:
    """Reports the steps without their total."""
    root = tree.phases[0].label
    without = [step for step, record in read.records.items() if TIMERS + root not in record.scalars]
    if without and len(without) < len(read.records):
        have = "has" if len(without) == 1 else "have"
        text = (
            f"{run_id}: {len(without)} of its {len(read.records)} steps {have} no {root} (step {join_first(without)}): "
            "a step without its total does not count"
        )
        yield Verdict("warning", "timings-missing", text)


def _loop_by_timers(
    tree: TimerTree, loops: Sequence[TimerTree], read: SourceRead, parts: Sequence[Imported]
) -> TimerTree | None:
    """The one other loop of a release whose marks the run logged, or that alone declares every timer; else None."""
    names = {name for step in read.records.values() for name in step.scalars}
    names = names.union(*(part.names_left_out for part in parts))
    marked = [t for t in loops if any(fnmatch.filter(names, mark) for mark in t.marks)]
    # The configuration counts among the asynchronous loops, of which only the whole step is timed.
    if len(marked) == 1 and marked[0] is not tree and not (tree.overlap and marked[0].overlap):
        return marked[0]
    # Most steps have the same names.
    steps = {tuple(step.scalars): step.scalars for step in islice(read.records.values(), 20)}.values()
    whole = [t for t in loops if t.flat and not any(nest_timers(scalars, t).undeclared for scalars in steps)]
    fitting = [t for t in whole if not t.overlap]
    return fitting[0] if tree.flat and tree not in whole and len(fitting) == 1 else None


def _by_staleness(
    tree: TimerTree, unmarked: TimerTree, read: SourceRead, run_id: str
) -> tuple[TimerTree, list[Verdict]]:
    """The synchronous loop, or the asynchronous one with the same timers, by the age of its responses.

    In the asynchronous loop only the whole step is timed. A warning says where no age is logged.
    """
    ages = {record.step: record.scalars[STALENESS] for record in read.records.values() if STALENESS in record.scalars}
    stale = next((step for step, age in ages.items() if age > 0.0), None)
    if stale is not None:
        text = (
            f"{run_id}: its responses are older than the weights that they train (step {stale}: {STALENESS} is "
            f"{ages[stale]:g}): an asynchronous loop. It is read as {unmarked.mode}; confirm it, or correct it, with "
            f"import.mode: {unmarked.mode} or colocate_async"
        )
        return unmarked, [Verdict("warning", "mode-by-timers", text)]
    if len(ages) >= LEAST_FRESH_STEPS:
        return tree, []
    text = (
        f"{run_id}: its sources do not show which loop of {tree.name} it ran; it is read as the synchronous one. In "
        f"{unmarked.mode} `gen` is waiting, not generation: set import.mode to {SYNCHRONOUS}, colocate_async or "
        f"{unmarked.mode}"
    )
    return tree, [Verdict("warning", "mode-unknown", text)]
