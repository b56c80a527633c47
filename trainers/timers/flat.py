"""Puts each of a trainer's flat timer keys in its place in the tree."""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import product
from statistics import median

from common.verdicts import Verdict
from trainers.logs.record import TIMERS
from trainers.timers.exclusive import TOLERANCE_S, TOLERANCE_SHARE, exclusive_s
from trainers.timers.tree import TimerTree

UNDECLARED = "undeclared/"
# What TRL and ms-swift put before the names of theirs, and the trainer's class behind it.
PROFILING = "profiling/Time taken: "
# One of their timers is logged among the step's other numbers.
LOGGED = "train/"
_PREFIXES = (TIMERS, PROFILING, LOGGED)
# One place must explain the step's seconds this much better than the other.
DECISIVE = 2.0

Places = Mapping[str, str]


@dataclass(frozen=True)
class NestedTimers:
    """A step's numbers, divided: seconds by path, other quantities by name, keys that no tree declares.

    `names` is what each key has become: `timing_s/<path>` for a phase, a scalar's name for the rest.
    """

    phases: dict[str, float]
    scalars: dict[str, float]
    undeclared: tuple[str, ...]
    names: dict[str, str]


def nest_timers(flat: Mapping[str, float], tree: TimerTree, places: Places | None = None) -> NestedTimers:
    """A step's flat numbers (`timing_s/gen`, `critic/score/mean`, ...) as phases by path and scalars by name.

    What the tree declares as no part of a sum (counts, statistics) becomes a scalar without the prefix.
    A timer that is not declared becomes `undeclared/<name>`: where it nests is not guessed. `places` are the
    paths of the timers that may lie in more than one (see `timer_places`); the declared ones without it.
    """
    paths = tree.paths_by_key
    phases: dict[str, float] = {}
    scalars: dict[str, float] = {}
    undeclared = []
    names: dict[str, str] = {}
    for key, value in flat.items():
        # Most keys are no timers: that is told at once.
        name = timer_name(key, paths) if key.startswith(_PREFIXES) else None
        if name is None:
            scalars[key] = value
            names[key] = key
            continue
        if name in paths:
            path = (places or {}).get(name, paths[name][0])
            phases[path] = phases.get(path, 0.0) + value
            names[key] = TIMERS + path
            continue
        beside = _beside(name, tree, flat)
        names[key] = UNDECLARED + name if beside is None else beside
        scalars[names[key]] = value
        if beside is None:
            undeclared.append(name)
    return NestedTimers(phases, scalars, tuple(undeclared), names)


def timer_name(key: str, declared: Container[str] = ()) -> str | None:
    """The name of the timer that a flat key is of, without what its trainer puts before it; None for no timer."""
    if key.startswith(TIMERS):
        return key.removeprefix(TIMERS)
    if key.startswith(PROFILING):
        return key.removeprefix(PROFILING).partition(".")[2] or key.removeprefix(PROFILING)
    return key if key.startswith(LOGGED) and key in declared else None


# Every step of a run has the same keys.
_timer_of = lru_cache(maxsize=1 << 12)(timer_name)


def _beside(name: str, tree: TimerTree, flat: Mapping[str, float]) -> str | None:
    """The scalar that a timer is kept as which is no part of a sum; None where the tree has no word on it."""
    for pattern, _, scalar in tree.beside:
        if fnmatchcase(name, pattern):
            return scalar.replace("*", name)
    return next((s.replace("*", name) for logged, _, s in tree.beside_if if logged.replace("*", name) in flat), None)


def timer_places(
    steps: Sequence[Mapping[str, float]],
    tree: TimerTree,
    run_id: str,
    rounding: Sequence[Mapping[str, float]] = (),
) -> tuple[dict[str, str], list[Verdict]]:
    """Where the timers lie that releases put now inside the step, now outside: the run's own seconds decide.

    For each such timer the two places leave two residuals in the steps that have it. The one that is nearer
    to the usual residual (the median of the steps without any such timer, 0 if there is none) is right; a
    step with two of them is used where no step has one alone. Where neither is clearly nearer, the declared
    place stands; `rounding`, of each step's values by their keys, must not be able to make the difference. Every
    decision is told.
    """
    movable = {key: paths for key, paths in tree.paths_by_key.items() if len(paths) > 1}
    if not movable:
        return {}, []
    rests = _residuals(steps, rounding or [{}] * len(steps), movable, tree)
    places: dict[str, str] = {}
    known: dict[str, str] = {}
    verdicts = []

    def company(key: str) -> int:
        return min((len(timed) for _, timed, *_ in rests if key in timed), default=0)

    for key in sorted(movable, key=company):
        fewest = company(key)
        having = [one for one in rests if key in one[1] and len(one[1]) == fewest]
        if not having:
            continue
        inside, outside = [], []
        for left, timed, *_ in having:
            others = [_shares(v, known.get(k), tree) for k, v in timed.items() if k != key]
            sums = [math.fsum(chosen) for chosen in product(*others)]
            inside.append(min(abs(left - timed[key] - s) for s in sums))
            outside.append(min(abs(left - s) for s in sums))
        a, b = median(inside), median(outside)
        least = max(TOLERANCE_S, TOLERANCE_SHARE * median(whole for _, _, whole, _ in having))
        least += median(cut for *_, cut in having)
        clear = max(a, b) > least and max(a, b) > DECISIVE * min(a, b)
        declared = movable[key][0]
        wanted = (a < b) if clear else declared.startswith(tree.root + "/")
        places[key] = next(p for p in movable[key] if p.startswith(tree.root + "/") == wanted)
        if clear:
            known[key] = places[key]
        verdicts.append(_told(run_id, key, places[key], declared, clear, (a, b), tree))
    return places, verdicts


def _residuals(
    steps: Sequence[Mapping[str, float]],
    rounding: Sequence[Mapping[str, float]],
    movable: Collection[str],
    tree: TimerTree,
) -> list[tuple[float, dict[str, float], float, float]]:
    """Of each step: its residual without movable timers, less the usual one; these timers; its time; its rounding."""
    rests = []
    for step, cut in zip(steps, rounding, strict=True):
        timed = {k: step[TIMERS + k] for k in movable if math.isfinite(step.get(TIMERS + k, math.nan))}
        fixed = {k: v for k, v in step.items() if k.startswith(_PREFIXES) and _timer_of(k) not in movable}
        phases = nest_timers(fixed, tree).phases
        if math.isfinite(left := exclusive_s(phases).get(tree.root, math.nan)):
            rests.append((left, timed, phases[tree.root], math.fsum(v for k, v in cut.items() if _timer_of(k))))
    plain = [left for left, timed, *_ in rests if not timed]
    usual = median(plain) if plain else 0.0
    return [(left - usual, timed, whole, cut) for left, timed, whole, cut in rests]


def _shares(value: float, place: str | None, tree: TimerTree) -> tuple[float, ...]:
    """What a timer may take of the step: all or nothing, as its place says if it is known."""
    if place is None:
        return (0.0, value)
    return (value,) if place.startswith(tree.root + "/") else (0.0,)


def _told(
    run_id: str, key: str, place: str, declared: str, clear: bool, off_s: tuple[float, float], tree: TimerTree
) -> Verdict:
    where = "inside" if place.startswith(tree.root + "/") else "outside"
    numbers = f"off the usual residual by {off_s[0]:.3f} s if inside, by {off_s[1]:.3f} s if outside"
    if not clear:
        text = f"{run_id}: the numbers do not tell whether {key} lies inside the step ({numbers}): {where}, as declared"
        return Verdict("note", "timer-place", f"{text} for {tree.name}")
    if place == declared:
        text = f"{run_id}: {key} lies {where} the step ({numbers}), as declared for {tree.name}"
        return Verdict("note", "timer-place", text)
    text = f"{run_id}: {key} lies {where} the step ({numbers}), unlike declared for {tree.name}: the numbers count"
    return Verdict("warning", "timer-place", text)
