"""Compares how far two arms' engines are from their trainers: the log-probabilities of the tokens that were sampled.

As seconds are compared: one number a run, at the lengths that both arms have (a mismatch grows with length), and
Welch's t on logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.compared import Compared, column_of, mean_of_runs
from analysis.ratio import NoRatioError, equal_work, interval, raw
from analysis.verdict.arm_verdict import NO_SPAN, is_resolved, ratio_text

DEFINITIONS = {
    "rollout_logp_gap": "mean difference of log-probabilities",
    "rollout_k3": "KL by k3",
    "rollout_kl": "KL",
    "rollout_probability_gap": "mean difference of probabilities",
    "rollout_kl_kept": "KL, of tokens below a cap",
    "rollout_kl_geometric": "KL, by a response's geometric mean",
}
"""Quantities that trainers log; what two arms do not log by one definition is not compared. The first one counts."""
BOUNDS = {"rollout_logp_gap": 0.1}
"""From here on the gate fails: slime's own tests of a training end there (docs/report.md)."""
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

    def beyond(self, baseline: str, arm: str) -> list[str]:
        """The arms whose engine is so far from the trainer that the gate fails."""
        bound = BOUNDS.get(self.quantity, math.inf)
        return [name for name, value in ((baseline, self.baseline), (arm, self.arm)) if value >= bound]


def mismatch_of(wide: pd.DataFrame, one: Compared) -> Mismatch | None:
    """The mismatch of both arms by the first definition that all runs log in the compared steps; None without one."""
    for quantity in (name for name in DEFINITIONS if name in wide and not one.is_empty):
        sides = [_with_mismatch(wide, side, quantity) for side in one.sides]
        if all(map(_all_runs_log_it, sides)):
            return _compared(quantity, *(side[np.isfinite(side["seconds"])] for side in sides))
    return None


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
    if min(float(of.min()) for of in means) == 0:
        return Mismatch(quantity, float(means[0].mean()), float(means[1].mean()), math.nan, NO_SPAN, False)
    try:
        sample, at_equal_lengths = equal_work(baseline, arm), True
    except NoRatioError:
        sample, at_equal_lengths = raw(baseline, arm), False
    low, high = interval(sample)
    values = [math.exp(float(of.mean())) for of in (sample.baseline, sample.arm)]
    return Mismatch(quantity, values[0], values[1], math.exp(-sample.log_ratio), (1 / high, 1 / low), at_equal_lengths)


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
    """`sglang is 3.20 times as far from its trainer as vllm: 0.036 against 0.011 (...).`; "" for None."""
    if one is None:
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
        known += f"; 95% CI {ratio_text(low).removesuffix('x')} to {ratio_text(high).removesuffix('x')} times"
    values = f"{own:.3g} against {other:.3g}"
    if max(one.arm, one.baseline) < ROUNDING.get(one.quantity, 0.0):
        return f"{first} and {second} are as near to their trainers as float32 rounds: {values} ({known})."
    if not is_resolved((low, high)):
        return f"How far {first} and {second} are from their trainers is not resolved: {values} ({known})."
    times = ratio_text(factor).removesuffix("x")
    return f"{first} is {times} times as far from its trainer as {second}: {values} ({known})."


def of_rollouts(wide: pd.DataFrame, one: Compared) -> tuple[dict[str, float], dict[str, str]]:
    """By arm: how many policy versions old what is trained is (NaN where not logged), and what the engine drafts."""
    means = [
        {arm: mean_of_runs(side, column_of(wide, side, name)) for side, arm in one.named_sides}
        for name in ("staleness", "acceptance_length")
    ]
    return means[0], {arm: "drafts tokens" for arm, length in means[1].items() if length > 1}


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
