"""Makes the four estimates of one arm against another, with their intervals."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd

from analysis.estimates.bootstrap import RESAMPLES, Interval, Sums, block_length, interval_of, resampled_sums
from analysis.estimates.disagreement import settled_roofline
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
from analysis.speedup import TOKENS
from analysis.wide import ROUNDING
from trainers.quantities import discarded

STEP_ROUNDING = ROUNDING + "step"
_NEEDED = (STEP, STEP_ROUNDING, TOKENS, LONGEST, FLOOR, FLOOR_BASIS, GENERATION)

ACROSS, WITHIN, ONE_STEP = "across runs", "within-run only", "one step"
# The fit's interval is so much wider at each end: its bias is up to 1% in `python -m bench coverage`, here taken twice.
FIT_BIAS = 0.02
ONE_PAIR = "one pair of runs does not tell how much other runs differ, so no direction is claimed"


def needed() -> tuple[str, ...]:
    """The columns of `wide` that the estimates are made of."""
    return (*_NEEDED, *discarded())


def estimates(pairs: pd.DataFrame, overlap: str = "", resamples: int = RESAMPLES) -> list[Row]:
    """The four estimates of one arm from its paired steps, as `estimate_table`'s rows without factors and arms.

    `overlap` says why there is nothing but step time and throughput, where that is so.
    """
    steps = paired(pairs)
    printed = rounding_reach(pairs)
    by_block: dict[int, Sums] = {}
    scope = ONE_STEP if steps.steps == 1 else WITHIN if len(steps.lengths) == 1 else ACROSS
    size: Row = {"scope": scope, "run_pairs": len(steps.lengths), "paired_steps": steps.steps}
    rows: list[Row] = []
    for name in ESTIMATES:
        why = overlap if overlap and name in EQUAL_WORK else steps.why.get(name, "")
        if not why:
            block = block_length(steps.series[name], spent_blocks(name, steps))
            if block not in by_block:
                by_block[block] = resampled_sums(steps.columns, steps.lengths, block, resamples)
        rows.append((no_value(name, why) if why else _row(name, steps, by_block[block], printed)) | size)
    by_name = {row["estimate"]: row for row in rows}
    by_name["roofline"] = settled_roofline(by_name)
    found = list(by_name.values())
    return found if scope == ACROSS else [_of_one_pair(row) for row in found]


def rounding_reach(pairs: pd.DataFrame) -> tuple[float, float]:
    """How far the printed digits of the step times let log(ΣT_a / ΣT_b) lie below and above its value.

    The worst case: every step rounded the same way, as constant times are. Infinite where it may be all of the time.
    """
    less, more = [], []
    for side in "ab":
        step_s, name = float(pairs[f"{STEP}_{side}"].sum()), f"{STEP_ROUNDING}_{side}"
        off_s = float(pairs[name].sum()) if name in pairs else 0.0
        less.append(math.log1p(-off_s / step_s) if 0 <= off_s < step_s else -math.inf)
        more.append(math.log1p(off_s / step_s) if step_s > 0 else math.inf)
    return more[1] - less[0], more[0] - less[1]


def _row(name: str, steps: Paired, sums: Sums, printed: tuple[float, float]) -> Row:
    value = float(log_estimate(name, steps.fitted, sums.whole))
    if math.isnan(value):
        return no_value(name, "singular fit: what it predicts is no positive time")
    found = _interval(name, steps, sums)
    why = ""
    if found is None:
        why = (
            "one step has no interval"
            if steps.steps == 1
            else "no interval: too few steps, or a fit that is not stable"
        )
    bias = FIT_BIAS if name == "standardised" and any(steps.fitted) else 0.0
    if found:
        found = replace(found, low=found.low - bias, high=found.high + bias)
    verdict = verdict_of(value, found)
    off = max(printed) + bias
    more_runs = 0.0 if verdict in "+-" else found.more_runs(max(0.0, abs(value) - off)) if found else math.nan
    if found and any(printed):
        found = replace(found, low=found.low - printed[0], high=found.high + printed[1])
        found = found if math.isfinite(found.low) and math.isfinite(found.high) else None
        if verdict_of(value, found) != verdict or found is None:
            verdict, more_runs = "~", math.nan
            why = "the times are printed with so few digits that their rounding alone could make the difference"
    return {
        "estimate": name,
        "value": math.exp(value),
        "low": math.exp(found.low) if found else math.nan,
        "high": math.exp(found.high) if found else math.nan,
        "verdict": verdict,
        # The interval is as much wider, so that an effect must be as much larger to lie beyond its end.
        "minimum_detectable_ratio": math.exp(found.detectable + off) if found else math.nan,
        "runs_to_resolve": more_runs,
        "why": why,
    }


def _interval(name: str, steps: Paired, sums: Sums) -> Interval | None:
    """An estimate's interval; at equal work the arms' spreads are measured apart: nothing is common to a pair of runs.

    The other two divide the same prompts' steps, whose lengths are alike in both arms of a pair.
    """

    of = (name, steps.fitted)
    sides = (lambda some: log_side(*of, some, "a"), lambda some: -log_side(*of, some, "b"))
    return interval_of(
        lambda some: log_estimate(*of, some), sums, spent_blocks(name, steps), sides if name in EQUAL_WORK else ()
    )


def _of_one_pair(row: Row) -> Row:
    """A row from one pair of runs: no direction, and no more than a guess at the runs that would resolve one."""
    if not row["low"] > 0:
        return row
    more = row["runs_to_resolve"] if row["verdict"] == "~" else 1.0
    return row | {
        "verdict": "~",
        "minimum_detectable_ratio": math.nan,
        "runs_to_resolve": more,
        "why": row["why"] or ONE_PAIR,
    }


def spent_blocks(name: str, steps: Paired) -> int:
    """How many blocks an estimate's coefficients use up."""
    return 1 + sum(steps.fitted) if name == "standardised" else 1


def verdict_of(log_value: float, interval: Interval | None) -> str:
    """`+` or `-` where the interval lies on one side of 1, `~` where it does not, or there is none."""
    if interval is None or interval.low <= 0 <= interval.high:
        return "~"
    return "+" if log_value > 0 else "-"


def no_value(name: str, why: str) -> Row:
    """The row of an estimate without a value."""
    numbers = ("value", "low", "high", "minimum_detectable_ratio", "runs_to_resolve")
    counts: Row = {"scope": "", "run_pairs": 0, "paired_steps": 0}
    return {"estimate": name, **dict.fromkeys(numbers, math.nan), "verdict": "x", **counts, "why": why}
