"""Puts a trainer's flat timer keys into their places in the timer tree."""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import compress, product
from statistics import fmean, median

from common.verdicts import Level, Verdict
from trainers.logs.record import TIMERS
from trainers.timers.exclusive import TOLERANCE_S, TOLERANCE_SHARE, exclusive_s
from trainers.timers.tree import TimerTree

UNDECLARED = "undeclared/"
# The prefix of TRL's and ms-swift's timers; the trainer's class follows it.
PROFILING = "profiling/Time taken: "
# The prefix of their one timer among a step's other numbers.
LOGGED = "train/"
_PREFIXES = (TIMERS, PROFILING, LOGGED)
# A place is clear if it explains the step's seconds this many times better than the other.
DECISIVE = 2.0

Places = Mapping[str, str]


@dataclass(frozen=True)
class NestedTimers:
    """A step's numbers: seconds by path, scalars by name, and timers that no tree declares.

    `names` maps each key to its new name: `timing_s/<path>` for a phase, else a scalar's name.
    """

    phases: dict[str, float]
    scalars: dict[str, float]
    undeclared: tuple[str, ...]
    names: dict[str, str]


def nest_timers(flat: Mapping[str, float], tree: TimerTree, places: Places | None = None) -> NestedTimers:
    """Divide a step's flat numbers (`timing_s/gen`, `critic/score/mean`, ...) into phases by path and scalars by name.

    Timers that the tree declares outside the sum (counts, statistics) become scalars without the prefix. Undeclared
    timers become `undeclared/<name>`: their place is not guessed. `places` are the paths of timers with several
    possible places (`timer_places`); without it the first declared place is used.
    """
    paths = tree.paths_by_key
    phases: dict[str, float] = {}
    scalars: dict[str, float] = {}
    undeclared = []
    names: dict[str, str] = {}
    for key, value in flat.items():
        # The test of the prefix is fast, and most keys are no timers.
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
        scalar = _scalar_outside_sum(name, tree, flat)
        names[key] = UNDECLARED + name if scalar is None else scalar
        scalars[names[key]] = value
        if scalar is None:
            undeclared.append(name)
    return NestedTimers(phases, scalars, tuple(undeclared), names)


def timer_name(key: str, declared: Container[str] = ()) -> str | None:
    """The timer's name in a flat key, without its trainer's prefix; None if the key is no timer."""
    if key.startswith(TIMERS):
        return key.removeprefix(TIMERS)
    if key.startswith(PROFILING):
        return key.removeprefix(PROFILING).partition(".")[2] or key.removeprefix(PROFILING)
    return key if key.startswith(LOGGED) and key in declared else None


# All steps of a run have the same keys.
_cached_timer_name = lru_cache(maxsize=1 << 12)(timer_name)


def _scalar_outside_sum(name: str, tree: TimerTree, flat: Mapping[str, float]) -> str | None:
    """The scalar for a timer that the tree declares outside the sum; None if it does not declare it."""
    for pattern, _, scalar in tree.not_summed:
        if fnmatchcase(name, pattern):
            return scalar.replace("*", name)
    return next(
        (s.replace("*", name) for logged, _, s in tree.not_summed_if if logged.replace("*", name) in flat), None
    )


@dataclass(frozen=True)
class _StepRest:
    """What a step's fixed timers leave of it, less the usual rest, and the seconds of its movable timers."""

    rest_s: float
    movable: dict[str, float]
    allowed_s: float
    """The clock's error and the rounding of its timers."""


def timer_places(
    steps: Sequence[Mapping[str, float]], tree: TimerTree, run_id: str, rounding: Sequence[Mapping[str, float]] = ()
) -> tuple[dict[str, str], list[Verdict]]:
    """The places of timers that lie inside the step in some releases and outside in others, by the run's own seconds.

    The right places explain best what the other timers leave of the steps with them, beyond the usual rest (the median
    of steps without). If a timer's other place is not clearly worse, or `rounding` (of each step's values by key) could
    explain the difference, its declared place stays. Each decision gives a verdict.
    """
    logged = {name for step in steps for name in step}
    movable = {key: of for key, of in tree.paths_by_key.items() if len(of) > 1 and TIMERS + key in logged}
    rests = _rests(steps, rounding or [{}] * len(steps), movable, tree) if movable else []
    keys = sorted(key for key in movable if any(key in step.movable for step in rests))
    guesses = [frozenset(compress(keys, chosen)) for chosen in product((False, True), repeat=len(keys))]

    def off_s(inside: frozenset[str], of: Sequence[_StepRest]) -> float:
        return fmean(abs(step.rest_s - sum(step.movable.get(key, 0.0) for key in inside)) for step in of)

    with_any = [step for step in rests if step.movable]
    best = min(guesses, key=lambda inside: off_s(inside, with_any)) if keys else frozenset()
    places: dict[str, str] = {}
    verdicts = []
    for key in keys:
        with_it = [step for step in rests if key in step.movable]
        a, b = off_s(best | {key}, with_it), off_s(best - {key}, with_it)
        clear = max(a, b) > max(fmean(step.allowed_s for step in with_it), DECISIVE * min(a, b))
        declared = movable[key][0].startswith(tree.root + "/")
        is_inside = (a < b) if clear else declared
        places[key] = next(p for p in movable[key] if p.startswith(tree.root + "/") == is_inside)
        numbers = f"off the usual residual by {a:.3f} s if inside, by {b:.3f} s if outside"
        text, level = _place_text(key, is_inside, declared, clear, numbers)
        verdicts.append(Verdict(level, "timer-place", f"{run_id}: {text} {tree.name}"))
    return places, verdicts


def _place_text(key: str, is_inside: bool, declared: bool, clear: bool, numbers: str) -> tuple[str, Level]:
    where = "inside" if is_inside else "outside"
    if not clear:
        unclear = f"the numbers do not show whether {key} lies inside the step ({numbers})"
        return f"{unclear}: {where}, as declared for", "note"
    if is_inside == declared:
        return f"{key} lies {where} the step ({numbers}), as declared for", "note"
    return f"{key} lies {where} the step ({numbers}): that overrides the declared place of", "warning"


def _rests(
    steps: Sequence[Mapping[str, float]],
    rounding: Sequence[Mapping[str, float]],
    movable: Collection[str],
    tree: TimerTree,
) -> list[_StepRest]:
    rests = []
    for step, halves in zip(steps, rounding, strict=True):
        timed = {k: step[TIMERS + k] for k in movable if math.isfinite(step.get(TIMERS + k, math.nan))}
        fixed = {k: v for k, v in step.items() if k.startswith(_PREFIXES) and _cached_timer_name(k) not in movable}
        phases = nest_timers(fixed, tree).phases
        if math.isfinite(rest := exclusive_s(phases).get(tree.root, math.nan)):
            error = math.fsum(v for k, v in halves.items() if _cached_timer_name(k))
            rests.append(_StepRest(rest, timed, max(TOLERANCE_S, TOLERANCE_SHARE * phases[tree.root]) + error))
    without = [step.rest_s for step in rests if not step.movable]
    usual = median(without) if without else 0.0
    return [replace(step, rest_s=step.rest_s - usual) for step in rests]
