"""Makes the table of each arm's speed against the baseline: at equal work, and per step (docs/estimates.md)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.compared import RESPONSES, SIZES, Compared, disagrees, mean_of_runs
from analysis.estimates.comparable import ALL_COMPARABLE, Comparable
from analysis.planned import EQUAL_WITHIN, PlanRead, at
from analysis.quantiles import CONFIDENCE, confidence_at
from analysis.ratio import NoRatioError, RunNumbers, equal_work, interval, more_runs, raw, reach
from analysis.verdict.arm_verdict import WIDE, equal_within, is_too_wide, ratio_text
from common.verdicts import Verdict, count_of

Row = dict[str, Any]
"""One estimate of one arm (columns: `COLUMNS`)."""

EQUAL_WORK, PER_STEP = "equal_work", "per_step"
ESTIMATES = (EQUAL_WORK, PER_STEP)
# From this ratio on the difference between per step and equal work matters, whatever its cause.
FAR = 1.15
# Fewer runs show no spread, and from this logarithm on long steps decide a ratio.
LEAST_RUNS, DECIDES_FROM = 2, 0.02
# Fewer than so many of a run's steps are without an evaluation only if it evaluates more often than any should.
QUICK = 0.25
# From this logarithm on two sums of tokens differ by more than the printing of a mean.
WORK_DIFFERS_FROM = 0.01
# No engine is so much faster than another: from here on a unit is the likelier cause.
OTHER_UNIT_FROM = 5.0
UNNUMBERED = "step-by-place"
"""The code of the finding that a log does not give the steps of its rows."""
# From this ratio of responses a row on, rows without numbers are likelier of several steps than of a larger batch.
OTHER_ROWS_FROM = 1.5
ROWS_UNKNOWN = "one arm's rows have more responses, and a log does not give the steps of its rows"
# From this logarithm on the rounding of logged times can decide a ratio.
COARSE_FROM = 0.01
COARSE = "the logged times are too coarse"
UNIT_UNSAID = f"a ratio beyond {OTHER_UNIT_FROM:g} needs the unit of the seconds"
PER_RESPONSE = "a step has other numbers of responses, and per response it is"
"""How the reason begins why steps are neither equal nor have a direction, although their seconds have."""
NUMBERS = ("value", "baseline_s", "arm_s", "low", "high", "minimum_detectable_ratio", "runs_to_resolve")
COLUMNS = [
    *("factors", "baseline", "arm", "estimate", "value", "baseline_s", "arm_s", "low", "high", "verdict", *SIZES),
    *("minimum_detectable_ratio", "runs_to_resolve", "by_clock", "open", "why", "settle"),
]


def estimate_table(
    wide: pd.DataFrame,
    plan: PlanRead,
    every: Sequence[Compared],
    comparable: Comparable = ALL_COMPARABLE,
    unnumbered: Collection[str] = (),
) -> tuple[pd.DataFrame, list[Verdict]]:
    """One row per factor combination, arm and estimate (columns: `COLUMNS`), and the findings.

    verdict: `+` faster, `-` slower, `~` not resolved, `x` not comparable or without a value (`why` says which, `settle`
    what would give one). `low` and `high` are the 95% interval; `runs_to_resolve` is the number of further runs of each
    arm that would resolve it. `unnumbered` are the runs whose logs do not give the steps of their rows.
    """
    rows: list[Row] = []
    verdicts: list[Verdict] = []
    for one in every:
        if not wide["arm"].eq(one.arm).any():
            continue
        head: Row = {"factors": one.factors, "baseline": one.baseline, "arm": one.arm}
        reason = comparable.refused.get((one.factors, one.arm), "")
        if reason or one.is_empty:
            reason = reason or _not_in_common(wide, one)
            settle = comparable.settle.get((one.factors, one.arm), "")
            rows += [head | no_value(name, reason, settle) for name in ESTIMATES]
            continue
        confidence = confidence_at(one.fewest_runs, plan.most) if plan.most else CONFIDENCE
        found = estimates(one, comparable.throughput_only.get((one.factors, one.arm), ""), confidence, plan.until)
        if (unsaid := comparable.unit_unsaid.get((one.factors, one.arm), "")) and any(map(_is_far, found)):
            far = {"verdict": "~", "open": UNIT_UNSAID, "why": UNIT_UNSAID}
            found = [row | far if _is_far(row) else row for row in found]
            verdicts.append(
                Verdict("warning", "unit-unsaid", f"{one.arm} against {one.baseline}: {unsaid}", (one.arm,))
            )
        responses = sorted(mean_of_runs(side, side[RESPONSES]) for side in one.sides)
        by_place = any(side["run"].isin(unnumbered).any() for side in one.sides)
        if by_place and responses[1] >= OTHER_ROWS_FROM * responses[0]:
            unknown = {"verdict": "~", "open": ROWS_UNKNOWN, "why": ROWS_UNKNOWN}
            found = [row | unknown if row["value"] > 0 else row for row in found]
        rows += [head | row for row in found]
        off = [f"{r['estimate'].replace('_', ' ')} {r['value']:.3f}x" for r in found if r["verdict"] in "+-"]
        if off and plan.repeats(one.arm):
            text = (
                f"{one.arm} against {one.baseline}{at(one.factors)}: one repeats the other, but they differ "
                f"({', '.join(off)}): find what else differs"
            )
            verdicts.append(Verdict("warning", "equal-arms-differ", text))
    return pd.DataFrame(rows, columns=COLUMNS), verdicts


def _not_in_common(wide: pd.DataFrame, one: Compared) -> str:
    present = set(wide.loc[wide["factors"] == one.factors, "arm"])
    absent = [name for name in (one.baseline, one.arm) if name not in present]
    return (f"{' and '.join(absent)} has no run" if absent else "no counted step in common") + at(one.factors)


def estimates(
    one: Compared, overlap: str = "", confidence: float = CONFIDENCE, until: float = EQUAL_WITHIN
) -> list[Row]:
    """The estimates of one arm from its steps, as `estimate_table`'s rows without factors and arms.

    `overlap` says why there is no equal work, where that is so. Arms are equal within `until`.
    """
    rows = []
    later, without = (samples(other, overlap) if other else {} for other in (one.later, one.without_long))
    for name, sample in samples(one, overlap).items():
        if isinstance(sample, NoRatioError):
            row = no_value(name, str(sample), sample.settle)
        else:
            why_open = _open(one, name, sample, later.get(name), without.get(name), confidence, until)
            row = _row(name, sample, confidence, until, why_open)
        rows.append(row | one.sizes | {"by_clock": one.by_clock})
    return rows


Other = RunNumbers | NoRatioError | None
"""The numbers over other steps; None where these are all steps."""


def _open(
    one: Compared, name: str, sample: RunNumbers, later: Other, without: Other, confidence: float, until: float
) -> str:
    """Why a ratio has no direction, whatever its interval; otherwise "".

    `later` is after a longer warm-up, `without` without long steps. Arms are equal within `until`.
    """
    now, ratio = sample.log_ratio, math.exp(sample.log_ratio)
    if one.steps.rounding > max(COARSE_FROM, abs(now)):
        return COARSE
    if isinstance(later, RunNumbers):
        if disagrees(ratio, math.exp(later.log_ratio)):
            return "the steps still become faster, and without them the ratio points to the other arm"
        if one.fewest_runs < LEAST_RUNS and abs(later.log_ratio - now) > abs(now) / 2:
            return "the steps still become faster, and most of the ratio is theirs"
    if isinstance(without, RunNumbers) and abs(without.log_ratio - now) > max(DECIDES_FROM, abs(now) / 2):
        return "a few steps, many times as long as the median, decide the ratio"
    slower = 0 if now > 0 else 1
    if one.by_clock and one.sides[slower]["by_clock"].any():
        # Evaluations and checkpoints lengthen some steps of the slower arm and none of the other's: its quick steps
        # must be slower, too.
        quick = np.log(one.sides[slower].groupby("run")["seconds"].quantile(QUICK).to_numpy())
        low, high = interval(replace(sample, **{("baseline", "arm")[slower]: quick}), confidence)
        if not (low > 1 if slower == 0 else high < 1):
            return "a wall clock includes checkpoints and evaluations, which could explain the difference"
    # What lengths explain is taken out at equal work.
    if name == PER_STEP:
        if disagrees(ratio, one.steadiness.median_ratio):
            return "the median steps point to the other arm"
        other = one.steps.equal_numbers
        # A counter of something else, and a log that leaves steps out, look alike.
        if round(ratio, 2) != 1 and (round(math.exp(other), 2) - 1) * (ratio - 1) <= 0:
            return "the step counters advance by different gaps, and steps of equal number do not say the same"
        each = ratio * one.work.responses
        # Steps that take as long for half the responses are not equal either.
        equal = equal_within(interval(sample, confidence), until) and not equal_within((each, each), until)
        if each > 0 and (disagrees(ratio, each) or equal):
            return f"{PER_RESPONSE} {ratio_text(each)}"
    return ""


def _is_far(row: Row) -> bool:
    """Whether a ratio is so far from 1 that its seconds may be of two units."""
    return bool(row["value"] > 0 and max(row["value"], 1 / row["value"]) > OTHER_UNIT_FROM)


def samples(one: Compared, overlap: str = "") -> dict[str, RunNumbers | NoRatioError]:
    """Each estimate's numbers, one a run; or why it has none."""
    found: dict[str, RunNumbers | NoRatioError] = {}
    thrown = {
        name: int(side["discarded"].sum()) for name, side in zip(("the baseline", "the arm"), one.sides, strict=True)
    }
    discarded = " and ".join(f"{name} in {count_of(n, 'step')}" for name, n in thrown.items() if n)
    why, settle = overlap or one.work.why_unequal, "" if overlap else one.work.settle
    if discarded and not overlap:
        why = f"completions were thrown away ({discarded}): tokens and lengths are of the rest, the seconds of all"
        settle = ""
    elif one.by_clock and not overlap:
        why, settle = "seconds by the wall clock include checkpoints and evaluations", "logs with a step's time"
    try:
        if why:
            raise NoRatioError(why, settle)
        found[EQUAL_WORK] = equal_work(*one.sides)
    except NoRatioError as error:
        lengths = one.work.lengths
        named = f"{error}; {lengths}" if lengths and lengths not in str(error) else str(error)
        found[EQUAL_WORK] = NoRatioError(named, error.settle)
    found[PER_STEP] = raw(*one.sides)
    return {
        name: of if isinstance(of, NoRatioError) else replace(of, bias=of.bias + one.steps.rounding)
        for name, of in found.items()
    }


def _row(name: str, sample: RunNumbers, confidence: float, until: float, why_open: str) -> Row:
    low, high = interval(sample, confidence)
    verdict = "~" if why_open else "+" if low > 1 else "-" if high < 1 else "~"
    _, detectable = reach(sample, confidence)
    alone = [arm for arm, runs in (("the baseline", sample.baseline), ("the arm", sample.arm)) if len(runs) < 2]
    more = 0.0
    if alone and why_open != COARSE:
        more = 1.0
    elif verdict == "~" and not why_open and not 1 / until < low <= high < until:
        more = more_runs(sample, math.log(until))
    why = f"one run of {' and of '.join(alone)} does not show how much other runs differ: no interval" if alone else ""
    return {
        "estimate": name,
        "value": math.exp(sample.log_ratio),
        "baseline_s": math.exp(float(sample.baseline.mean())),
        "arm_s": math.exp(float(sample.arm.mean())),
        "low": low,
        "high": high,
        "verdict": verdict,
        "minimum_detectable_ratio": math.exp(detectable),
        "runs_to_resolve": more,
        "open": why_open,
        "why": why_open or why,
        "settle": "",
    }


def no_value(name: str, why: str, settle: str = "") -> Row:
    """The row of an estimate without a value."""
    nothing = {**dict.fromkeys(NUMBERS, math.nan), **dict.fromkeys(SIZES, 0)}
    return {"estimate": name, **nothing, "verdict": "x", "by_clock": False, "open": "", "why": why, "settle": settle}


def disagreement(rows: Mapping[str, Row]) -> bool:
    """Whether per step and equal work disagree.

    They do where their intervals do not overlap, where they are on two sides of 1 and the interval per step excludes 1,
    or where they are `FAR` from each other. Without intervals the printed ratios on two sides of 1 are enough.
    """
    step, equal = rows[PER_STEP], rows[EQUAL_WORK]
    if not (step["value"] > 0 and equal["value"] > 0):
        return False
    far = max(step["value"] / equal["value"], equal["value"] / step["value"]) > FAR
    opposite = disagrees(step["value"], equal["value"])
    if not (step["low"] > 0 and equal["low"] > 0):
        return far or opposite
    apart = step["low"] > equal["high"] or step["high"] < equal["low"]
    return bool(far or apart or (opposite and not step["low"] <= 1 <= step["high"]))


def what_differs(tokens: float, has_intervals: bool) -> str:
    """What the tokens of two arms that disagree say; `tokens` is how many times the baseline's the arm generated."""
    if not abs(math.log(tokens)) > WORK_DIFFERS_FROM:
        return "although both arms generated equally many tokens, so rely on neither alone"
    misleads = "misleads" if has_intervals else "may mislead"
    return f"the arm generated {tokens:.2f}x as many tokens as the baseline, so step time alone {misleads}"


def legible(estimates: pd.DataFrame) -> pd.DataFrame:
    """The rows of `estimate_table` as they are shown: without the numbers of those that are too wide, which say why."""
    wide = [is_too_wide(*row) for row in estimates[["value", "low", "high"]].astype(float).itertuples(index=False)]
    if not any(wide):
        return estimates
    shown = estimates.astype({"verdict": object, "why": object})
    shown.loc[wide, ["value", "low", "high", "minimum_detectable_ratio"]] = math.nan
    shown.loc[wide, "verdict"] = "~"
    shown.loc[wide, "why"] = WIDE
    return shown
