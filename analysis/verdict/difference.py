"""Says in which parts of the step the difference between two arms lies."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import pandas as pd

from analysis.compared import STEP, Compared, column_of, mean_of_runs
from analysis.phases import shown_phase
from analysis.wide import OWN, PHASE
from trainers.timers.tree import TimerTree

GENERATION, NO_TIMER = "generation", "no timer"
MOST_SHOWN = 3
# Parts below it are not shown, and two differences that are closer are the same.
LEAST_SHARE, ALIKE = 0.005, 0.1


def parts_of(wide: pd.DataFrame, one: Compared, trees: Mapping[str, Sequence[TimerTree]]) -> dict[str, float]:
    """The baseline's seconds less the arm's in each part of the steps that are compared, by category of timers.

    They sum to the difference of the steps, as own seconds do. Empty where a part cannot be told: phases overlap, or an
    arm does not time its generation.
    """
    sides = [_own_seconds(wide, side, trees.get(arm, ())) for side, arm in _sides(one)]
    if not all(side.get(GENERATION, 0.0) > 0 for side in sides):
        return {}
    baseline, arm = sides
    return {part: baseline.get(part, 0.0) - arm.get(part, 0.0) for part in {**baseline, **arm}}


def _sides(one: Compared) -> list[tuple[pd.DataFrame, str]]:
    return list(zip(one.sides, (one.baseline, one.arm), strict=True))


def _own_seconds(wide: pd.DataFrame, side: pd.DataFrame, trees: Sequence[TimerTree]) -> dict[str, float]:
    """An arm's mean own seconds by category; empty where its phases overlap."""
    found: dict[str, float] = defaultdict(float)
    if not trees or any(tree.overlap for tree in trees):
        return {}
    root = STEP.removeprefix(PHASE)
    for path in (name.removeprefix(OWN) for name in wide.columns if name.startswith(OWN)):
        phase = shown_phase(path, trees)
        seconds = column_of(wide, side, OWN + path)
        if (path == root or path.startswith(f"{root}/")) and seconds.notna().any():
            found[NO_TIMER if path == root else phase.category] += mean_of_runs(side, seconds.fillna(0.0))
    return found


def difference_line(parts: Mapping[str, float], claimed_s: float) -> str:
    """Where the difference lies, as a sentence; `claimed_s` is the claim's difference in seconds.

    Empty where nothing is known, or where the claim points the other way.
    """
    total = math.fsum(parts.values())
    if not total * claimed_s > 0:
        return ""
    shares = sorted(((part, seconds / total) for part, seconds in parts.items()), key=lambda one: -abs(one[1]))
    kept = [(part, share) for part, share in shares if abs(share) >= LEAST_SHARE][:MOST_SHOWN]
    shown = ", ".join(f"{part} {100 * share:.0f}%" for part, share in kept)
    which = "the difference" if abs(total - claimed_s) <= ALIKE * abs(claimed_s) else "the raw difference"
    if parts[GENERATION] / total < 0.5:
        return f"Most of {which} lies outside generation and is no engine's: {shown}."
    return f"Of {which}: {shown}."
