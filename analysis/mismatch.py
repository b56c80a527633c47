"""Compares how far two arms' engines are from their trainers: the log-probabilities of the tokens that were sampled.

As seconds are compared: one number a run, at the lengths that both arms have (a mismatch grows with length), and
Welch's t on logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.compared import Compared, column_of
from analysis.planned import EQUAL_WITHIN
from analysis.ratio import NoRatioError, equal_work, interval, raw
from analysis.verdict.arm_verdict import NO_SPAN, equal_within, is_resolved, ratio_text, span_text

K3 = "rollout_k3"
DEFINITIONS = {
    "rollout_logp_gap": "mean difference of log-probabilities",
    K3: "KL by k3",
    "rollout_kl": "KL",
    "rollout_probability_gap": "mean difference of probabilities",
    "rollout_kl_kept": "KL, of tokens below a cap",
    "rollout_kl_geometric": "KL, by a response's geometric mean",
}
"""Quantities that trainers log; what two arms do not log by one definition is not compared. The first one counts."""
BOUND = 0.1
"""From here on the gate fails: slime's own tests of a training end at this difference of log-probabilities."""
BOUNDED = {*DEFINITIONS} - {"rollout_kl_kept"}
"""Definitions of which none is above the mean absolute difference of the same log-probabilities (docs/report.md)."""
ROUNDING = {"rollout_logp_gap": 1e-5, "rollout_k3": 1e-10}
"""Below it log-probabilities differ as float32 rounds: which engine is farther means nothing."""
COLUMNS = ["factors", "arm", "definition", "baseline", "arm_value", "ratio", "low", "high", "at_equal_lengths"]
# A run's mismatch has jumped where its later steps lie so many times higher, all but this share above all but that.
JUMP, LEAST_STEPS_EACH, OVERLAP = 3.0, 4, 0.1


@dataclass(frozen=True)
class Mismatch:
    """How far both arms are from their trainers."""

    quantity: str
    baseline: float
    arm: float
    ratio: float
    """How many times as far the arm is; NaN where a number is 0."""
    interval: tuple[float, float]
    """Its 95% interval; NaN where an arm has one run."""
    at_equal_lengths: bool
    usual: tuple[float, float] = (0.0, 0.0)
    """The lowest median step of both arms' runs: a few tokens may decide a mean by k3."""
    lacks: tuple[tuple[str, int, int, int], ...] = ()
    """Runs whose steps partly have no number: the run, the first of these steps, how many, and of how many."""

    def beyond(self, baseline: str, arm: str) -> list[str]:
        """The arms whose engine is so far from the trainer that the gate fails."""
        values = zip((baseline, arm), (self.baseline, self.arm), self.usual, strict=True)
        far = (name for name, mean, usual in values if mean >= BOUND and (self.quantity != K3 or usual >= BOUND))
        return [*far] if self.quantity in BOUNDED else []


def mismatch_of(wide: pd.DataFrame, one: Compared) -> Mismatch | None:
    """The mismatch of both arms by the first definition that all runs log in the compared steps; None without one."""
    for quantity in (name for name in DEFINITIONS if name in wide and not one.is_empty):
        sides = [_with_mismatch(wide, side, quantity) for side in one.sides]
        if all(map(_all_runs_log_it, sides)):
            found = _compared(quantity, *(side[np.isfinite(side["seconds"])] for side in sides))
            return replace(found, lacks=tuple(_lacks(sides)))
    return None


def _lacks(sides: Sequence[pd.DataFrame]) -> Iterator[tuple[str, int, int, int]]:
    """Runs that lack numbers in steps where another has them, or behind their last one (`Mismatch.lacks`).

    Trainers may log a mismatch in some steps only, which are then the same in all runs.
    """
    rows = pd.concat(sides)
    has = pd.Series(np.isfinite(rows["seconds"].to_numpy(float)), index=rows.index)
    somewhere = {*rows.loc[has, "step"]}
    for run, of_run in rows.groupby("run", sort=False):
        own = sorted(of_run.loc[has[of_run.index], "step"])
        every = max((after - before for before, after in pairwise(own)), default=0)
        ended = of_run["step"] > own[-1] if of_run["step"].max() - own[-1] > every else of_run["step"] < 0
        lacking = of_run[~has[of_run.index] & (of_run["step"].isin(somewhere) | ended)]
        if len(lacking):
            yield str(run), int(lacking["step"].min()), len(lacking), len(of_run)


def _with_mismatch(wide: pd.DataFrame, side: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """The compared steps with the mismatch in the place of the seconds: a token's mean grows with the length."""
    # Without the other columns: of many runs they would be copied for each definition.
    lengths = side[["run", "step", "n", "longest", "mean_length"]].rename(columns={"mean_length": "tokens"})
    return lengths.assign(seconds=column_of(wide, side, quantity), floor=math.nan)


def _all_runs_log_it(side: pd.DataFrame) -> bool:
    """Whether each run has numbers, and their mean is none of a sign that some releases turn."""
    means = side["seconds"].where(np.isfinite(side["seconds"])).groupby(side["run"]).mean()
    return bool(means.notna().all() and (means >= 0).all())


def _compared(quantity: str, baseline: pd.DataFrame, arm: pd.DataFrame) -> Mismatch:
    means = [side.groupby("run")["seconds"].mean() for side in (baseline, arm)]
    first, second = (float(side.groupby("run")["seconds"].median().min()) for side in (baseline, arm))
    usual = first, second
    if min(float(of.min()) for of in means) == 0:
        return Mismatch(quantity, float(means[0].mean()), float(means[1].mean()), math.nan, NO_SPAN, False, usual)
    try:
        sample, at_equal_lengths = equal_work(baseline, arm), True
    except NoRatioError:
        sample, at_equal_lengths = raw(baseline, arm), False
    low, high = interval(sample)
    values = [math.exp(float(of.mean())) for of in (sample.baseline, sample.arm)]
    ratio, span = math.exp(-sample.log_ratio), (1 / high, 1 / low)
    return Mismatch(quantity, values[0], values[1], ratio, span, at_equal_lengths, usual)


def mismatch_table(found: Mapping[tuple[str, str], Mismatch]) -> pd.DataFrame:
    """One row for each mismatch, by factor combination and arm (columns: `COLUMNS`)."""
    rows = [
        (*place, DEFINITIONS[one.quantity], one.baseline, one.arm, one.ratio, *one.interval, one.at_equal_lengths)
        for place, one in found.items()
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def logged_definition(wide: pd.DataFrame) -> str:
    """The first definition by which every arm logs its mismatch; "" without one."""
    arms = wide["arm"].nunique()
    known = (name for name in DEFINITIONS if name in wide and wide.loc[wide[name].notna(), "arm"].nunique() == arms)
    return next(known, "")


def mismatch_line(arms: tuple[str, str], one: Mismatch | None) -> str:
    """`sglang is 3.20 times as far from its trainer as vllm: sglang 0.036, vllm 0.011 (...).`; "" if it is unknown."""
    if one is None or any(2 * count >= steps for *_, count, steps in one.lacks):
        return ""
    baseline, arm = arms
    (low, high), factor, (first, own), (second, other) = (
        one.interval,
        one.ratio,
        (arm, one.arm),
        (baseline, one.baseline),
    )
    if high < 1:
        # The farther one comes first: in its values and its interval, too.
        low, high, factor, (first, own), (second, other) = 1 / high, 1 / low, 1 / factor, (second, other), (first, own)
    known = DEFINITIONS[one.quantity] + ("" if one.at_equal_lengths else ", at unequal lengths")
    if not math.isnan(low):
        known += f"; 95% CI {span_text((low, high))} times"
    values = f"{first} {own:.3g}, {second} {other:.3g}"
    if max(one.arm, one.baseline) < ROUNDING.get(one.quantity, 0.0):
        return f"{first} and {second} are as near to their trainers as float32 rounds: {values} ({known})."
    if not is_resolved((low, high)):
        if equal_within((low, high), EQUAL_WITHIN):
            return f"{first} and {second} are equally far from their trainers: {values} ({known})."
        return f"How far {first} and {second} are from their trainers is not resolved: {values} ({known})."
    times = ratio_text(factor).removesuffix("x")
    return f"{first} is {times} times as far from its trainer as {second}: {values} ({known})."


def jumps(wide: pd.DataFrame, one: Compared, quantity: str) -> list[tuple[str, int, float]]:
    """Runs whose mismatch jumps and stays: the run, the first step of the higher part, and how many times as high."""
    found = []
    for side in one.sides:
        values = side.assign(value=column_of(wide, side, quantity)).sort_values("step")
        for run, rows in values[values["value"] > 0].groupby("run"):
            place, times = two_levels(rows["value"].to_numpy(float))
            if times >= JUMP:
                found.append((str(run), int(rows["step"].iloc[place]), times))
    return found


def two_levels(values: npt.NDArray[np.float64]) -> tuple[int, float]:
    """Where a series is best cut in two, and the ratio of the parts' medians; 1 where they overlap."""
    logs, places = np.log(values), range(LEAST_STEPS_EACH, len(values) - LEAST_STEPS_EACH + 1)
    if not places:
        return 0, 1.0
    # The squares about both parts' means are least where the sums' squares by number are most.
    sums, ends = np.cumsum(logs - logs.mean()), np.arange(places.start, places.stop)
    place = int(ends[np.argmax(sums[ends - 1] ** 2 * (1 / ends + 1 / (len(logs) - ends)))])
    before, after = values[:place], values[place:]
    apart = np.quantile(after, OVERLAP) > np.quantile(before, 1 - OVERLAP)
    return place, float(np.median(after) / np.median(before)) if apart else 1.0
