"""Builds the verdict table: for each arm its verdict, ratio, interval, caveats, and what would settle it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from analysis.estimates.equal_work import NOT_KNOWN
from analysis.estimates.noise import repetition_of
from analysis.runs import PlanRead, factors_label, rows_of
from analysis.speedup import outliers_decide
from analysis.verdict.arm_verdict import NO_SPAN, ArmVerdict, Ratio
from analysis.verdict.caveats import WAYS, WHOLE, caveats_of, equal_work_lacks, names_of
from analysis.verdict.claim import AT_EQUAL_WORK, KINDS, Claim, claim_from, direction
from common.findings import Finding, Preflight
from common.verdicts import count_of

WORDS = {"+": "faster", "-": "slower", "~": "not resolved", "x": "not comparable"}


def verdict_table(
    comparison: pd.DataFrame,
    plan: PlanRead,
    preflight: Preflight | None = None,
    estimates: pd.DataFrame | None = None,
    gate: pd.DataFrame | None = None,
    disturbed: Sequence[Finding] = (),
) -> list[ArmVerdict]:
    """One verdict for each arm that has steps in common with the baseline, in the plan's order; none for an A/A arm.

    The tables are those of `comparison_table`, `estimate_table` and `gate_table`; `preflight` is None without one;
    `disturbed` are findings of the runs themselves.
    """
    found = []
    for arm in plan.arms:
        rows = comparison[comparison["arm"] == arm]
        mine = estimates[estimates["arm"] == arm] if estimates is not None else rows.head(0)
        claims = [_claim(group) for _, group in mine.groupby("factors", sort=False)] if len(rows) else []
        if claims and not repetition_of(plan, arm):
            of_arm = gate[gate["arm"] == arm] if gate is not None else None
            of_runs = [one for one in disturbed if {plan.baseline, arm} & set(one.arms)]
            found.append(_verdict(arm, plan, rows, claims, of_arm, preflight, of_runs))
    return found


def _claim(group: pd.DataFrame) -> Claim:
    records = [{str(name): value for name, value in row.items()} for row in group.to_dict("records")]
    return claim_from(factors_label(str(group["factors"].iloc[0])), {str(row["estimate"]): row for row in records})


def _verdict(
    arm: str,
    plan: PlanRead,
    comparison: pd.DataFrame,
    claims: list[Claim],
    gate: pd.DataFrame | None,
    preflight: Preflight | None,
    disturbed: Sequence[Finding],
) -> ArmVerdict:
    preflight = preflight and preflight.between((plan.baseline, arm))
    terms = preflight.unequal((plan.baseline, arm)) if preflight is not None else []
    unequal = [*disturbed, *terms]
    known = [claim for claim in claims if claim.verdict != "x"]
    pairs = sum(int(claim.rows["raw"]["run_pairs"]) for claim in known)
    steps = sum(int(claim.rows["raw"]["paired_steps"]) for claim in known)
    if not known:
        why = "; ".join(dict.fromkeys(claim.why for claim in claims))
        return ArmVerdict(arm, plan.baseline, "x", f"{WORDS['x']}, {why}", (), pairs, steps, "", (), ())
    groups = [some for unit in KINDS if (some := [claim for claim in known if claim.unit == unit])]
    verdicts = {claim.verdict for claim in groups[0]}
    verdict: Any = verdicts.pop() if len(verdicts) == 1 and len(groups[0]) == len(claims) else "~"
    basis = [count_of(pairs, "run pair"), f"{count_of(steps, 'paired step')}{_warmup(comparison, plan)}"]
    verified = len(preflight.ledger) - len(preflight.rows("unverifiable")) if preflight is not None else 0
    if verified and not terms:
        basis.append(f"0 of {count_of(verified, 'verified setting')} found unequal")
    return ArmVerdict(
        arm,
        plan.baseline,
        verdict,
        ", ".join([_words(claims, groups), *dict.fromkeys(one.scope for one in unequal if one.scope)]),
        tuple(_ratio(group) for group in groups),
        pairs,
        steps,
        ", ".join(basis),
        tuple(caveats_of(arm, claims, comparison, gate, preflight, unequal)),
        tuple(_settle(known, comparison, preflight, unequal)),
    )


def _ratio(group: Sequence[Claim]) -> Ratio:
    values = [claim.row["value"] for claim in group]
    bound = [claim for claim in group if not math.isnan(claim.interval[0])]
    lows, highs = [claim.interval[0] for claim in bound], [claim.interval[1] for claim in bound]
    return Ratio(
        group[0].unit,
        tuple(dict.fromkeys(claim.estimate for claim in group)),
        tuple(claim.at for claim in group),
        (min(values), max(values)),
        (min(lows), max(highs)) if bound else NO_SPAN,
        tuple(claim.at for claim in bound),
    )


def _words(claims: Sequence[Claim], groups: Sequence[Sequence[Claim]]) -> str:
    """The verdict in words; of several factor combinations at how many."""
    if len(claims) == 1:
        (claim,) = claims
        if claim.one_step:
            return f"{WORDS['~']}, one step only"
        if claim.one_pair:
            return f"{WORDS['~']}, one run pair only"
        return "no difference" if claim.unmoved else _word(claim.verdict, claim.unit)
    best = groups[0]
    counts = {_word(v, best[0].unit): sum(claim.verdict == v for claim in best) for v in WORDS}
    counts[f"unknown {best[0].unit}"] = sum(map(len, groups[1:]))
    counts[WORDS["x"]] = len(claims) - sum(map(len, groups))
    told = [f"{word} at {count}" for word, count in counts.items() if count]
    return f"{', '.join(told)} of {len(claims)} factor combinations"


def _word(verdict: str, unit: str) -> str:
    """A verdict in a word, with its unit where a direction is not one at equal work."""
    return f"{WORDS[verdict]} {unit}" if verdict in "+-" and unit != AT_EQUAL_WORK else WORDS[verdict]


def _warmup(comparison: pd.DataFrame, plan: PlanRead) -> str:
    fewest = int(comparison["warmup_left_out"].min())
    if fewest >= plan.warmup_steps:
        return f" after {count_of(fewest, 'warm-up step')}" if fewest else ""
    return f" ({fewest} of {plan.warmup_steps} warm-up steps left out of a run that begins later)"


def _settle(
    known: Sequence[Claim], comparison: pd.DataFrame, preflight: Preflight | None, unequal: Sequence[Finding]
) -> list[str]:
    """What would settle the question: equal terms, more steps, more runs, data that the logs lack."""
    codes = [finding.code for finding in unequal if not finding.scope]
    found = [*dict.fromkeys(finding.settle for finding in unequal if finding.settle)]
    found += ["one trainer in both arms"] if WHOLE in codes else []
    codes = [code for code in codes if code not in (WHOLE, WAYS)]
    # The caveat names more of them.
    found += [f"runs on equal terms ({names_of(codes, 2)})"] if codes else []
    if preflight is None:
        found.append("a preflight, which compares the settings")
    if all(claim.one_step for claim in known) or any(math.isnan(c.interval[0]) and not c.one_pair for c in known):
        found.append("more steps")
    if len(known) == 1 and (runs := _more_runs(known[0], comparison)):
        found.append(runs)
    lacking = [equal_work_lacks(claim) for claim in known if claim.unit != AT_EQUAL_WORK]
    if logs := [why for why in dict.fromkeys(lacking) if NOT_KNOWN in why]:
        found.append(f"logs in which {logs[0].partition(NOT_KNOWN)[0]}known")
    return found


def _more_runs(claim: Claim, comparison: pd.DataFrame) -> str:
    """How many more runs would resolve one claim; "" where chance is not what leaves it open."""
    more = claim.row["runs_to_resolve"]
    # What a few outlying steps decide is no spread that more runs are known to tame.
    tame = not any(outliers_decide(r.raw_speedup, r.median_speedup) for r in rows_of(comparison))
    if claim.verdict != "~" or not more > 0 or not tame or not direction(claim.row["value"]):
        return ""
    # One pair knows its own steps' noise alone.
    return f"{'at least' if claim.one_pair else 'about'} {count_of(int(more), 'more run pair')}"
