"""Divides a step's seconds among its phases; no second counts twice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Each timer reads two clocks, so a parent may seem shorter than its children by this much.
TOLERANCE_S = 1e-3
TOLERANCE_SHARE = 1e-3


@dataclass(frozen=True)
class Overrun:
    """Children with more seconds than their parent; `rounding_s` is the largest difference that rounding explains."""

    path: str
    parent_s: float
    children_s: float
    rounding_s: float


def parents(paths: Iterable[str]) -> dict[str, str | None]:
    """The nearest timed ancestor of each path; None for a root.

    A phase whose direct parent is not timed thus still counts once.
    """
    known = set(paths)

    def nearest(path: str) -> str | None:
        while "/" in path:
            path = path.rsplit("/", 1)[0]
            if path in known:
                return path
        return None

    return {path: nearest(path) for path in known}


def _children_s(phases: Mapping[str, float]) -> dict[str, float]:
    children: dict[str, list[float]] = {}
    for path, parent in parents(phases).items():
        if parent is not None:
            children.setdefault(parent, []).append(phases[path])
    # fsum raises on inf plus -inf, which a broken log may have.
    return {
        parent: math.fsum(seconds) if all(map(math.isfinite, seconds)) else sum(seconds)
        for parent, seconds in children.items()
    }


def exclusive_s(phases: Mapping[str, float]) -> dict[str, float]:
    """Each phase's seconds minus its children's, by path. Over a root's tree they add up to the root's seconds.

    The root's own entry is the step's residual: the time that no timer covers.
    """
    children = _children_s(phases)
    return {path: seconds - children.get(path, 0.0) for path, seconds in phases.items()}


def own_rounding_s(phases: Mapping[str, float], rounding: Mapping[str, float]) -> dict[str, float]:
    """The largest rounding error of each path's exclusive seconds: its own rounding plus its children's."""
    total = {path: rounding.get(path, 0.0) for path in phases}
    for path, parent in parents(phases).items():
        if parent is not None:
            total[parent] += rounding.get(path, 0.0)
    return total


def overruns(phases: Mapping[str, float], rounding: Mapping[str, float] | None = None) -> list[Overrun]:
    """Parents whose children exceed them by more than 1 ms, by more than 0.1%, and by more than the rounding."""
    children = _children_s(phases)
    errors = own_rounding_s(phases, rounding or {})
    return [
        Overrun(path, phases[path], total, errors[path])
        for path, total in sorted(children.items())
        if total - phases[path] > max(TOLERANCE_S, TOLERANCE_SHARE * abs(phases[path])) + errors[path]
    ]
