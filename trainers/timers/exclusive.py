"""How a step's seconds divide among its phases, none counted twice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Two clocks are read for every timer: a parent may seem shorter than its children by that much.
TOLERANCE_S = 1e-3
TOLERANCE_SHARE = 1e-3


@dataclass(frozen=True)
class Overrun:
    """Children that claim more seconds than the parent which contains them."""

    path: str
    parent_s: float
    children_s: float
    rounding_s: float
    """How far apart rounding alone may have put the two."""


def parents(paths: Iterable[str]) -> dict[str, str | None]:
    """The nearest timed ancestor of every path; None for a root.

    The nearest one that was timed, so that a phase whose direct parent is missing is still counted once.
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
    return {parent: _sum(seconds) for parent, seconds in children.items()}


def _sum(seconds: list[float]) -> float:
    # fsum raises where inf and -inf meet, as they may in a broken log.
    return math.fsum(seconds) if all(map(math.isfinite, seconds)) else sum(seconds)


def exclusive_s(phases: Mapping[str, float]) -> dict[str, float]:
    """Own seconds less the children's, by path; summed over a root's tree they give the root's seconds.

    The root's own entry is the step's residual: what no timer covers.
    """
    children = _children_s(phases)
    return {path: seconds - children.get(path, 0.0) for path, seconds in phases.items()}


def own_rounding_s(phases: Mapping[str, float], rounding: Mapping[str, float]) -> dict[str, float]:
    """The worst error that printing left in each path's own seconds: its own rounding and all its children's."""
    total = {path: rounding.get(path, 0.0) for path in phases}
    for path, parent in parents(phases).items():
        if parent is not None:
            total[parent] += rounding.get(path, 0.0)
    return total


def overruns(phases: Mapping[str, float], rounding: Mapping[str, float] | None = None) -> list[Overrun]:
    """The parents whose children exceed them by more than 1 ms and 0.1%, and by more than their rounding."""
    children = _children_s(phases)
    printed = own_rounding_s(phases, rounding or {})
    return [
        Overrun(path, phases[path], total, printed[path])
        for path, total in sorted(children.items())
        if total - phases[path] > max(TOLERANCE_S, TOLERANCE_SHARE * abs(phases[path])) + printed[path]
    ]
