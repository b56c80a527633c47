"""Compares two arms by one number a run: the logarithm of its seconds a step, raw or at equal work.

At equal work each arm's seconds are fitted to its lengths (least squares, slopes from within its runs), and a run's
number is its mean at the step that is common to both arms. The arms' numbers are compared by Welch's t, which needs
neither pairs nor equal spreads nor equally many runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

Floats = npt.NDArray[np.float64]

CONFIDENCE = 0.95
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
    """Why two arms have no ratio at equal work."""


@dataclass(frozen=True)
class Sample:
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

    @property
    def reversed(self) -> Sample:
        return Sample(self.arm, self.baseline, self.errors[::-1], self.bias)


@dataclass(frozen=True)
class Common:
    """The steps of two arms that are compared."""

    baseline: pd.DataFrame
    arm: pd.DataFrame
    by_number: bool
    """Whether steps were matched by their number: the runs' counters advance alike."""
    short: tuple[str, ...]
    """The runs that are left out, because they have too few steps."""


def common_steps(baseline: pd.DataFrame, arm: pd.DataFrame) -> Common:
    """The steps whose number all runs have; all steps where the runs' counters do not advance alike.

    Identical engines whose steps grow would differ if one had run for longer. A run with fewer than half of the median
    run's steps is left out, as it would shorten all others. Columns `run`, `step`, `n`: the steps up to `step` that a
    row stands for.
    """
    frames = (baseline, arm)
    counts = pd.concat([frame.groupby("run")["n"].sum() for frame in frames])
    short = counts.index[counts < SHORT * counts.median()]
    kept = [frame[~frame["run"].isin(short)] for frame in frames]
    if any(frame.empty for frame in kept):
        short, kept = counts.index[:0], list(frames)
    rows = pd.concat(kept)
    by_number = len(set(rows.groupby("run")[["step", "n"]].apply(_advance).dropna())) <= 1
    if by_number:
        have = rows.groupby(["step", "n"])["run"].nunique()
        common = have.index[have == rows["run"].nunique()]
        kept = [frame[pd.MultiIndex.from_frame(frame[["step", "n"]]).isin(common)] for frame in kept]
    return Common(*kept, by_number, tuple(map(str, short)))


def _advance(run: pd.DataFrame) -> float:
    """How far a run's counter goes for each step; NaN for a single row."""
    return float((run["step"].diff() / run["n"]).median())


def raw(baseline: pd.DataFrame, arm: pd.DataFrame) -> Sample:
    """The sample of the mean seconds of each run's steps; columns `run`, `n` (steps of a row), `seconds`."""
    return Sample(_log_means(baseline, baseline["seconds"]), _log_means(arm, arm["seconds"]))


def equal_work(baseline: pd.DataFrame, arm: pd.DataFrame) -> Sample:
    """The sample of each run's seconds at the lengths that both arms have: also columns `longest`, `tokens`, `floor`.

    Raises `NoRatioError` if the lengths are unknown, too few, hardly in common, or cannot be told apart.
    """
    frames = (baseline, arm)
    for name, label in zip(LENGTHS, ("the longest response", "the number of tokens"), strict=True):
        for side, frame in zip(("baseline", "arm"), frames, strict=True):
            if not (frame[name] > 0).all():
                raise NoRatioError(f"{label} of the {side} is not known in every step")
    if (fewest := min(len(frame) for frame in frames)) < LEAST_STEPS:
        raise NoRatioError(f"a fit needs {LEAST_STEPS} steps of each arm (there are {fewest})")
    columns, centre = _columns(frames)
    samples = [_adjusted(frame, columns, centre) for frame in frames]
    (a, a_error), (b, b_error) = samples
    plain = raw(baseline, arm)
    all_lengths = all(frame[FLOOR].notna().all() for frame in frames)
    share = FIT_BIAS_WITH_ALL_LENGTHS if all_lengths else FIT_BIAS
    bias = share * abs(plain.log_ratio - float(a.mean() - b.mean()))
    return Sample(a, b, (a_error, b_error), bias)


def _columns(frames: tuple[pd.DataFrame, pd.DataFrame]) -> tuple[list[str], pd.Series]:
    """The columns that both arms' fits need, and the mean step that lies in both arms' ranges."""
    lengths = [frame[list(LENGTHS)] for frame in frames]
    low = pd.concat([one.min() for one in lengths], axis=1).max(axis=1)
    high = pd.concat([one.max() for one in lengths], axis=1).min(axis=1)
    inside = [((one >= low) & (one <= high)).all(axis=1) for one in lengths]
    if min(int(one.sum()) for one in inside) < LEAST_COMMON_STEPS:
        raise NoRatioError("no common support: hardly a step of one arm has lengths like those of the other")
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
    weights = frame["n"].to_numpy(float)[:, None]
    sums = (
        pd.DataFrame(np.hstack([values * weights, weights]))
        .groupby(frame["run"].to_numpy())
        .transform("sum")
        .to_numpy()
    )
    found: Floats = (values - sums[:, :-1] / sums[:, -1:]) * np.sqrt(weights)
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
    runs = frame["run"]
    means = (seconds * frame["n"]).groupby(runs).sum() / frame["n"].groupby(runs).sum()
    if not (means > 0).all():
        raise NoRatioError("the fit does not predict a positive time at the lengths that both arms have")
    return np.log(means.to_numpy(float))


def interval(sample: Sample, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The confidence interval of the ratio by Welch's t; NaN where an arm has a single run."""
    if min(len(sample.baseline), len(sample.arm)) < 2:
        return math.nan, math.nan
    from scipy import stats

    arms = (sample.baseline, sample.arm)
    parts = [float(np.var(one, ddof=1)) / len(one) for one in arms]
    spread = sum(parts)
    error, half = math.sqrt(spread + sum(one**2 for one in sample.errors)), sample.bias
    if spread > 0:
        freedom = spread**2 / sum(part**2 / (len(one) - 1) for part, one in zip(parts, arms, strict=True))
        # Welch's degrees alone miss 10% with 2 runs against 10: never more than two arms of the fewer runs have.
        freedom = min(freedom, 2 * (min(map(len, arms)) - 1))
        # The error whose normal interval is as wide as Student's; with it the least width that covers at the worst bias
        # (Armstrong and Kolesar 2018).
        error *= float(stats.t.ppf((1 + confidence) / 2, freedom) / stats.norm.ppf((1 + confidence) / 2))
        half = error * float(stats.foldnorm.ppf(confidence, sample.bias / error))
    return math.exp(sample.log_ratio - half), math.exp(sample.log_ratio + half)
