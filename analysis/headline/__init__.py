"""What the comparison amounts to, in sentences that claim no more than the numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd

from analysis.estimates.noise import repeated
from analysis.headline.case import Case, case_of
from analysis.headline.claims import claims, limits, with_intervals
from analysis.headline.doubts import doubts, grounds, terms
from analysis.headline.ratios import NO_SPAN, Span, over, swapped
from analysis.preflight import Preflight
from analysis.runs import Plan


@dataclass(frozen=True)
class Headline:
    """What one arm amounts to against the baseline; spans are over the factor combinations.

    `verdict` is that of the claim: `+` faster, `-` slower, `~` not resolved (or not the same for all factors), `x` not
    comparable. `claimed` are the estimates that it rests on, with the span of their values and of their intervals (NaN
    without one); `everything` spans all the estimates that have a value.
    """

    arm: str
    baseline: str
    sentence: str
    verdict: str
    claimed: tuple[str, ...]
    values: Span
    interval: Span
    everything: Span
    unequal: int = 0
    """Findings that say the two arms do not meet on equal terms."""


def headlines(
    comparison: pd.DataFrame,
    plan: Plan,
    preflight: Preflight | None = None,
    estimates: pd.DataFrame | None = None,
    gate: pd.DataFrame | None = None,
) -> list[Headline]:
    """One for each arm that has steps in common with the baseline, in the plan's order; none for a repetition (A/A).

    The tables are those of `comparison_table`, `estimate_table` and `gate_table`; `preflight` is None without one.
    """
    found = []
    for arm in plan.arms:
        rows = comparison[comparison["arm"] == arm]
        mine = estimates[estimates["arm"] == arm] if estimates is not None else rows.head(0)
        cases = [case_of(group) for _, group in mine.groupby("factors", sort=False)] if len(rows) else []
        if cases and not repeated(plan, arm):
            of_arm = gate[gate["arm"] == arm] if gate is not None else None
            found.append(_headline(arm, plan, rows, cases, of_arm, preflight))
    return found


def _headline(
    arm: str,
    plan: Plan,
    comparison: pd.DataFrame,
    cases: list[Case],
    gate: pd.DataFrame | None,
    preflight: Preflight | None,
) -> Headline:
    base = plan.baseline
    unequal = preflight.unequal((base, arm)) if preflight is not None else 0
    told = [case for case in cases if case.verdict != "x"]
    if not told:
        why = "; ".join(dict.fromkeys(str(case.rows["raw"]["why"]) for case in cases))
        sentence = f"Not comparable, so that there is no ratio of {arm} and {base}: {why}."
        return Headline(arm, base, sentence, "x", (), NO_SPAN, NO_SPAN, NO_SPAN, unequal)
    claimed = tuple(dict.fromkeys(name for case in told for name in case.claimed))
    values = over([case.span(case.claimed) for case in told])
    certain = with_intervals(told, claimed)
    ends = [[n for n in case.certain if n in certain] or case.certain for case in told]
    intervals = [case.span(names, "low", "high") for case, names in zip(told, ends, strict=True)]
    interval = NO_SPAN if any(math.isnan(low) for low, _ in intervals) else over(intervals)
    everything = over([case.span(case.valued) for case in told])
    verdicts = {case.verdict for case in cases}
    verdict = verdicts.pop() if len(verdicts) == 1 else "~"
    sentences = [
        claims(arm, base, cases, told, verdict, claimed, values, interval),
        *limits(cases, told, everything, verdict, swapped(values), comparison),
    ]
    sentences.append(terms(unequal, preflight))
    sentences += doubts(arm, comparison, told, gate, swapped(values))
    sentences.append(grounds(comparison, plan, told))
    return Headline(arm, base, " ".join(sentences), verdict, claimed, values, interval, everything, unequal)
