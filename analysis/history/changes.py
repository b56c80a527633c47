"""Finds lasting changes of a series' level, so that under 5% of the series without a change get any mark.

A point is one experiment, its value a logarithm. After each point, every split of the current level into two parts of
at least `LEAST` points is tested by the t statistic of their difference. The largest of them is held against
`FALSE_MARKS` / n ** 1.5, shared by the splits: summed over all numbers of points n, that is under `FALSE_MARKS`. So the
promise holds for the whole series and for all nights on which somebody looks at it. Points beyond `CLIP` deviations
from the median count as that far, so that one slow night is no change; neighbours that are alike widen the test.
docs/history.md has the simulation (`python -m bench history-marks`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr  # type: ignore[import-untyped]

from analysis.quantiles import students_t

FALSE_MARKS = 0.05
LEAST = 3
"""Experiments on each side of a change."""
CLIP = 3.0
"""Median absolute deviations, scaled to the normal distribution's standard deviation."""
_TO_SD = 1.4826
_MOST_ALIKE = 0.9
# Printed numbers may be equal by their rounding.
_LEAST_SD = 0.001

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Level:
    """Consecutive points (`begin` to `end`, exclusive) without a change between them."""

    begin: int
    end: int
    mean: float
    sd: float
    """Of the points, outliers clipped; NaN for a single point."""

    @property
    def points(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class Difference:
    """The difference of two levels' logarithms with its 95% interval."""

    value: float
    low: float
    high: float


def levels_of(values: Values) -> list[Level]:
    """The levels of a series of logarithms in the order of time; one level without a change."""
    begins = [0]
    for n in range(2 * LEAST, len(values) + 1):
        if len(begins) > 1:
            # A change is marked a few points after it, when its place is not exact yet.
            begins[-1] = begins[-2] + _largest(_clipped(values[begins[-2] : n]))[1]
        if split := _split(values[begins[-1] : n], FALSE_MARKS / n**1.5):
            begins.append(begins[-1] + split)
    return [_level(values, begin, end) for begin, end in zip(begins, [*begins[1:], len(values)], strict=True)]


def difference(a: Level, b: Level) -> Difference:
    """How far level `b` is above level `a`."""
    freedom = a.points + b.points - 2
    squares = sum((level.points - 1) * level.sd**2 for level in (a, b) if level.points > 1)
    reach = np.inf
    if freedom > 0:
        error = (squares / freedom * (1 / a.points + 1 / b.points)) ** 0.5
        reach = students_t(freedom) * error
    value = b.mean - a.mean
    return Difference(value, value - reach, value + reach)


def _level(values: Values, begin: int, end: int) -> Level:
    own = _clipped(values[begin:end])
    return Level(begin, end, float(own.mean()), float(own.std(ddof=1)) if len(own) > 1 else float("nan"))


def _split(values: Values, allowed: float) -> int:
    """Where the level changes, as the number of points before; 0 where no change is larger than chance."""
    if len(values) < 2 * LEAST:
        return 0
    clipped = _clipped(values)
    largest, split = _largest(clipped)
    residuals = clipped - np.repeat([clipped[:split].mean(), clipped[split:].mean()], [split, len(values) - split])
    alike = _autocorrelation(residuals)
    p = 2 * stdtr(len(values) - 2, -largest * ((1 - alike) / (1 + alike)) ** 0.5)
    return split if p * (len(values) - 2 * LEAST + 1) < allowed else 0


def _clipped(values: Values) -> Values:
    middle = np.median(values)
    reach = CLIP * _TO_SD * np.median(np.abs(values - middle)) or np.inf  # 0: most values are equal
    return np.clip(values, middle - reach, middle + reach)


def _largest(values: Values) -> tuple[float, int]:
    """The largest t statistic of a split, and the number of points before that split."""
    n = len(values)
    before = np.arange(LEAST, n - LEAST + 1)
    sums = np.cumsum(values)
    a, b = sums[before - 1] / before, (sums[-1] - sums[before - 1]) / (n - before)
    squares = np.maximum((values**2).sum() - before * a**2 - (n - before) * b**2, n * _LEAST_SD**2)
    t = np.abs(a - b) / np.sqrt(squares / (n - 2) * (1 / before + 1 / (n - before)))
    at = int(t.argmax())
    return float(t[at]), int(before[at])


def _autocorrelation(residuals: Values) -> float:
    """Of neighbouring points, corrected for the bias of short series; negative ones count as 0."""
    squares = float((residuals**2).sum())
    found = float((residuals[1:] * residuals[:-1]).sum()) / squares if squares > 0 else 0.0
    return min(max(found + (1 + 3 * found) / len(residuals), 0.0), _MOST_ALIKE)
