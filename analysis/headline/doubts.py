"""What limits a claim: the fairness ledger, the correctness gate, lengths, outliers, and on how much it rests."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analysis.estimates.disagreement import disagreement, has_intervals, lengths_differ
from analysis.estimates.gate import LABELS, WORSE_ARM, unjudged
from analysis.headline.case import MOST_PLACES, ArmAtPoint, places
from analysis.headline.ratios import ratio_text
from analysis.runs import PlanRead, factors_label, rows_of
from analysis.speedup import disagrees, outliers_decide
from common.findings import Preflight
from common.verdicts import count_of


def terms(unequal: int, preflight: Preflight | None) -> str:
    """Whether the ledger allows the claim."""
    if preflight is None:
        return "There is no fairness ledger: what else differs was not checked."
    if unequal:
        return (
            "The comparison is not on equal terms, so the engines alone do not explain this: see "
            f"{count_of(unequal, 'finding', 'findings')} in the fairness ledger."
        )
    unknown = [row.setting for row in preflight.rows("unverifiable")]
    if not preflight.ledger:
        return "The fairness ledger is empty: no setting could be compared."
    if not unknown:
        return "The fairness ledger found nothing unequal."
    names = list(dict.fromkeys(unknown))
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return (
        f"The fairness ledger found nothing unequal, but {len(unknown)} of its {len(preflight.ledger)} settings cannot "
        f"be verified: {', '.join(names[:2])}{more}."
    )


def doubts(
    arm: str, comparison: pd.DataFrame, told: list[ArmAtPoint], gate: pd.DataFrame | None, swapped: bool
) -> list[str]:
    """What speaks against the claim."""
    found = []
    if gate is not None:
        worse, lacking = gate[gate["verdict"] == WORSE_ARM], unjudged(gate)
        if len(worse):
            found.append(f"The correctness gate fails: {arm} is worse in {_labels(worse)}.")
        if len(lacking):
            found.append(f"The correctness gate cannot judge {_labels(lacking)}: some steps of one arm have no number.")
    if apart := [case for case in told if disagreement(case.rows)]:
        found += [_disagree(cases, len(told)) for cases in _by_lengths(apart) if cases]
    elif any(_opposite(case) for case in told):
        found.append("The two disagree on which is faster: the responses differ in length, so neither settles it.")
    rows = list(rows_of(comparison))
    if any(disagrees(r.lowest_seed_speedup, r.highest_seed_speedup) for r in rows):
        found.append("The seeds disagree on which is faster, so this is not settled.")
    if any(disagrees(r.raw_speedup, r.median_speedup) for r in rows):
        found.append("The median steps point the other way: a few outlying steps decide, so do not rely on this.")
    elif any(outliers_decide(r.raw_speedup, r.median_speedup) for r in rows):
        medians = _medians(rows, swapped)
        found.append(f"The median steps say {medians}: a few outlying steps decide how much, so do not rely on this.")
    return found


def _by_lengths(apart: list[ArmAtPoint]) -> tuple[list[ArmAtPoint], list[ArmAtPoint]]:
    """Those whose arms' responses differ in length, and the rest."""
    differ = [case for case in apart if lengths_differ(case.rows)]
    return differ, [case for case in apart if not lengths_differ(case.rows)]


def _disagree(cases: list[ArmAtPoint], told: int) -> str:
    where = f" at {places(cases)}" if len(cases) < told else ""
    if not lengths_differ(cases[0].rows):
        why = "yet the responses of both arms come to as many tokens, so rely on neither alone"
    elif all(has_intervals(case.rows) for case in cases):
        why = "the responses differ in length, so step time alone misleads"
    else:
        why = (
            "the responses differ in length, so step time alone may mislead (or it is chance: there are too few steps "
            "to tell)"
        )
    return f"Step time and equal work disagree{where}: {why}."


def _medians(rows: list[Any], swapped: bool) -> str:
    """The ratios of the median steps where a few outlying steps decide, and of several combinations at which."""
    told = [r for r in rows if outliers_decide(r.raw_speedup, r.median_speedup)]
    ratios = [
        ratio_text(1 / r.median_speedup if swapped else r.median_speedup)
        + (f" at {factors_label(r.factors) or 'no factor'}" if len(rows) > 1 else "")
        for r in told[:MOST_PLACES]
    ]
    return ", ".join(ratios) + (f" and others at {len(told) - MOST_PLACES} more" if len(told) > MOST_PLACES else "")


def _labels(gate: pd.DataFrame) -> str:
    return ", ".join(LABELS[name] for name in dict.fromkeys(gate["quantity"]))


def _opposite(case: ArmAtPoint) -> bool:
    return {"raw", "per_token"} <= set(case.valued) and disagrees(
        case.rows["raw"]["value"], case.rows["per_token"]["value"]
    )


def grounds(comparison: pd.DataFrame, plan: PlanRead, told: list[ArmAtPoint]) -> str:
    """On how many runs and steps it all rests."""
    runs = sum(int(case.rows["raw"]["run_pairs"]) for case in told)
    steps = sum(int(case.rows["raw"]["paired_steps"]) for case in told)
    sweep = f" over {len(told)} factor combinations" if len(told) > 1 else ""
    text = (
        f"From {count_of(runs, 'pair of runs', 'pairs of runs')} and "
        f"{count_of(steps, 'paired step', 'paired steps')}{sweep}"
        f"{_after_warmup(comparison, plan)}."
    )
    if all(case.one_step for case in told):
        return text + " One step says nothing of other steps."
    return text


def _after_warmup(comparison: pd.DataFrame, plan: PlanRead) -> str:
    """What was left out as warm-up."""
    fewest = int(comparison["warmup_left_out"].min())
    if fewest >= plan.warmup_steps:
        return f", after {count_of(plan.warmup_steps, 'warm-up step', 'warm-up steps')} in each run"
    left = f"only {count_of(fewest, 'step was', 'steps were')}" if fewest else "no step was"
    return f"; of some runs {left} left out as warm-up, since they begin later"
