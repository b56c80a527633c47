"""Resamples runs and blocks of steps: the interval in which an estimate would have come out with other ones.

Two levels are drawn anew: the runs, then circular blocks of consecutive steps within each run drawn (Politis and Romano
1992, "A circular block-resampling procedure for stationary data"). Every estimate here is a function of sums over
steps, so that a resample is one row of a matrix of weighted sums and nothing is computed step by step.
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
# arch's estimate of a block length fits autocorrelations; below this many steps there is nothing to fit.
LEAST_STEPS_FOR_A_LENGTH = 10
# The block length is a property of the process, not of a run: some runs tell it as well as all.
RUNS_FOR_A_LENGTH = 25
MOST_RUNS = 1000
ROWS_AT_ONCE = 20
# With one free block Student's t is 12.7 and the power of ten of an interval is chance.
LEAST_FREE_BLOCKS = 2
# More resamples than this without a value (a singular fit), and the percentiles are no longer the estimate's.
MOST_WITHOUT_VALUE = 0.02


@dataclass(frozen=True)
class Sums:
    """Sums of columns over the steps, as they are and as resampled; the last axis is the columns'."""

    whole: Floats
    both: Floats
    """Runs drawn anew, then blocks of steps within: (resamples, columns)."""
    within: Floats
    """Blocks of steps drawn anew within the same runs: (resamples, columns)."""
    without: Floats
    """Each run left out once: (runs, columns); empty for a single run."""
    steps: int
    blocks: float
    """Blocks of steps, over all runs: what there is to draw within runs."""

    @property
    def runs(self) -> int:
        return max(1, len(self.without))


@dataclass(frozen=True)
class Interval:
    """An estimate's 95% interval and what more runs would do to it, on the estimate's own additive scale."""

    low: float
    high: float
    standard_error: float
    freedom: float
    runs: int
    sides: int = 1
    """Parts of the estimate whose spread between runs is measured apart: the two arms, or their difference alone."""

    @property
    def detectable(self) -> float:
        """The smallest true effect that so many runs would tell from none with a power of 80% (5%, two-sided)."""
        return self.standard_error * _reach(self.freedom)

    def more_runs(self, effect: float) -> float:
        """How many more runs would resolve an effect as large as the observed with a power of 80%.

        NaN beyond 1,000, and where there is no effect or nothing varies: more of the same would show the same.
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

    At least the cube root of the steps, since the optimum is itself an estimate; at most a quarter of them, so that
    there are blocks to draw, and so that `LEAST_FREE_BLOCKS` are left of all runs' blocks when `spent` are taken off.
    """
    steps = int(np.median([len(s) for s in series]))
    found: list[float] = []
    for one in series[:RUNS_FOR_A_LENGTH]:
        if len(one) >= LEAST_STEPS_FOR_A_LENGTH and np.ptp(one) > 1e-12 * max(1.0, float(np.abs(one).max())):
            # In units of their own spread: squares and products of huge numbers overflow, and the length knows no unit.
            scaled = one / np.abs(one).max()
            found.append(optimal_length((scaled - scaled.mean()) / scaled.std()))
    found = [length for length in found if math.isfinite(length)]
    wanted = float(np.mean(found)) if found else 1.0
    # Of noise the optimum is long now and then by chance alone: that must not cost a fit its interval.
    most = min(steps // 4, sum(len(s) for s in series) // (spent + LEAST_FREE_BLOCKS))
    return int(max(1, min(most, max(round(steps ** (1 / 3)), round(wanted)))))


def optimal_length(series: Floats) -> float:
    """The block length that Politis and White (2004, corrected 2009) find best for the circular bootstrap.

    As `arch.bootstrap.optimal_block_length` has it, whose import takes longer than all the rest of a short report.
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
    """Sums of `columns` (steps x quantities), whose rows are run after run, of `lengths` steps each.

    The generator's seed is fixed: the same table gives the same interval. Runs of two kinds in one estimate take two
    seeds, since with one they would be drawn alike.
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
    """Sums over a run's steps when it is drawn `times` over: (resamples, columns).

    Blocks rarely fill a run exactly; the last one is not cut, the sums are scaled to the run's length instead.
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
    # In small pieces: BLAS would start threads for the whole, which costs more than the work.
    pieces = counts.astype(np.float64).reshape(-1, math.gcd(resamples, ROWS_AT_ONCE), steps)
    drawn: Floats = (pieces @ of_block).reshape(resamples, -1) * (steps / (blocks * block))
    return drawn


def interval_of(
    estimate: Callable[[Floats], Floats],
    sums: Sums,
    spent: int = 1,
    sides: Sequence[Callable[[Floats], Floats]] = (),
) -> Interval | None:
    """The 95% interval of an estimate on an additive scale (a logarithm, a difference); None where there is none.

    Its shape is that of the resamples' percentiles. Its width is set by Student's t, since percentiles of few runs
    are too narrow and resampling on two levels counts the steps' noise twice (Davison and Hinkley 1997, section 3.8):
    the wider of the spread between runs, by the jackknife, and the spread within them, from the blocks, less `spent` of
    them for what was fitted. `sides` are the arms' terms, whose sum is the estimate: their spreads between runs are
    measured apart and added, with Welch's degrees of freedom; without, the runs of both arms are left out in pairs.
    """
    several, apart = len(sums.without) > 0, sides or (estimate,)
    found = interval_from(
        float(estimate(sums.whole)),
        estimate(sums.within),
        estimate(sums.both) if several else None,
        [side(sums.without) for side in apart] if several else [],
        sums.blocks,
        spent,
    )
    return replace(found, sides=len(apart)) if found else None


def interval_from(
    value: float, within: Floats, both: Floats | None, left_out: Sequence[Floats], blocks: float, spent: int
) -> Interval | None:
    """`interval_of` from an estimate's value, its resamples, and the values with each run of a kind left out.

    `both` is None and `left_out` empty where the runs are not drawn anew: the interval is then of other steps alone.
    """
    drawn, free_blocks = _finite(within), blocks - spent
    if drawn is None or free_blocks < LEAST_FREE_BLOCKS:
        return None
    # Blocks drawn with replacement vary by (blocks - 1) / blocks of what other blocks would.
    error = float(drawn.std()) * (blocks / free_blocks) ** 0.5
    freedom = free_blocks
    if both is not None:
        kept = _finite(both)
        if kept is None or not all(np.isfinite(one).all() for one in left_out):
            return None
        drawn, runs = kept, np.array([len(one) for one in left_out])
        variances = np.array([one.var() for one in left_out]) * (runs - 1)
        between = float(variances.sum() ** 0.5)
        # Welch and Satterthwaite's; with as many runs on every side, (runs - 1) times the quotient.
        weights = (runs[0] - 1) / (runs - 1)
        welch = float(variances.sum() ** 2 / (variances**2 * weights).sum()) if between else 1.0
        of_runs = float(runs[0] - 1) * welch
        if between * students_t(of_runs) >= error * students_t(freedom):
            error, freedom = between, of_runs
    half = error * students_t(freedom)
    low, high = np.quantile(drawn - value, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    stretch = 2 * half / (high - low) if high > low else 0.0
    ends = (value + min(0.0, stretch * low), value + max(0.0, stretch * high))
    least = min((len(one) for one in left_out), default=1)
    return Interval(*ends, error, freedom, least, max(1, len(left_out)))


def _finite(values: Floats) -> Floats | None:
    kept = values[np.isfinite(values)]
    return kept if len(kept) >= (1 - MOST_WITHOUT_VALUE) * len(values) else None


def students_t(freedom: float, probability: float = (1 + CONFIDENCE) / 2) -> float:
    """A quantile of Student's t."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return float(stdtrit(freedom, probability))


def _reach(freedom: float) -> float:
    """How many standard errors an effect must measure to be resolved with the wanted power."""
    return students_t(freedom) + students_t(freedom, POWER)
