"""What the comparison amounts to, in sentences that claim no more than the numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.rows import rows_of
from analysis.runs import Plan
from analysis.speedup import disagrees, outliers_decide

CAVEAT = "Within these runs only: no interval yet."


@dataclass(frozen=True)
class Headline:
    """What one arm amounts to against the baseline; ratios are ranges over the factor combinations."""

    arm: str
    baseline: str
    sentence: str
    raw: tuple[float, float]
    per_token: tuple[float, float]
    unequal: int = 0
    """Findings that say the two arms do not meet on equal terms."""


def ratio_text(value: float) -> str:
    """A ratio as `2.15×`, with three digits from 10 on."""
    if math.isnan(value):
        return "—"
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}×"


def range_text(low: float, high: float) -> str:
    """One ratio, or `1.90× to 2.15×`."""
    a, b = ratio_text(low), ratio_text(high)
    return a if a == b else f"{a} to {b}"


def direction(value: float) -> int:
    """1 where the arm is faster, -1 where the baseline is, 0 where the printed ratio is 1.00."""
    rounded = round(value, 2)
    return (rounded > 1) - (rounded < 1)


def headlines(
    comparison: pd.DataFrame, plan: Plan, unequal: Callable[[Sequence[str]], int] | None = None
) -> list[Headline]:
    """One for each compared arm, in the plan's order.

    `unequal` tells how many findings of the preflight say that some arms do not meet on equal terms.
    """
    found = []
    for arm in plan.arms:
        rows = comparison[comparison["arm"] == arm]
        if len(rows):
            found.append(_headline(rows, arm, plan, unequal((plan.baseline, arm)) if unequal else 0))
    return found


def _headline(rows: pd.DataFrame, arm: str, plan: Plan, unequal: int) -> Headline:
    base = plan.baseline
    raw = (float(rows["raw_speedup"].min()), float(rows["raw_speedup"].max()))
    told = not rows["per_token_speedup"].isna().any()
    nothing = float("nan")
    token = (
        (float(rows["per_token_speedup"].min()), float(rows["per_token_speedup"].max())) if told else (nothing, nothing)
    )
    sentence = _claim("per step", raw, arm, base) + "; "
    sentence += _claim("per response token", token, arm, base) if told else "per response token it is not known"
    raw_signs, token_signs = {direction(v) for v in raw}, {direction(v) for v in token} if told else set()
    sentence += "."
    if unequal:
        sentence += (
            " The comparison is not on equal terms, so the engines alone do not explain this: see "
            f"{_count(unequal, 'finding', 'findings')} in the fairness ledger."
        )
    if told and raw_signs != token_signs:
        sentence += " The two disagree on which is faster: the responses differ in length, so neither settles it."
    if any(disagrees(r.lowest_seed_speedup, r.highest_seed_speedup) for r in rows_of(rows)):
        sentence += " The seeds disagree on which is faster, so this is not settled."
    if any(disagrees(r.raw_speedup, r.median_speedup) for r in rows_of(rows)):
        sentence += " The median steps point the other way: a few outlying steps decide, so do not rely on this."
    elif any(outliers_decide(r.raw_speedup, r.median_speedup) for r in rows_of(rows)):
        medians = ", ".join(f"{r.median_speedup:.2f}×" for r in rows_of(rows))
        sentence += f" The median steps say {medians}: a few outlying steps decide how much, so do not rely on this."
    runs, steps = int(rows["run_pairs"].sum()), int(rows["paired_steps"].sum())
    sweep = f" over {len(rows)} factor combinations" if len(rows) > 1 else ""
    sentence += (
        f" From {_count(runs, 'pair of runs', 'pairs of runs')} and "
        f"{_count(steps, 'paired step', 'paired steps')}{sweep}, "
        f"after {_count(plan.warmup_steps, 'warm-up step', 'warm-up steps')} in each run. {CAVEAT}"
    )
    return Headline(arm, base, sentence[0].upper() + sentence[1:], raw, token, unequal)


def _claim(unit: str, span: tuple[float, float], arm: str, base: str) -> str:
    low, high = span
    signs = {direction(low), direction(high)}
    if signs == {0}:
        return f"{unit} {arm} and {base} take the same time (1.00×)"
    if signs <= {0, 1}:
        return f"{unit} {arm} is {range_text(low, high)} as fast as {base}"
    if signs <= {0, -1}:
        return f"{unit} the baseline {base} is {range_text(1 / high, 1 / low)} as fast as {arm}"
    return f"{unit} {arm} is {range_text(low, high)} as fast as {base}: faster for some factors, slower for others"


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
