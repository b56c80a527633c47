"""Chooses the steps of each arm and of the baseline that are compared."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from analysis.planned import PlanRead
from analysis.ratio import FLOOR, Common, common_steps, means_of_runs
from analysis.roofline.floors import EQUAL_FLOOR_S
from analysis.steadiness import LONG, Sides, WarmUp, after, median_steps, warm_up_of
from analysis.wide import BY_CLOCK, PHASE, numbers_of, threw_away
from analysis.windows import gaps, steps_per_row
from analysis.work import PROMPTS, RESPONSES, TOOLS, TURNS, Work, work_of
from trainers.logs.hf_work import SAMPLES_PER_STEP

STEP, LONGEST, TOKENS = PHASE + "step", "max_response_length", "response_tokens"
MEAN_LENGTH, PROMPT_LENGTH = "mean_response_length", "mean_prompt_length"
# Step times are skewed, so means and medians always differ a little; from this ratio on a few steps decide.
OUTLIERS_DECIDE_FROM = 1.25
SIZES = ["baseline_runs", "arm_runs", "baseline_steps", "arm_steps"]


@dataclass(frozen=True)
class Compared:
    """One arm and the baseline at one factor combination, and their steps that are compared.

    The frames of `steps` have the columns that analysis/ratio.py takes, and the index of the table of all steps.
    """

    factors: str
    baseline: str
    arm: str
    steps: Common
    by_clock: bool = False
    """Whether the seconds of an arm are the wall clock, with its checkpoints and evaluations."""

    @property
    def sides(self) -> Sides:
        return self.steps.baseline, self.steps.arm

    @property
    def named_sides(self) -> list[tuple[pd.DataFrame, str]]:
        return list(zip(self.sides, (self.baseline, self.arm), strict=True))

    @property
    def is_empty(self) -> bool:
        return any(side.empty for side in self.sides)

    @property
    def sizes(self) -> dict[str, int]:
        """The runs and the steps of both (`SIZES`)."""
        runs = [side["run"].nunique() for side in self.sides]
        return dict(zip(SIZES, (*runs, *(int(side["n"].sum()) for side in self.sides)), strict=True))

    @cached_property
    def work(self) -> Work:
        """How the work of both differs."""
        return Work() if self.is_empty else work_of(*self.sides)

    @cached_property
    def warm_up(self) -> WarmUp:
        """The steps that still become faster."""
        return warm_up_of(self.sides)

    @property
    def after_warm_up(self) -> Compared:
        """The comparison without them."""
        return self._over(*(after(side, self.warm_up.rows) for side in self.sides))

    @cached_property
    def medians(self) -> tuple[pd.Series, pd.Series]:
        """The median steps of each run of both."""
        baseline, arm = map(median_steps, self.sides)
        return baseline, arm

    @property
    def median_ratio(self) -> float:
        """The ratio of the runs' median steps, which a few long steps do not change."""
        baseline, arm = (float(np.mean(np.log(medians))) for medians in self.medians)
        return math.exp(baseline - arm)

    @cached_property
    def long_steps(self) -> tuple[pd.Series, pd.Series]:
        """How many times its run's median each long step of both takes, by the step's place in the table."""
        times = [side["seconds"] / side["run"].map(of) for side, of in zip(self.sides, self.medians, strict=True)]
        baseline, arm = (of[of >= LONG] for of in times)
        return baseline, arm

    @property
    def without_long_steps(self) -> Compared:
        """The comparison without them."""
        return self._over(*(side.drop(long.index) for side, long in zip(self.sides, self.long_steps, strict=True)))

    def _over(self, baseline: pd.DataFrame, arm: pd.DataFrame) -> Compared:
        """The same comparison over other steps."""
        return replace(self, steps=replace(self.steps, baseline=baseline, arm=arm))

    @property
    def fewest_runs(self) -> int:
        return min(side["run"].nunique() for side in self.sides)


def compared(wide: pd.DataFrame, plan: PlanRead) -> list[Compared]:
    """Each of the baseline's rivals with the baseline, at each factor combination."""
    found = []
    counted = _samples(wide)
    for factors in wide["factors"].unique():
        here = set(wide.loc[wide["factors"] == factors, "arm"])
        rows = counted[counted["factors"] == factors]
        for arm in plan.rivals:
            # Other factors are options of one arm's engine; the ranking compares these.
            if not plan.engines_only or {arm, plan.baseline} <= here:
                base, own = (rows[rows["arm"] == name] for name in (plan.baseline, arm))
                steps = common_of(base, own, plan.step_of != "step")
                by_clock = bool(base[BY_CLOCK].any() or own[BY_CLOCK].any())
                found.append(Compared(str(factors), plan.baseline, arm, steps, by_clock))
    return found


def common_of(baseline: pd.DataFrame, arm: pd.DataFrame, loads: bool = False) -> Common:
    """The steps that both have (`common_steps`); nothing is common to an arm without a counted step."""
    if baseline.empty or arm.empty:
        return Common(baseline.iloc[:0], arm.iloc[:0], True, ())
    return common_steps(baseline, arm, loads)


def _samples(wide: pd.DataFrame) -> pd.DataFrame:
    """The counted steps with the columns of analysis/ratio.py; in a sequence that says nothing of the runs'."""
    rows = wide["counted"].to_numpy(bool)
    lengths = numbers_of(wide, MEAN_LENGTH)
    responses = numbers_of(wide, TOKENS) / np.where(lengths > 0, lengths, math.nan)
    responses = np.where(np.isnan(responses), numbers_of(wide, SAMPLES_PER_STEP), responses)
    prompts = numbers_of(wide, PROMPT_LENGTH)
    columns = {
        "factors": wide["factors"],
        "arm": wide["arm"],
        "run": wide["run_id"],
        "step": wide["step"],
        "n": steps_per_row(wide),
        # Of all steps: one that is left out is no gap of the counter.
        "gap": wide["run_id"].map(gaps(wide["run_id"], wide["step"], steps_per_row(wide))),
        "seconds": numbers_of(wide, STEP),
        "longest": numbers_of(wide, LONGEST),
        "tokens": numbers_of(wide, TOKENS),
        "mean_length": lengths,
        RESPONSES: responses,
        PROMPTS: np.where(np.isnan(prompts), numbers_of(wide, "prompt_tokens") / responses, prompts),
        TURNS: numbers_of(wide, TURNS),
        TOOLS: numbers_of(wide, TOOLS),
        FLOOR: numbers_of(wide, EQUAL_FLOOR_S),
        "discarded": threw_away(wide),
        BY_CLOCK: numbers_of(wide, BY_CLOCK) > 0,
    }
    return pd.DataFrame(columns, index=wide.index)[rows].sort_values(["step", "seconds"], kind="stable")


def column_of(wide: pd.DataFrame, side: pd.DataFrame, name: str) -> pd.Series:
    """A column of the table of all steps at the steps of a side; NaN without such a column."""
    # Not of the selected rows: these with all their columns would be a copy of the table.
    return wide[name][side.index].astype(float) if name in wide else pd.Series(math.nan, index=side.index)


def ratio(a: float, b: float) -> float:
    """a / b, NaN unless both are positive."""
    return a / b if a > 0 and b > 0 else math.nan


def disagrees(a: float, b: float) -> bool:
    """Whether two printed ratios are on different sides of 1.00."""
    return (round(a, 2) - 1) * (round(b, 2) - 1) < 0


def outliers_decide(means: float, medians: float) -> bool:
    """Whether a few steps decide the ratio of means: the medians' ratio has another direction or size."""
    if not (means > 0 and medians > 0):
        return False
    return disagrees(means, medians) or max(means / medians, medians / means) > OUTLIERS_DECIDE_FROM


def mean_of_runs(side: pd.DataFrame, values: pd.Series) -> float:
    """The mean of the runs' means over their steps."""
    known = values.notna()
    return float(means_of_runs(side[known], values[known]).mean()) if known.any() else math.nan


def tokens_ratio(one: Compared) -> float:
    """How many times the baseline's tokens a step the arm generated; NaN where one of them is not known."""
    if any(side["discarded"].any() for side in one.sides):
        return math.nan
    baseline, arm = (mean_of_runs(side, side["tokens"]) for side in one.sides)
    return ratio(arm, baseline)
