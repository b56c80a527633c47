"""Computes the interval of an estimate by resampling runs and blocks of steps.

There are two levels: runs are drawn with replacement, then circular blocks of consecutive steps within each drawn run
(Politis and Romano 1992, "A circular block-resampling procedure for stationary data"). Every estimate is a function of
sums over steps, so a resample is one row of a matrix of weighted sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

RESAMPLES = 2000
SEED = 7919
CONFIDENCE = 0.95
POWER = 0.80
# The block length comes from autocorrelations, which need this many steps.
LEAST_STEPS_FOR_A_LENGTH = 10
# The block length is a property of the process, so some runs show it as well as all.
RUNS_FOR_A_LENGTH = 25
MOST_RUNS = 1000
ROWS_AT_ONCE = 20
# With one free block Student's t is 12.7, and the interval is meaningless.
LEAST_FREE_BLOCKS = 2
# With a larger share of resamples without a value (a singular fit), the percentiles are not the estimate's.
MOST_WITHOUT_VALUE = 0.02


@dataclass(frozen=True)
class Sums:
    """Sums of columns over the steps, observed and resampled; the last axis is the columns."""

    whole: Floats
    """All steps once: (columns)."""
    both: Floats
    """Runs resampled, then blocks of steps within them: (resamples, columns)."""
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

    @property
    def detectable(self) -> float:
        """The smallest true effect that so many runs detect with a power of 80% (5%, two-sided)."""
        return self.standard_error * _reach(self.freedom)

    def more_runs(self, effect: float) -> float:
        """How many more runs would resolve an effect of this size with a power of 80%.

        NaN above 1,000, and where there is no effect or nothing varies.
        """
        one_run = self.standard_error * self.runs**0.5
        if not (effect and self.standard_error > 0):
            return float("nan")
        for runs in range(self.runs + 1, MOST_RUNS + 1):
            if one_run / runs**0.5 * _reach(self.sides * (runs - 1)) <= abs(effect):
                return float(runs - self.runs)
        return float("nan")


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
    runs = len(lengths)
    drawn = draw.multinomial(runs, np.full(runs, 1 / runs), size=resamples)
    once = np.ones(resamples, dtype=np.int64)
    shape = (resamples, columns.shape[1])
    both, within, by_run, start = np.zeros(shape), np.zeros(shape), [], 0
    for run, steps in enumerate(lengths):
        rows = columns[start : start + steps]
        start += steps
        by_run.append(rows.sum(axis=0))
        both += _drawn_blocks(rows, block, drawn[:, run], draw)
        within += _drawn_blocks(rows, block, once, draw)
    whole = np.sum(by_run, axis=0)
    without = whole - np.array(by_run) if runs > 1 else np.empty((0, columns.shape[1]))
    return Sums(whole, both, within, without, len(columns), len(columns) / block)


def _drawn_blocks(rows: Floats, block: int, times: npt.NDArray[np.int64], draw: np.random.Generator) -> Floats:
    """Sums over a run's steps when it is drawn `times` times: (resamples, columns).

    Blocks rarely fill a run exactly: the last one is not cut, and the sums are scaled to the run's length.
    """
    steps, resamples = len(rows), len(times)
    block = min(block, steps)
    blocks = -(-steps // block)
    around = np.concatenate([rows, rows[: block - 1]])
    summed = np.cumsum(np.concatenate([np.zeros((1, rows.shape[1])), around]), axis=0)
    of_block = summed[block:] - summed[:-block]
    which = np.repeat(np.arange(resamples), times * blocks)
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
) -> Interval | None:
    """The 95% interval of an estimate on an additive scale (a logarithm, a difference), or None.

    The resamples' percentiles give its shape. Student's t gives its width, because percentiles of few runs are too
    narrow and resampling on two levels counts the steps' noise twice (Davison and Hinkley 1997, section 3.8). The width
    is the larger of the spread between runs (jackknife) and the spread within them (blocks, without the `spent` ones).
    `sides` are the arms' terms, whose sum is the estimate: their spreads between runs are measured separately and
    added, with Welch's degrees of freedom. Without `sides` the runs of both arms are left out in pairs.
    """
    several, terms = len(sums.without) > 0, sides or (estimate,)
    found = interval_from(
        float(estimate(sums.whole)),
        estimate(sums.within),
        estimate(sums.both) if several else None,
        [term(sums.without) for term in terms] if several else [],
        sums.blocks,
        spent,
        confidence,
    )
    return replace(found, sides=len(terms)) if found else None


def interval_from(
    value: float,
    within: Floats,
    both: Floats | None,
    left_out: Sequence[Floats],
    blocks: float,
    spent: int,
    confidence: float = CONFIDENCE,
) -> Interval | None:
    """`interval_of` from an estimate's value, its resamples, and the values with each run of a kind left out.

    `both` is None and `left_out` empty where the runs are not resampled: the interval then covers only other steps.
    """
    drawn, free_blocks = _finite(within), blocks - spent
    if drawn is None or free_blocks < LEAST_FREE_BLOCKS:
        return None
    # Blocks drawn with replacement vary less than new blocks would, by (blocks - 1) / blocks.
    error = float(drawn.std()) * (blocks / free_blocks) ** 0.5
    freedom = free_blocks
    if both is not None:
        kept = _finite(both)
        if kept is None or not all(np.isfinite(values).all() for values in left_out):
            return None
        drawn, runs = kept, np.array([len(values) for values in left_out])
        variances = np.array([values.var() for values in left_out]) * (runs - 1)
        between = float(variances.sum() ** 0.5)
        # The Welch-Satterthwaite degrees of freedom; with equal runs on every side, (runs - 1) times the quotient.
        weights = (runs[0] - 1) / (runs - 1)
        welch = float(variances.sum() ** 2 / (variances**2 * weights).sum()) if between else 1.0
        of_runs = float(runs[0] - 1) * welch
        if between * students_t(of_runs, (1 + confidence) / 2) >= error * students_t(freedom, (1 + confidence) / 2):
            error, freedom = between, of_runs
    half = error * students_t(freedom, (1 + confidence) / 2)
    low, high = np.quantile(drawn - value, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    stretch = 2 * half / (high - low) if high > low else 0.0
    ends = (value + min(0.0, stretch * low), value + max(0.0, stretch * high))
    least = min(map(len, left_out), default=1)
    return Interval(*ends, error, freedom, least, max(1, len(left_out)))


def _finite(values: Floats) -> Floats | None:
    kept = values[np.isfinite(values)]
    return kept if len(kept) >= (1 - MOST_WITHOUT_VALUE) * len(values) else None


def students_t(freedom: float, probability: float = (1 + CONFIDENCE) / 2) -> float:
    """A quantile of Student's t."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return float(stdtrit(freedom, probability))


def _reach(freedom: float) -> float:
    """How many standard errors a detectable effect has."""
    return students_t(freedom) + students_t(freedom, POWER)
