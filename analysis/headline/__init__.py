"""What the comparison amounts to, in sentences that claim no more than the numbers."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from analysis.estimates.noise import repeated
from analysis.headline.case import ArmAtPoint, by_unit, case_of
from analysis.headline.claims import claim_of, claims, limits
from analysis.headline.doubts import doubts, grounds, terms
from analysis.headline.ratios import NO_SPAN, Span, over, swapped
from analysis.runs import PlanRead
from common.findings import Preflight


@dataclass(frozen=True)
class Headline:
    """What one arm amounts to against the baseline; spans are over the factor combinations.

    `verdict` is that of the claim: `+` faster, `-` slower, `~` not resolved (or not the same for all factors), `x` not
    comparable. `claimed` are the estimates that it rests on, one for each factor combination, all at equal work or all
    of one other kind, with the span of their values and of their intervals (NaN without one) over the combinations;
    `everything` spans all the estimates that have a value, over all combinations.
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
    plan: PlanRead,
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
    plan: PlanRead,
    comparison: pd.DataFrame,
    cases: list[ArmAtPoint],
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
    groups = by_unit(told)
    claim = claim_of(groups[0])
    everything = over([case.span(case.valued) for case in told])
    verdicts = {case.verdict for case in groups[0]}
    verdict = verdicts.pop() if len(verdicts) == 1 and len(groups[0]) == len(cases) else "~"
    mirrored = swapped(claim.values)
    sentences = [
        *claims(arm, base, cases, groups, verdict),
        *limits(cases, groups, everything, verdict, mirrored, comparison),
        terms(unequal, preflight),
        *doubts(arm, comparison, told, gate, mirrored),
        grounds(comparison, plan, told),
    ]
    return Headline(
        arm, base, " ".join(sentences), verdict, claim.names, claim.values, claim.interval, everything, unequal
    )
