"""Computes the interval of an estimate from the spread of runs and of blocks of steps.

There are two levels: each run is left out once (jackknife), and circular blocks of consecutive steps are drawn within
each run (Politis and Romano 1992, "A circular block-resampling procedure for stationary data"). Every estimate is a
function of sums over steps, so a resample is one row of a matrix of weighted sums.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from common.verdicts import FIRST_LOOK

Floats = npt.NDArray[np.float64]

RESAMPLES = 2000
SEED = 7919
CONFIDENCE = 0.95
# Arms whose runs spread unequally (one up to twice as much), and pairs that agree by chance, cost up to 1% of coverage
# (docs/estimates.md): an interval of 95% takes the t of 95.5%.
SPARED = 0.9
# The looks after two or three pairs cost more: with this share of the 5% all looks together are wrong in at most 5%.
SPARED_FOR_LOOKS = 0.9
POWER = 0.80
# The block length comes from autocorrelations, which need this many steps.
LEAST_STEPS_FOR_A_LENGTH = 10
# The block length is a property of the process, so some runs show it as well as all.
RUNS_FOR_A_LENGTH = 25
MOST_RUNS = 1000
ROWS_AT_ONCE = 20
# With one free block Student's t is 12.7, and the interval is meaningless.
LEAST_FREE_BLOCKS = 2
# With a larger share of resamples without a value (a singular fit), their spread is not the estimate's.
MOST_WITHOUT_VALUE = 0.02
# The width is then exact to twelve digits.
HALVINGS = 40
# Where the standardised mean's probability is computed.
_GRID = np.linspace(-8.0, 8.0, 401)


@dataclass(frozen=True)
class Sums:
    """Sums of columns over the steps, observed and resampled; the last axis is the columns."""

    whole: Floats
    """All steps once: (columns)."""
    within: Floats
    """Blocks of steps resampled within the same runs: (resamples, columns)."""
    without: Floats
    """Each run left out once: (runs, columns); empty for a single run."""
    steps: int
    blocks: float
    """Blocks of steps in all runs."""

    @property
    def runs(self) -> int:
        return max(1, len(self.without))


@dataclass(frozen=True)
class Interval:
    """An estimate's 95% interval on its own additive scale, with what is needed to predict more runs."""

    low: float
    high: float
    standard_error: float
    freedom: float
    runs: int
    sides: int = 1
    """Terms whose spread between runs is measured separately: 2 for the two arms, 1 for their difference."""
    bias: float = 0.0
    """How far the estimate may be off at either side, whatever the runs."""

    def half(self, confidence: float = CONFIDENCE) -> float:
        """Half the width of its interval of this confidence."""
        return half_width(self.standard_error, self.freedom, self.bias, confidence)

    @property
    def detectable(self) -> float:
        """The smallest true effect that so many runs detect with a power of 80% (5%, two-sided)."""
        return self.half() + self.standard_error * students_t(self.freedom, POWER)

    def more_runs(self, effect: float, within: float = 0.0) -> float:
        """How many more runs would resolve an effect of this size, or show that it is `within`, with a power of 80%.

        NaN above 1,000, and where nothing varies.
        """
        if not ((effect or within) and self.standard_error > 0):
            return float("nan")

        def detected(runs: int) -> bool:
            error = self.standard_error * (self.runs / runs) ** 0.5
            least = replace(self, standard_error=error, freedom=self.sides * (runs - 1)).detectable
            return least <= abs(effect) or least + abs(effect) <= within

        more = range(self.runs + 1, MOST_RUNS + 1)
        found = bisect_left(more, True, key=detected)
        return float(found + 1) if found < len(more) else float("nan")


def block_length(series: Sequence[Floats], spent: int = 1) -> int:
    """Steps in a block, from each run's series: Politis and White's optimal length for the circular bootstrap.

    It is at least the cube root of the steps, because the optimum is itself an estimate. It is at most a quarter of
    them, and leaves `LEAST_FREE_BLOCKS` of all runs' blocks after `spent` are used.
    """
    steps = int(np.median([len(s) for s in series]))
    found: list[float] = []
    for values in series[:RUNS_FOR_A_LENGTH]:
        if len(values) >= LEAST_STEPS_FOR_A_LENGTH and np.ptp(values) > 1e-12 * max(1.0, float(np.abs(values).max())):
            # Scaled to their own spread, because squares and products of huge numbers overflow.
            scaled = values / np.abs(values).max()
            found.append(optimal_length((scaled - scaled.mean()) / scaled.std()))
    found = [length for length in found if math.isfinite(length)]
    wanted = float(np.mean(found)) if found else 1.0
    # Noise alone sometimes gives a long optimum, which must not cost a fit its interval.
    most = min(steps // 4, sum(len(s) for s in series) // (spent + LEAST_FREE_BLOCKS))
    return int(max(1, min(most, max(round(steps ** (1 / 3)), round(wanted)))))


def optimal_length(series: Floats) -> float:
    """The optimal block length of the circular bootstrap by Politis and White (2004, corrected 2009).

    It equals that of `arch.bootstrap.optimal_block_length`, whose import takes longer than a short report.
    """
    n, off = len(series), series - series.mean()
    insignificant_lags = max(5, int(math.log10(n)))
    lags = range(math.ceil(n**0.5) + insignificant_lags + 1)
    sums = np.array([off[k:] @ off[: n - k] for k in lags])
    sizes = np.array([(off[k + 1 :] @ off[k + 1 :]) * (off[: n - k - 1] @ off[: n - k - 1]) for k in lags])
    with np.errstate(all="ignore"):
        small = np.abs(sums) / np.sqrt(sizes) < 2 * math.sqrt(math.log10(n) / n)
        runs = (k for k in range(len(lags) - insignificant_lags) if small[k : k + insignificant_lags].all())
        first = next(runs, None)
        most = lags[-1] if first is None else min(2 * max(first, 1), lags[-1])
        k = np.arange(1, most + 1)
        weights = 2 * np.minimum(1.0, 2 * (1 - k / most)) * sums[k] / n
        curvature, spectrum = float((weights * k).sum()), float(sums[0] / n + weights.sum())
        length = float(np.cbrt(np.float64(1.5 * n) * curvature**2 / spectrum**2))
    return min(length, float(math.ceil(min(3 * n**0.5, n / 3))))


def resampled_sums(
    columns: Floats, lengths: Sequence[int], block: int, resamples: int = RESAMPLES, seed: int = SEED
) -> Sums:
    """Sums of `columns` (steps x quantities), which has the runs in sequence, of `lengths` steps each.

    The seed is fixed, so the same table gives the same interval. Two kinds of runs in one estimate need two seeds, so
    that their draws are independent.
    """
    draw = np.random.default_rng(seed)
    within, by_run, start = np.zeros((resamples, columns.shape[1])), [], 0
    for steps in lengths:
        rows = columns[start : start + steps]
        start += steps
        by_run.append(rows.sum(axis=0))
        within += _drawn_blocks(rows, block, resamples, draw)
    whole = np.sum(by_run, axis=0)
    without = whole - np.array(by_run) if len(lengths) > 1 else np.empty((0, columns.shape[1]))
    return Sums(whole, within, without, len(columns), len(columns) / block)


def _drawn_blocks(rows: Floats, block: int, resamples: int, draw: np.random.Generator) -> Floats:
    """Sums over a run's steps, of blocks drawn with replacement: (resamples, columns).

    Blocks rarely fill a run exactly: the last one is not cut, and the sums are scaled to the run's length.
    """
    steps = len(rows)
    block = min(block, steps)
    blocks = -(-steps // block)
    around = np.concatenate([rows, rows[: block - 1]])
    summed = np.cumsum(np.concatenate([np.zeros((1, rows.shape[1])), around]), axis=0)
    of_block = summed[block:] - summed[:-block]
    which = np.repeat(np.arange(resamples), blocks)
    starts = draw.integers(steps, size=len(which))
    counts = np.bincount(which * steps + starts, minlength=resamples * steps).reshape(resamples, steps)
    # In small pieces, because BLAS would start threads for one large product, which takes longer.
    pieces = counts.astype(np.float64).reshape(-1, math.gcd(resamples, ROWS_AT_ONCE), steps)
    drawn: Floats = (pieces @ of_block).reshape(resamples, -1) * (steps / (blocks * block))
    return drawn


def interval_of(
    estimate: Callable[[Floats], Floats],
    sums: Sums,
    spent: int = 1,
    sides: Sequence[Callable[[Floats], Floats]] = (),
    confidence: float = CONFIDENCE,
    bias: float = 0.0,
) -> Interval | None:
    """The interval of an estimate on an additive scale (a logarithm, a difference), or None.

    `sides` are the arms' terms, whose sum is the estimate: their spreads between runs are measured separately and
    added. Without `sides` the runs of both arms are left out in pairs. `spent` blocks are used by the estimate's fits,
    which may be off by `bias`.
    """
    terms = sides or (estimate,)
    left_out = [term(sums.without) for term in terms] if len(sums.without) else []
    value, within = float(estimate(sums.whole)), estimate(sums.within)
    return interval_from(value, within, left_out, sums.blocks, spent, confidence, bool(sides), bias)


def interval_from(
    value: float,
    within: Floats,
    left_out: Sequence[Floats],
    blocks: float,
    spent: int,
    confidence: float = CONFIDENCE,
    arms: bool = False,
    bias: float = 0.0,
) -> Interval | None:
    """`interval_of` from an estimate's value, its resamples, and its terms' values with each run left out.

    The half width is that of the larger of two standard errors: of the runs (jackknife), and of the steps within them
    (blocks, without the `spent` ones), below which runs agree by chance. `left_out` is empty for one run: the interval
    then covers only other steps. `arms` are two terms with the same pairs of runs.
    """
    drawn, free_blocks = _finite(within), blocks - spent
    if drawn is None or free_blocks < LEAST_FREE_BLOCKS or not all(np.isfinite(terms).all() for terms in left_out):
        return None
    # Blocks drawn with replacement vary less than new blocks would, by (blocks - 1) / blocks.
    found = Interval(value, value, float(drawn.std()) * (blocks / free_blocks) ** 0.5, free_blocks, 1)
    if left_out:
        runs = _between_runs(value, left_out, arms, confidence)
        wider = runs.half(confidence) >= found.half(confidence)
        found = runs if wider else replace(found, runs=runs.runs, sides=runs.sides)
    found = replace(found, bias=bias)
    half = found.half(confidence)
    return replace(found, low=value - half, high=value + half)


def _between_runs(value: float, left_out: Sequence[Floats], arms: bool, confidence: float) -> Interval:
    """The standard error of runs and its degrees of freedom (Welch-Satterthwaite), without ends.

    The spreads of two arms' runs estimate each other: half of each variance in Welch's formula is their mean, so that
    a few runs that agree by chance do not cost half of the degrees of freedom. Runs that a pair shares noise with (a
    slow node) are compared in pairs, where the pairs' interval is narrower though it is wrong five times as rarely.
    """
    runs = np.array([len(values) for values in left_out])
    variances = np.array([values.var() for values in left_out]) * (runs - 1)
    weights = (variances + variances.mean()) / 2 if arms else variances
    # A quotient of squares, as differences of nearly equal runs may be too small to square.
    shares = weights / weights.sum() if weights.sum() > 0 else np.full(len(runs), 1 / len(runs))
    freedom = float(1 / (shares**2 / (runs - 1)).sum())
    found = Interval(value, value, float(variances.sum() ** 0.5), freedom, int(runs.min()), len(runs))
    if not arms:
        return found
    pairs = int(runs[0])
    error = float((np.sum(left_out, axis=0).var() * (pairs - 1)) ** 0.5)
    stricter = students_t(pairs - 1, _upper(1 - (1 - confidence) / 5)) / students_t(pairs - 1, _upper(confidence))
    matched = Interval(value, value, error * stricter, pairs - 1, pairs)
    return min(found, matched, key=lambda one: one.half(confidence))


def _upper(confidence: float) -> float:
    """The probability below the upper end of a two-sided interval."""
    return 1 - SPARED * (1 - confidence) / 2


def _finite(values: Floats) -> Floats | None:
    kept = values[np.isfinite(values)]
    return kept if len(kept) >= (1 - MOST_WITHOUT_VALUE) * len(values) else None


def students_t(freedom: float, probability: float = (1 + CONFIDENCE) / 2) -> float:
    """A quantile of Student's t."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return float(stdtrit(freedom, probability))


def half_width(error: float, freedom: float, bias: float = 0.0, confidence: float = CONFIDENCE) -> float:
    """Half the width of the interval of an estimate that chance moves by `error`, and a bias by up to `bias`.

    Student's t times the error where there is no bias. Otherwise the estimate misses mostly at the side that the bias
    takes it to, so adding the bias would cover more than was asked: the least width that holds the truth at the worst
    bias (Armstrong and Kolesár 2018, "Optimal inference in a class of regression models").
    """
    from scipy.special import stdtr

    upper = _upper(confidence)
    least = error * students_t(freedom, upper)
    if not (bias and error):
        return least + bias
    low, high = max(bias, least), bias + least
    for _ in range(HALVINGS):
        half = (low + high) / 2
        held = stdtr(freedom, (half - bias) / error) - stdtr(freedom, -(half + bias) / error)
        low, high = (low, half) if held >= 2 * upper - 1 else (half, high)
    return high


def confidence_at(pairs: int, most: int) -> float:
    """The confidence of the interval after so many of `most` pairs of runs, where each pair is looked at.

    Group-sequential bounds with alpha spending (Lan and DeMets 1983; Kim and DeMets 1987, the linear function): of the
    5% that all looks together may be wrong, a look spends as much as its pair's share of all pairs. The bounds are
    those of a normal mean (Armitage, McPherson and Rowe 1969); each look takes Student's t of the same probability
    (Jennison and Turnbull 2000, section 4.4).
    """
    return _confidences(max(most, FIRST_LOOK))[min(max(pairs, FIRST_LOOK), max(most, FIRST_LOOK)) - FIRST_LOOK]


@lru_cache
def _confidences(most: int) -> tuple[float, ...]:
    """The two-sided confidence of each look, from `FIRST_LOOK` pairs to `most`."""
    from scipy.special import ndtr

    width, found = _GRID[1] - _GRID[0], []
    # The standardised mean's probabilities on the grid, of the experiments that are still open.
    open_at = np.exp(-(_GRID**2) / 2) / (2 * np.pi) ** 0.5 * width
    for pairs in range(FIRST_LOOK, most + 1):
        if pairs > FIRST_LOOK:
            moved = _GRID[:, None] * pairs**0.5 - _GRID[None, :] * (pairs - 1) ** 0.5
            open_at = np.exp(-(moved**2) / 2) @ open_at * (pairs / (2 * np.pi)) ** 0.5 * width
        spent = SPARED_FOR_LOOKS * (1 - CONFIDENCE) * (FIRST_LOOK if pairs == FIRST_LOOK else 1) / most
        above = np.cumsum(open_at[::-1])[::-1]
        positive = _GRID >= 0
        # A point's probability lies around it, so half of it is above it.
        bound = np.interp(spent / 2, (above - open_at / 2)[positive][::-1], _GRID[positive][::-1])
        found.append(float(1 - 2 * ndtr(-bound)))
        open_at = np.where(np.abs(_GRID) <= bound, open_at, 0.0)
    return tuple(found)
