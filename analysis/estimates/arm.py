"""Computes the four estimates of one arm against another, with their intervals, and compares them with each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from analysis.estimates.bootstrap import (
    CONFIDENCE,
    RESAMPLES,
    Floats,
    Interval,
    Sums,
    block_length,
    interval_of,
    resampled_sums,
)
from analysis.estimates.equal_work import (
    EQUAL_WORK,
    ESTIMATES,
    FLOOR,
    FLOOR_BASIS,
    GENERATION,
    LONGEST,
    STEP,
    Paired,
    Row,
    log_estimate,
    log_side,
    paired,
)
from analysis.pairs import MEAN_LENGTH, TOKENS, disagrees
from analysis.planned import EQUAL_WITHIN
from analysis.wide import ROUNDING
from analysis.windows import pair_weights
from trainers.registry import discards

STEP_ROUNDING = ROUNDING + "step"
_NEEDED = (STEP, STEP_ROUNDING, TOKENS, MEAN_LENGTH, LONGEST, FLOOR, FLOOR_BASIS, GENERATION)

ACROSS, WITHIN, ONE_STEP = "across runs", "within-run only", "one step"
# The fit is off by up to this share of the effect of lengths that it takes out (`python -m bench coverage`), by less
# where the lengths of all responses are known; then by what its regressors leave open of them, where that is more.
FIT_BIAS = 0.05
FIT_BIAS_WITH_ALL_LENGTHS = 0.01
ROUNDED = "the times are printed with so few digits that rounding alone could explain the difference"
ONE_PAIR = "one pair of runs does not show how much other runs differ, so no direction is claimed"
# From this ratio on the difference between raw and equal work matters, whatever its cause.
FAR = 1.15
# From this logarithm on two sums of tokens differ by more than the printing of a mean.
WORK_DIFFERS_FROM = 0.01
# From this logarithm on raw and the roofline estimate differ by more than the fixed part of a step.
REST_MATTERS_FROM = 0.02
UNSETTLED = "not settled by the floor alone"


def needed() -> tuple[str, ...]:
    """The columns of `wide` that the estimates use."""
    return (*_NEEDED, *discards())


def estimates(
    pairs: pd.DataFrame,
    overlap: str = "",
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
    until: float = EQUAL_WITHIN,
) -> list[Row]:
    """The four estimates of one arm from its paired steps, as `estimate_table`'s rows without factors and arms.

    `overlap` says why only step time and throughput can be compared, where that is so. Arms are equal within `until`.
    """
    steps = paired(pairs)
    rounding = rounding_reach(pairs)
    by_block: dict[int, Sums] = {}
    scope = ONE_STEP if steps.rows == 1 else WITHIN if len(steps.lengths) == 1 else ACROSS
    size: Row = {"scope": scope, "run_pairs": len(steps.lengths), "paired_steps": steps.steps}
    rows: list[Row] = []
    for name in ESTIMATES:
        why = overlap if overlap and name in EQUAL_WORK else steps.why.get(name, "")
        if not why:
            block = block_length(steps.series[name], spent_blocks(name, steps))
            if block not in by_block:
                by_block[block] = resampled_sums(steps.columns, steps.lengths, block, resamples)
        rows.append(
            (no_value(name, why) if why else _row(name, steps, by_block[block], rounding, confidence, until)) | size
        )
    by_name = {row["estimate"]: row for row in rows}
    by_name["roofline"] = settled_roofline(by_name)
    found = list(by_name.values())
    return found if scope == ACROSS else [_of_one_pair(row) for row in found]


def rounding_reach(pairs: pd.DataFrame) -> tuple[float, float]:
    """How far log(ΣT_a / ΣT_b) may be below and above its value, because step times are printed rounded.

    This is the worst case, in which every step is rounded the same way. Infinite where rounding may be all of the time.
    """
    less, more, steps = [], [], pair_weights(pairs)
    for side in "ab":
        step_s, name = float((pairs[f"{STEP}_{side}"] * steps).sum()), f"{STEP_ROUNDING}_{side}"
        off_s = float((pairs[name] * steps).sum()) if name in pairs else 0.0
        less.append(math.log1p(-off_s / step_s) if 0 <= off_s < step_s else -math.inf)
        more.append(math.log1p(off_s / step_s) if step_s > 0 else math.inf)
    return more[1] - less[0], more[0] - less[1]


def _row(name: str, steps: Paired, sums: Sums, rounding: tuple[float, float], confidence: float, until: float) -> Row:
    value = float(log_estimate(name, steps.fitted, sums.whole))
    if math.isnan(value):
        return no_value(name, "singular fit: it does not predict a positive time")
    found = _interval(name, steps, sums, confidence)
    one_step = "one step has no interval"
    no_interval = one_step if steps.rows == 1 else "no interval: too few steps, or a fit that is not stable"
    why = "" if found else no_interval
    verdict = verdict_of(value, found)
    off = max(rounding)
    more_runs = math.nan
    if found:
        equal = max(-found.low, found.high) + off < math.log(until)
        wanted = max(0.0, abs(value) - off), math.log(until) - off
        more_runs = 0.0 if verdict in "+-" or equal else found.more_runs(*wanted)
    if found and any(rounding):
        found = replace(found, low=found.low - rounding[0], high=found.high + rounding[1])
        found = found if math.isfinite(found.low) and math.isfinite(found.high) else None
        if verdict_of(value, found) != verdict or found is None:
            verdict, more_runs = "~", math.nan
            why = ROUNDED
    return {
        "estimate": name,
        "value": math.exp(value),
        "low": math.exp(found.low) if found else math.nan,
        "high": math.exp(found.high) if found else math.nan,
        "verdict": verdict,
        # The interval is wider by `off`, so a detectable effect is larger by as much.
        "minimum_detectable_ratio": math.exp(found.detectable + off) if found else math.nan,
        "runs_to_resolve": more_runs,
        "why": why,
    }


def fit_bias(steps: Paired, whole: Floats) -> float:
    """How far the fit's logarithm may be off at each side; 0 where nothing is fitted."""
    raw, fit = (float(log_estimate(name, steps.fitted, whole)) for name in ("raw", "standardised"))
    if steps.left_open is None:
        return FIT_BIAS * abs(raw - fit)
    return max(FIT_BIAS_WITH_ALL_LENGTHS * abs(raw - fit), steps.left_open)


def _interval(name: str, steps: Paired, sums: Sums, confidence: float) -> Interval | None:
    """An estimate's interval. At equal work the runs of a pair share nothing, so each arm's spread is measured alone.

    The other estimates divide steps of the same prompts, whose lengths are similar in both arms of a pair.
    """
    of = (name, steps.fitted)
    sides = (lambda drawn: log_side(*of, drawn, "a"), lambda drawn: -log_side(*of, drawn, "b"))
    apart = sides if name in EQUAL_WORK else ()
    bias = fit_bias(steps, sums.whole) if name == "standardised" else 0.0
    return interval_of(lambda drawn: log_estimate(*of, drawn), sums, spent_blocks(name, steps), apart, confidence, bias)


def _of_one_pair(row: Row) -> Row:
    """A row from one pair of runs: it has no direction, and its `runs_to_resolve` is a rough estimate, 1 or more."""
    if not row["low"] > 0:
        return row
    more = row["runs_to_resolve"] or 1.0
    why = row["why"] or ONE_PAIR
    return row | {"verdict": "~", "minimum_detectable_ratio": math.nan, "runs_to_resolve": more, "why": why}


def spent_blocks(name: str, steps: Paired) -> int:
    """The blocks that an estimate's coefficients use, as degrees of freedom."""
    return 1 + sum(steps.fitted) if name == "standardised" else 1


def verdict_of(log_value: float, interval: Interval | None) -> str:
    """`+` or `-` where the interval is on one side of 1, otherwise `~`."""
    if interval is None or interval.low <= 0 <= interval.high:
        return "~"
    return "+" if log_value > 0 else "-"


def no_value(name: str, why: str) -> Row:
    """The row of an estimate without a value."""
    numbers = ("value", "low", "high", "minimum_detectable_ratio", "runs_to_resolve")
    counts: Row = {"scope": "", "run_pairs": 0, "paired_steps": 0}
    return {"estimate": name, **dict.fromkeys(numbers, math.nan), "verdict": "x", **counts, "why": why}


def disagreement(rows: Mapping[str, Row]) -> str:
    """How the raw ratio and those at equal work disagree, or "".

    They disagree where raw's interval overlaps none of theirs, where they are on the other side of 1 and raw's interval
    excludes 1, or where raw is `FAR` from all of them. Without intervals the printed ratios on two sides of 1 are
    enough.
    """
    raw = rows["raw"]
    equal = [rows[name] for name in EQUAL_WORK if rows[name]["value"] > 0]
    if not equal or not raw["value"] > 0:
        return ""
    opposite = all(disagrees(raw["value"], row["value"]) for row in equal)
    far = all(max(raw["value"] / row["value"], row["value"] / raw["value"]) > FAR for row in equal)
    disagree = opposite or far
    if raw["low"] > 0 and all(row["low"] > 0 for row in equal):
        no_overlap = all(raw["low"] > row["high"] or raw["high"] < row["low"] for row in equal)
        disagree = no_overlap or far or (opposite and not raw["low"] <= 1 <= raw["high"])
    if not disagree:
        return ""
    values = ", ".join(f"{row['estimate']} {row['value']:.2f}×" for row in equal)
    text = f"by step time {raw['value']:.2f}×, at equal work {values}: "
    if not (work := different_work(rows)):
        return text + "both arms' responses have the same number of tokens, so rely on neither alone"
    text += f"the arms did different work ({work}), and step time alone "
    return text + ("would mislead" if has_intervals(rows) else "may mislead; with so few steps it may also be chance")


def different_work(rows: Mapping[str, Row]) -> str:
    """How two arms' paired steps differ in their sum of tokens, or in their floors on the same GPUs, or "".

    Per token over raw is the ratio of tokens, roofline over raw the ratio of floors. Neither shows how long single
    responses are: sums also differ by the number of responses.
    """
    raw = rows["raw"]["value"]
    shown = {
        "per_token": "the arm generated {:.2f}× as many tokens as the baseline",
        "roofline": "the arm's decode floor is {:.2f}× the baseline's",
    }
    for name, text in shown.items():
        ratio = row["value"] / raw if (row := rows.get(name)) and raw > 0 else math.nan
        if ratio > 0 and abs(math.log(ratio)) > WORK_DIFFERS_FROM:
            return text.format(ratio)
    return ""


def has_intervals(rows: Mapping[str, Row]) -> bool:
    """Whether raw and the estimates at equal work all have an interval, where they have a value."""
    return all(rows[n]["low"] > 0 for n in ("raw", *EQUAL_WORK) if rows[n]["value"] > 0)


def settled_roofline(rows: Mapping[str, Row]) -> Row:
    """The roofline's row; its interval includes raw's where the arms' work differs and no fit has an interval.

    How much of a step grows with its floor is unknown: all of it (the estimate), none (raw), or a part, which only a
    fit shows. Without the fit's interval the truth is between the two, and a direction needs both ends.
    """
    row, raw = rows["roofline"], rows["raw"]["value"]
    if not (row["low"] > 0 and raw > 0) or rows["standardised"]["low"] > 0 or not _far(raw, row["value"]):
        return row
    resolved = row["verdict"] == rows["raw"]["verdict"] and row["verdict"] in "+-"
    ends = [row["low"], row["high"], raw, *(end for name in ("low", "high") if (end := rows["raw"][name]) > 0)]
    return row | {
        "low": min(ends),
        "high": max(ends),
        "verdict": row["verdict"] if resolved else "~",
        "minimum_detectable_ratio": math.nan,
        "runs_to_resolve": 0.0 if resolved else math.nan,
        "why": f"{UNSETTLED}: the arms' work differs, the ratio depends on how much of a step grows with its floor "
        f"(all of it: {row['value']:.2f}×; none: {raw:.2f}×), and no fit with an interval shows how much",
    }


def _far(a: float, b: float) -> bool:
    return abs(math.log(a / b)) >= REST_MATTERS_FROM
