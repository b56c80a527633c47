"""Chooses the steps of each arm and of the baseline that are compared, and says how their work and steadiness differ.

"At equal work" is said only where responses, prompts and turns are the same; lengths of responses differ always, and
the estimate takes them out (analysis/ratio.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from analysis.counted import gaps, median_of, steps_per_row
from analysis.planned import PlanRead
from analysis.ratio import FLOOR, Common, common_steps, means_of_runs
from analysis.roofline.floors import EQUAL_FLOOR_S
from analysis.wide import BY_CLOCK, PHASE, ROUNDING, numbers_of, threw_away
from trainers.logs.hf_work import SAMPLES_PER_STEP

STEP, LONGEST, TOKENS = PHASE + "step", "max_response_length", "response_tokens"
# Step times are skewed, so means and medians always differ a little; from this ratio on a few steps decide.
OUTLIERS_DECIDE_FROM = 1.25
FALLS_BY = 0.02
"""An arm's steps still fall if the first third is so much longer than the last, by `ERRORS` standard errors."""
LONG = 4.0
"""A step is long from so many times its run's median on."""
SIZES = ["baseline_runs", "arm_runs", "baseline_steps", "arm_steps"]


WITHIN = 0.02
"""Two means are the same within this share."""
ERRORS, NOISE_WITHIN = 3.0, 0.05
"""They are also the same within so many standard errors of their steps, which show no equality above this share."""
# verl counts the question as a turn, so responses without tools have one turn or two.
ONE_ANSWER = 2.0

RESPONSES, PROMPTS, TURNS, MEAN_LENGTH = "responses", "prompt_length", "turns", "mean_length"
TOOLS, SECONDS, ABORTED = "tool_seconds", "seconds", "aborted_percent"
COLUMNS = (RESPONSES, PROMPTS, TURNS, TOOLS, ABORTED, MEAN_LENGTH)
"""Columns of a side's steps: responses a step, means of its prompts' tokens, turns and tools, the percentage of its
responses that were aborted and are empty, and the mean of its responses' tokens."""
_LABELS = {
    RESPONSES: "the number of responses",
    PROMPTS: "the length of prompts",
    TURNS: "the number of turns",
    ABORTED: "the share of aborted responses",
    TOOLS: "the time of tool calls",
}
# Of an arm and the baseline, in this order: as all texts with two numbers are.
_WORDS = {
    RESPONSES: "{} against {} responses a step",
    PROMPTS: "prompts of {} against {} tokens",
    TURNS: "{} against {} turns or tool calls for each response",
    ABORTED: "{}% against {}% of responses are aborted",
    TOOLS: "tool calls of {} against {} s for each response",
    MEAN_LENGTH: "responses of {} against {} tokens on average",
}


Sides = tuple[pd.DataFrame, pd.DataFrame]
"""The steps of the baseline and of an arm that are compared."""


@dataclass(frozen=True)
class Work:
    """Why a step of two arms is not equal work; all empty where it is shown to be equal."""

    differs: str = ""
    """The quantities that differ, with both numbers, the arm's first."""
    lengths: str = ""
    """The lengths of responses, where these differ."""
    why_unequal: str = ""
    """Why nothing is claimed at equal work: what differs, and what is not known of both; "" where something may be."""
    settle: str = ""
    """What would show equal work, where a number is unknown."""
    responses: float = math.nan
    """How many times the baseline's responses the arm has in a step; NaN where these do not differ, or are unknown."""


def work_of(baseline: pd.DataFrame, arm: pd.DataFrame, stated: bool) -> Work:
    """How the work of two arms' steps differs; frames have the columns `COLUMNS`, `n`, `seconds`, NaN where unknown.

    `stated`: an import may state the batch. A number that one arm lacks is unknown for both. Logs without turns are of
    responses without tools; prompts that no log has are not compared, nor few aborted responses that one log has, nor
    tools that take no time in the logs that have them.
    """
    sides, unknown = (baseline, arm), {}
    step_s = min(side[SECONDS].mean() for side in sides)
    needless = {
        PROMPTS: all(side[PROMPTS].isna().all() for side in sides),
        # Without turns, or with one for each response in every step, there are no tools.
        TURNS: all(
            turns.isna().all() or (turns.nunique() == 1 and turns.max() <= ONE_ANSWER)
            for turns in (side[TURNS] for side in sides)
        ),
        ABORTED: not any((side[ABORTED] > 100 * WITHIN).any() for side in sides),
        TOOLS: not any(side[TOOLS].mean() > step_s * WITHIN for side in sides),
    }
    for name, label in _LABELS.items():
        lacking = {
            who: side for who, side in zip(("the baseline", "the arm"), sides, strict=True) if side[name].isna().any()
        }
        if lacking and not needless.get(name):
            # Without lengths there are no tokens either: the batch alone would settle nothing.
            helps = stated and name == RESPONSES and all(side[MEAN_LENGTH].notna().all() for side in lacking.values())
            said = " (a configuration's import.batch_size can say it)" if helps else ""
            unknown[name] = f"{label} of {' and '.join(lacking)} is not known{said}"
    differs = "; ".join(text for name in _LABELS if (text := _difference(sides, name)))
    lengths, settle = _difference(sides, MEAN_LENGTH), ""
    if unknown and not differs:
        settle = f"logs with {' and '.join(_LABELS[name] for name in unknown)}"
    why = "; ".join(filter(None, (differs, *unknown.values(), lengths if unknown else "")))
    baseline_count, arm_count = ((side[RESPONSES] * side["n"]).sum() / side["n"].sum() for side in sides)
    responses = arm_count / baseline_count if _difference(sides, RESPONSES) else math.nan
    return Work(differs, lengths, why, settle, responses)


def _difference(sides: Sides, name: str) -> str:
    """Both means of a quantity, where these differ by more than `WITHIN` and more than their steps' noise."""
    if any(side[name].isna().any() for side in sides):
        return ""
    means = [float((side[name] * side["n"]).sum() / side["n"].sum()) for side in sides]
    apart = abs(means[0] - means[1])
    error = math.sqrt(sum(float(side[name].var(ddof=0)) / len(side) for side in sides))
    # Tools are not the engine's: their seconds are a part of the step's.
    whole = min(side[SECONDS].mean() for side in sides) if name == TOOLS else max(means)
    whole = 100.0 if name == ABORTED else whole
    if apart <= whole * WITHIN or apart <= min(ERRORS * error, whole * NOISE_WITHIN):
        return ""
    digits = 0 if min(means) >= 100 else 1
    return _WORDS[name].format(*(f"{mean:,.{digits}f}".removesuffix(".0") for mean in reversed(means)))


@dataclass(frozen=True)
class Steadiness:
    """The steps that may decide a ratio though they say little of the engine."""

    falling: tuple[bool, bool]
    """Whether the steps of the baseline, and of the arm, still become faster after the declared warm-up."""
    rows: int
    """How many rows of each run these are, at most half of them; 0 where none falls."""
    median_ratio: float
    """The ratio of the runs' median steps, which a few long steps do not change."""
    long: tuple[pd.Series, pd.Series]
    """How many times its run's median each long step of both takes, by the step's place in the table."""


@dataclass(frozen=True)
class Compared:
    """One arm and the baseline at one factor combination, and their steps that are compared.

    The frames of `steps` have the columns that analysis/ratio.py takes, and the index of the table of all steps.
    """

    factors: str
    baseline: str
    arm: str
    steps: Common
    stated: bool = False
    """Whether an arm is imported, so that the experiment may state what its logs lack."""
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

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The runs and the steps of both (`SIZES`)."""
        runs = [side["run"].nunique() for side in self.sides]
        return dict(zip(SIZES, (*runs, *(int(side["n"].sum()) for side in self.sides)), strict=True))

    @property
    def fewest_runs(self) -> int:
        return min(self.sizes[name] for name in SIZES[:2])

    @cached_property
    def work(self) -> Work:
        """How the work of both differs."""
        return Work() if self.is_empty else work_of(*self.sides, self.stated)

    @cached_property
    def steadiness(self) -> Steadiness:
        """Which arms still fall and for how many rows of each run; and the long steps."""
        baseline_falls, arm_falls = falling = tuple(map(still_falling, self.sides))
        most, rows = min((int(side.groupby("run").size().min()) for side in self.sides), default=0) // 2, 0
        places, later = [side.groupby("run").cumcount() for side in self.sides], list(self.sides)
        while rows < most and any(falling):
            # Of a long run a tenth more at once: each look is at all steps.
            rows = min(most, rows + 1 + rows // 10)
            later = [side[place >= rows] for side, place in zip(self.sides, places, strict=True)]
            falling = tuple(map(still_falling, later))
        medians = [
            pd.Series({run: median_of(of["seconds"], of["n"]) for run, of in side.groupby("run")})
            for side in self.sides
        ]
        times = [side["seconds"] / side["run"].map(of) for side, of in zip(self.sides, medians, strict=True)]
        baseline, arm = (of[of >= LONG] for of in times)
        logs = [float(np.mean(np.log(of))) for of in medians]
        falls = (baseline_falls and rows > 0, arm_falls and rows > 0)
        return Steadiness(falls, rows, math.exp(logs[0] - logs[1]), (baseline, arm))

    @property
    def later(self) -> Compared | None:
        """The comparison without the steps that still fall; None where none falls.

        It is not kept, as `without_long` is not: each is a copy of all steps.
        """
        rows = self.steadiness.rows
        return self._over(*(side[side.groupby("run").cumcount() >= rows] for side in self.sides)) if rows else None

    @property
    def without_long(self) -> Compared | None:
        """The comparison without the long steps; None where none is long, or nothing is left."""
        if all(of.empty for of in self.steadiness.long):
            return None
        kept = [side.drop(of.index) for side, of in zip(self.sides, self.steadiness.long, strict=True)]
        return None if any(side.empty for side in kept) else self._over(*kept)

    def _over(self, baseline: pd.DataFrame, arm: pd.DataFrame) -> Compared:
        """The same comparison over other steps."""
        return replace(self, steps=replace(self.steps, baseline=baseline, arm=arm))


def still_falling(side: pd.DataFrame) -> bool:
    """Whether an arm's steps become faster from their first third to their last, within its runs."""
    logs = np.log(side["seconds"]) - np.log(side["seconds"]).groupby(side["run"]).transform("mean")
    place, rows = side.groupby("run").cumcount(), side.groupby("run")["step"].transform("size")
    third = (rows // 3).clip(lower=1)
    first, last = logs[place < third], logs[place >= rows - third]
    fall = first.mean() - last.mean()
    error = math.sqrt(first.var(ddof=0) / len(first) + last.var(ddof=0) / len(last))
    return bool((rows >= 3).all() and fall > max(FALLS_BY, ERRORS * error))


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
                stated = bool(plan.imported(plan.baseline, arm))
                found.append(Compared(str(factors), plan.baseline, arm, steps, stated, by_clock))
    return found


def common_of(baseline: pd.DataFrame, arm: pd.DataFrame, loads: bool = False) -> Common:
    """The steps that both have (`common_steps`); nothing is common to an arm without a counted step."""
    if baseline.empty or arm.empty:
        return Common(baseline.iloc[:0], arm.iloc[:0], True, ())
    return common_steps(baseline, arm, loads)


def _samples(wide: pd.DataFrame) -> pd.DataFrame:
    """The counted steps with the columns of analysis/ratio.py; in a sequence that says nothing of the runs'."""
    rows = wide["counted"].to_numpy(bool)
    lengths = numbers_of(wide, "mean_response_length")
    responses = numbers_of(wide, TOKENS) / np.where(lengths > 0, lengths, math.nan)
    responses = np.where(np.isnan(responses), numbers_of(wide, SAMPLES_PER_STEP), responses)
    prompts = numbers_of(wide, "mean_prompt_length")
    columns = {
        "factors": wide["factors"],
        "arm": wide["arm"],
        "run": wide["run_id"],
        "step": wide["step"],
        "n": steps_per_row(wide),
        # Of all steps: one that is left out is no gap of the counter.
        "gap": wide["run_id"].map(gaps(wide["run_id"], wide["step"], steps_per_row(wide))),
        "seconds": numbers_of(wide, STEP),
        "off_s": np.nan_to_num(numbers_of(wide, ROUNDING + "step")),
        "longest": numbers_of(wide, LONGEST),
        "tokens": numbers_of(wide, TOKENS),
        MEAN_LENGTH: lengths,
        RESPONSES: responses,
        PROMPTS: np.where(np.isnan(prompts), numbers_of(wide, "prompt_tokens") / responses, prompts),
        TURNS: numbers_of(wide, TURNS),
        TOOLS: numbers_of(wide, TOOLS),
        ABORTED: 100 * numbers_of(wide, "aborted_share"),
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
