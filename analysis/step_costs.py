"""Finds the seconds of a phase that grow with the response, and the length where two arms cross.

A line is fitted to each run's steps that are compared, so that a run is one number for each of its parts; nothing
outside the lengths that both arms have is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.compared import Compared, column_of
from analysis.phases import shown_phase
from analysis.quantiles import students_t
from analysis.ratio import RunNumbers, interval
from analysis.wide import PHASE
from trainers.timers.tree import TimerTree, in_order

# Fewer steps of a run, or lengths that vary by less of their mean, give no slope.
LEAST_STEPS, LEAST_VARIATION = 12, 0.02
# The ends of the lengths that both arms have: this share of each arm's steps lies outside at either end.
OUTSIDE = 0.1
# A crossing is looked for at so many lengths; it is printed with two digits.
PLACES = 1001
COLUMNS = ["factors", "arm", "path", "label", "per_1000_s", "low", "high", "from_tokens", "to_tokens"]


@dataclass(frozen=True)
class LengthLines:
    """Seconds against the mean response of a step, one line a run of an arm."""

    slopes: npt.NDArray[np.float64]
    """By run: seconds for each token of the mean response."""
    length: npt.NDArray[np.float64]
    seconds: npt.NDArray[np.float64]
    """The means of the run's steps."""

    def at(self, length: float) -> npt.NDArray[np.float64]:
        """Each run's seconds at a length."""
        found: npt.NDArray[np.float64] = self.seconds + self.slopes * (length - self.length)
        return found


def fitted(side: pd.DataFrame, seconds: pd.Series) -> LengthLines | None:
    """The lines of an arm's seconds; None where they or the lengths of a run say too little."""
    rows = pd.DataFrame({"run": side["run"], "length": side["mean_length"], "seconds": seconds})
    lines = []
    for _, run in rows[(rows["length"] > 0) & np.isfinite(rows["seconds"])].groupby("run"):
        x, y = (run[name].to_numpy(float) for name in ("length", "seconds"))
        if len(run) < LEAST_STEPS or x.std() < LEAST_VARIATION * x.mean():
            return None
        slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
        lines.append((slope, x.mean(), y.mean()))
    return LengthLines(*np.array(sorted(lines)).T) if lines else None


def cost_lines(wide: pd.DataFrame, every: Sequence[Compared], trees: Sequence[TimerTree]) -> pd.DataFrame:
    """One row per factor combination, arm and phase directly under the step, and the step (columns: `COLUMNS`).

    `per_1000_s`: seconds for each thousand tokens of the step's mean response, with its 95% interval; the longest
    response grows with it. What the line gives at no token is no fixed part: no step had so short responses.
    """
    paths = [name.removeprefix(PHASE) for name in wide.columns if name.startswith(PHASE)]
    shown = [path for path in in_order(paths, trees) if path.count("/") <= 1]
    rows, done = [], set()
    for one in every:
        for side, arm in one.named_sides:
            if (one.factors, arm) not in done and not side.empty:
                done.add((one.factors, arm))
                rows += [(one.factors, arm, *values) for values in _of_phases(wide, side, shown, trees)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _of_phases(
    wide: pd.DataFrame, side: pd.DataFrame, paths: Sequence[str], trees: Sequence[TimerTree]
) -> Iterator[tuple[object, ...]]:
    ends = (float(side["mean_length"].min()), float(side["mean_length"].max()))
    for path in paths:
        lines = fitted(side, column_of(wide, side, PHASE + path))
        if lines is not None:
            runs, slope = len(lines.slopes), 1000 * float(lines.slopes.mean())
            half = math.nan
            if runs > 1:
                half = 1000 * float(lines.slopes.std(ddof=1)) / math.sqrt(runs) * students_t(runs - 1)
            yield path, shown_phase(path, trees).label, slope, slope - half, slope + half, *ends


def crossing(one: Compared) -> str:
    """`sglang above 900 tokens a response, vllm below`, where both are resolved at the ends of the common lengths."""
    baseline, arm = (fitted(side, side["seconds"]) for side in one.sides)
    if baseline is None or arm is None:
        return ""
    lengths = [side["mean_length"].quantile([OUTSIDE, 1 - OUTSIDE]) for side in one.sides]
    low, high = max(of.iloc[0] for of in lengths), min(of.iloc[1] for of in lengths)
    faster = [_faster(one, baseline, arm, length) for length in (low, high)]
    if not low < high or not all(faster) or faster[0] == faster[1]:
        return ""
    # The numbers that decide at both ends cross between them.
    between = np.linspace(low, high, PLACES)
    above = [np.log(baseline.at(length)).mean() > np.log(arm.at(length)).mean() for length in between]
    place = float(between[above.index(not above[0])])
    shown = round(place, 1 - math.floor(math.log10(place)))
    return f"{faster[1]} above {shown:,.0f} tokens a response, {faster[0]} below"


def _faster(one: Compared, baseline: LengthLines, arm: LengthLines, length: float) -> str:
    """The arm that is faster at a length; "" where that is not resolved."""
    seconds = baseline.at(length), arm.at(length)
    if not all((side > 0).all() for side in seconds):
        return ""
    low, high = interval(RunNumbers(np.log(seconds[0]), np.log(seconds[1])))
    return one.arm if low > 1 else one.baseline if high < 1 else ""
