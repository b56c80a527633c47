"""Compares two arms by one number a run: the logarithm of its seconds a step, raw or at equal work.

At equal work each arm's seconds are fitted to its lengths (least squares, slopes from within its runs), and a run's
number is its mean at the step that is common to both arms. The arms' numbers are compared by Welch's t, which needs
neither pairs nor equal spreads nor equally many runs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.quantiles import CONFIDENCE, folded, normal, students_t
from analysis.wide import BY_CLOCK

Floats = npt.NDArray[np.float64]

POWER = 0.8
MOST_RUNS = 1000
SHORT = 0.5
LENGTHS = ("longest", "tokens")
"""What a step's generation waits for, and how much it generates."""
FLOOR = "floor"
"""The decode floor, which knows how unequal the lengths are: known where the lengths of all responses are."""
# Two steps for each coefficient; with fewer a fit follows noise.
LEAST_STEPS = 6
LEAST_COMMON_STEPS = 3
# Below this share of its variance a column says nothing that the others do not.
ADDS_LEAST = 1e-6
# The floor is nearly a function of the lengths where every response has the same.
FLOOR_ADDS_LEAST = 1e-3
# A longest response that nearly all steps share needs no coefficient: few steps would decide it.
AT_THE_CAP, MEANS_ALIKE = 0.9, 2e-3
# The fit is off by up to this share of the effect of lengths that it takes out (`python -m bench coverage`).
FIT_BIAS = 0.05
FIT_BIAS_WITH_ALL_LENGTHS = 0.01


class NoRatioError(Exception):
    """Why two arms have no ratio at equal work, and what would give one; "" where that is not known."""

    def __init__(self, why: str, settle: str = "") -> None:
        super().__init__(why)
        self.settle = settle


@dataclass(frozen=True)
class RunNumbers:
    """Two arms' numbers, the logarithms of their runs' seconds a step."""

    baseline: Floats
    arm: Floats
    errors: tuple[float, float] = (0.0, 0.0)
    """The standard errors that each arm's runs share: of the slopes of its fit."""
    bias: float = 0.0
    """How far the logarithm of the ratio may be off, whatever the runs."""

    @property
    def log_ratio(self) -> float:
        """The logarithm of the ratio: above 0 the arm is faster."""
        return float(self.baseline.mean() - self.arm.mean())


MOST_ROUNDING = 0.99
"""Of a time that may be all rounding, this share."""


@dataclass(frozen=True)
class Common:
    """The steps of two arms that are compared."""

    baseline: pd.DataFrame
    arm: pd.DataFrame
    by_number: bool
    """Whether steps were matched by their number: the runs' counters advance alike."""
    short: tuple[str, ...]
    """The runs that are left out, because they have too few steps."""
    equal_numbers: float = math.nan
    """The logarithm of the ratio of steps of equal number, where steps are not matched so: logs may leave steps out."""

    @cached_property
    def rounding(self) -> float:
        """How far rounded times may move the ratio's logarithm: equal steps are rounded alike, so no number helps."""
        found, sides = 0.0, (self.baseline, self.arm)
        for side in sides if any(side["off_s"].any() for side in sides) else ():
            # A clock's steps in a row are off by one resolution together.
            run, steps = side["run"], side["n"] * side["gap"].fillna(1.0)
            begins = ~side[BY_CLOCK] | (side["step"].groupby(run).diff() != steps)
            off_s = (side["off_s"] * side["n"]).groupby([run, begins.groupby(run).cumsum()]).max().sum()
            found -= math.log1p(-min(off_s / (side["seconds"] * side["n"]).sum(), MOST_ROUNDING))
        return found


def common_steps(baseline: pd.DataFrame, arm: pd.DataFrame, loads: bool = False) -> Common:
    """The steps whose number all runs have; each run's first, as many of all, where counters do not advance alike.

    Identical engines whose steps grow would differ if one had run for longer. A run with fewer than half of the median
    run's steps is left out, as it would shorten all others. The numbers of `loads` (a benchmark's results) have any
    gaps, and mean the same in every run. Columns `run`, `step`, `n` (the steps up to `step` that a row stands for),
    `gap` (how far the run's counter goes for a step; NaN for a run of one row).
    """
    frames = (baseline, arm)
    counts = pd.concat([frame.groupby("run")["n"].sum() for frame in frames])
    short = counts.index[:0] if loads else counts.index[counts < SHORT * counts.median()]
    kept = [frame[~frame["run"].isin(short)] for frame in frames]
    if any(frame.empty for frame in kept):
        short, kept = counts.index[:0], list(frames)
    rows = pd.concat(kept)
    by_number, equal_numbers = loads or rows["gap"].nunique() <= 1, math.nan
    if by_number:
        have = rows.groupby(["step", "n"])["run"].nunique()
        common = have.index[have == rows["run"].nunique()]
        kept = [frame[pd.MultiIndex.from_frame(frame[["step", "n"]]).isin(common)] for frame in kept]
    else:
        # As many steps of each: what grows would make the longer runs slower.
        fewest = rows.groupby("run")["n"].sum().min()
        have = rows.groupby("step")["run"].nunique()
        same = [frame[frame["step"].isin(have.index[have == rows["run"].nunique()])] for frame in kept]
        equal_numbers = math.nan if same[0].empty else raw(*same).log_ratio
        kept = [frame[frame.groupby("run")["n"].cumsum() <= fewest] for frame in kept]
    return Common(kept[0], kept[1], by_number, tuple(map(str, short)), equal_numbers)


def raw(baseline: pd.DataFrame, arm: pd.DataFrame) -> RunNumbers:
    """The sample of the mean seconds of each run's steps; columns `run`, `n` (steps of a row), `seconds`."""
    return RunNumbers(_log_means(baseline, baseline["seconds"]), _log_means(arm, arm["seconds"]))


def equal_work(baseline: pd.DataFrame, arm: pd.DataFrame) -> RunNumbers:
    """The sample of each run's seconds at the lengths that both arms have: also columns `longest`, `tokens`, `floor`.

    Raises `NoRatioError` if the lengths are unknown, too few, hardly in common, or cannot be told apart.
    """
    frames = (baseline, arm)
    for name, label in zip(LENGTHS, ("the longest response", "the number of tokens"), strict=True):
        sides = dict(zip(("the baseline", "the arm"), (frame[name] > 0 for frame in frames), strict=True))
        if lacking := [side for side, known in sides.items() if not known.all()]:
            what, some = f"{label} of {' and '.join(lacking)}", any(sides[side].any() for side in lacking)
            raise NoRatioError(f"{what} is not known{' in every step' if some else ''}", f"logs with {what}")
    if (fewest := min(len(frame) for frame in frames)) < LEAST_STEPS:
        raise NoRatioError(f"a fit needs {LEAST_STEPS} steps of each arm (there are {fewest})", "more steps")
    columns, centre = _columns(frames)
    samples = [_adjusted(frame, columns, centre) for frame in frames]
    (a, a_error), (b, b_error) = samples
    plain = raw(baseline, arm)
    all_lengths = all(frame[FLOOR].notna().all() for frame in frames)
    share = FIT_BIAS_WITH_ALL_LENGTHS if all_lengths else FIT_BIAS
    bias = share * abs(plain.log_ratio - float(a.mean() - b.mean()))
    return RunNumbers(a, b, (a_error, b_error), bias)


def _columns(frames: tuple[pd.DataFrame, pd.DataFrame]) -> tuple[list[str], pd.Series]:
    """The columns that both arms' fits need, and the mean step that lies in both arms' ranges."""
    lengths = [frame[list(LENGTHS)] for frame in frames]
    low = pd.concat([one.min() for one in lengths], axis=1).max(axis=1)
    high = pd.concat([one.max() for one in lengths], axis=1).min(axis=1)
    inside = [((one >= low) & (one <= high)).all(axis=1) for one in lengths]
    if min(int(one.sum()) for one in inside) < LEAST_COMMON_STEPS:
        raise NoRatioError(
            "no common support: hardly a step of one arm has lengths like those of the other",
            "runs whose responses have similar lengths",
        )
    wanted = [name for name in (*LENGTHS, FLOOR) if all(frame[name].notna().all() for frame in frames)]
    common = pd.concat([frame.loc[rows, [*wanted, "n"]] for frame, rows in zip(frames, inside, strict=True)])
    centre = common[wanted].mul(common["n"], axis=0).sum() / common["n"].sum()
    used: list[str] = []
    for name in wanted:
        varies = [bool(np.ptp(frame[name]) > 0) for frame in frames]
        if not any(varies) and frames[0][name].iloc[0] == frames[1][name].iloc[0]:
            continue
        if name == LENGTHS[0] and _at_the_cap(*(frame[name] for frame in frames)):
            continue
        least = FLOOR_ADDS_LEAST if name == FLOOR else ADDS_LEAST
        if min(_adds(frame, used, name) for frame in frames) > least:
            used.append(name)
        elif name != FLOOR:
            raise NoRatioError(
                "the lengths of one arm do not vary, or not one without the other: their effect is unknown"
            )
    return used, centre[used]


def _at_the_cap(a: pd.Series, b: pd.Series) -> bool:
    """Whether nearly all steps of both arms have the same longest response, and its means are alike."""
    cap = max(a.max(), b.max())
    apart = abs(math.log(a.mean() / b.mean()))
    return min(float((a == cap).mean()), float((b == cap).mean())) >= AT_THE_CAP and apart < MEANS_ALIKE


def _within(frame: pd.DataFrame, values: Floats) -> Floats:
    """Values less their run's mean, times the root of the steps that each row stands for."""
    weights, of_run = frame["n"].to_numpy(float), pd.factorize(frame["run"])[0]
    sums = np.stack([np.bincount(of_run, column) for column in (values * weights[:, None]).T], axis=1)
    means = sums / np.bincount(of_run, weights)[:, None]
    found: Floats = (values - means[of_run]) * np.sqrt(weights)[:, None]
    return found


def _adds(frame: pd.DataFrame, others: list[str], name: str) -> float:
    """The share of a column's variance within runs that the others do not give."""
    values = _within(frame, frame[[name, *others]].to_numpy(float))
    column, design = values[:, 0], values[:, 1:]
    total = float(column @ column)
    if total <= 1e-18 * float((frame[name].to_numpy(float) ** 2).sum()):
        return 0.0
    left = column - design @ np.linalg.lstsq(design, column, rcond=None)[0] if others else column
    return float(left @ left) / total


def _adjusted(frame: pd.DataFrame, columns: list[str], centre: pd.Series) -> tuple[Floats, float]:
    """Each run's log seconds at the common step, and the standard error that the slopes give to all of them."""
    if not columns:
        return _log_means(frame, frame["seconds"]), 0.0
    scale = frame[columns].std().to_numpy(float)
    x = (frame[columns].to_numpy(float) - centre.to_numpy(float)) / scale
    design, seconds = _within(frame, x), _within(frame, frame[["seconds"]].to_numpy(float))[:, 0]
    slopes = np.linalg.lstsq(design, seconds, rcond=None)[0]
    at_centre = frame["seconds"] - x @ slopes
    logs = _log_means(frame, at_centre)
    freedom = len(frame) - frame["run"].nunique() - len(columns)
    left = seconds - design @ slopes
    variance = float(left @ left) / freedom if freedom > 0 else math.nan
    away = np.average(x, axis=0, weights=frame["n"])
    error = math.sqrt(max(0.0, variance * float(away @ np.linalg.pinv(design.T @ design) @ away)))
    return logs, error / math.exp(float(logs.mean()))


def _log_means(frame: pd.DataFrame, seconds: pd.Series) -> Floats:
    """The logarithm of each run's mean over steps."""
    means = means_of_runs(frame, seconds)
    if not (means > 0).all():
        raise NoRatioError("the fit does not predict a positive time at the lengths that both arms have")
    return np.log(means)


def means_of_runs(frame: pd.DataFrame, values: pd.Series) -> Floats:
    """Each run's mean over its steps; sorted, so that the sequence of the runs does not change the digits of a sum."""
    weights, of_run = frame["n"].to_numpy(float), pd.factorize(frame["run"])[0]
    return np.sort(np.bincount(of_run, values.to_numpy(float) * weights) / np.bincount(of_run, weights))


def interval(sample: RunNumbers, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The confidence interval of the ratio by Welch's t; NaN where an arm has a single run."""
    half, _ = reach(sample, confidence)
    return math.exp(sample.log_ratio - half), math.exp(sample.log_ratio + half)


def reach(sample: RunNumbers, confidence: float = CONFIDENCE, more: int = 0) -> tuple[float, float]:
    """Half the width of the interval, and the true difference that it excludes from 0 with a power of 80%.

    With `more` further runs of each arm whose spread is the same. NaN where an arm has a single run.
    """
    arms = (sample.baseline, sample.arm)
    runs = [len(one) + more for one in arms]
    if min(map(len, arms)) < 2:
        return math.nan, math.nan
    parts = [float(np.var(one, ddof=1)) / n for one, n in zip(arms, runs, strict=True)]
    spread = sum(parts)
    slopes = [error * (len(one) / n) ** 0.5 for error, one, n in zip(sample.errors, arms, runs, strict=True)]
    error = math.sqrt(spread + sum(one**2 for one in slopes))
    if not error > 0:
        return sample.bias, sample.bias
    # Welch's degrees alone miss 10% with 2 runs against 10: never more than two arms of the fewer runs have.
    freedom = 2.0 * (min(runs) - 1)
    if spread > 0:
        freedom = min(freedom, spread**2 / sum(part**2 / (n - 1) for part, n in zip(parts, runs, strict=True)))
    # The error whose normal interval is as wide as Student's; with it the least width that covers at the worst bias
    # (Armstrong and Kolesár 2018).
    wide = error * students_t(freedom, (1 + confidence) / 2) / normal((1 + confidence) / 2)
    half = wide * folded(sample.bias / wide, confidence)
    return half, half + error * students_t(freedom, POWER)


def more_runs(sample: RunNumbers, within: float) -> float:
    """How many more runs of each arm would show the difference, or that it is below `within`, with a power of 80%.

    `within` is the logarithm of a ratio. NaN above 1,000, where nothing varies, and where an arm has a single run.
    """
    value = abs(sample.log_ratio)

    def resolves(more: int) -> bool:
        _, detected = reach(sample, more=more)
        return detected <= value or detected + value <= within

    if not max(np.ptp(sample.baseline), np.ptp(sample.arm)) > 0 or min(len(sample.baseline), len(sample.arm)) < 2:
        return math.nan
    more = range(1, MOST_RUNS + 1)
    found = bisect_left(more, True, key=resolves)
    return float(more[found]) if found < len(more) else math.nan
