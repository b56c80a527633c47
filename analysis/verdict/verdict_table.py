"""Builds the verdict table: for each arm its verdict, ratio, interval, caveats, and what would resolve it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from analysis.estimates.arm import ROUNDED
from analysis.estimates.equal_work import NO_SUPPORT, NOT_KNOWN
from analysis.estimates.noise import repetition_of
from analysis.factors import factors_label
from analysis.pairs import outliers_decide
from analysis.planned import PlanRead
from analysis.runs import rows_of
from analysis.verdict.arm_verdict import NO_SPAN, ArmVerdict, Caveat, Ratio, ratio_text
from analysis.verdict.caveats import WHOLE, caveats_of, lacks_equal_work, why_not_equal_work
from analysis.verdict.claim import AT_EQUAL_WORK, ESTIMATES_OF, Claim, claim_from, direction
from common.findings import COMPARED, Finding, Preflight
from common.messages import join_first
from common.verdicts import count_of
from engines import UNKNOWN

VERDICT_NAMES = {"+": "faster", "-": "slower", "=": "equal", "~": "not resolved", "x": "not comparable"}


def verdict_table(
    comparison: pd.DataFrame,
    plan: PlanRead,
    preflight: Preflight | None,
    estimates: pd.DataFrame,
    gate: pd.DataFrame | None = None,
    disturbed: Sequence[Finding] = (),
) -> list[ArmVerdict]:
    """One verdict for each arm that has steps in common with the baseline, in the plan's order; none for an A/A arm.

    The tables are those of `comparison_table`, `estimate_table` and `gate_table`. `disturbed` are findings about the
    runs themselves.
    """
    verdicts = []
    for arm in plan.arms:
        rows = comparison[comparison["arm"] == arm]
        of_arm = estimates[estimates["arm"] == arm]
        if rows.empty or of_arm.empty or repetition_of(plan, arm):
            continue
        claims = []
        for factors, group in of_arm.groupby("factors", sort=False):
            rows_of_claim: list[Any] = group.to_dict("records")
            by_estimate = {row["estimate"]: row for row in rows_of_claim}
            claims.append(claim_from(factors_label(str(factors)), by_estimate, plan.step_of, plan.until))
        gate_rows = gate[gate["arm"] == arm] if gate is not None else None
        of_runs = [finding for finding in disturbed if {plan.baseline, arm} & set(finding.arms)]
        verdicts.append(_verdict(arm, plan, rows, claims, gate_rows, preflight, of_runs))
    return verdicts


def _verdict(
    arm: str,
    plan: PlanRead,
    comparison: pd.DataFrame,
    claims: list[Claim],
    gate: pd.DataFrame | None,
    preflight: Preflight | None,
    disturbed: Sequence[Finding],
) -> ArmVerdict:
    known = [claim for claim in claims if claim.verdict != "x"]
    pairs = sum(int(claim.rows["raw"]["run_pairs"]) for claim in known)
    steps = sum(int(claim.rows["raw"]["paired_steps"]) for claim in known)
    if not known:
        why = "; ".join(dict.fromkeys(claim.why for claim in claims))
        return ArmVerdict(arm, plan.baseline, "x", f"{VERDICT_NAMES['x']}, {why}", (), pairs, steps, "", (), ())
    preflight = preflight and preflight.between((plan.baseline, arm))
    terms = preflight.unequal((plan.baseline, arm)) if preflight is not None else []
    unequal = [*disturbed, *terms]
    units = [unit.replace("step", plan.step_of) for unit in ESTIMATES_OF]
    groups = [same for unit in units if (same := [claim for claim in known if claim.unit == unit])]
    one_verdict = len({claim.verdict for claim in groups[0]}) == 1 and len(groups[0]) == len(claims)
    verdict: Any = groups[0][0].verdict if one_verdict else "~"
    logs = plan.imported(plan.baseline, arm) if plan.most else []
    # A sum over factor combinations has no limit, and logs are as many as there are.
    of_most = f" of at most {plan.most}" if plan.most and len(known) == 1 and not logs else ""
    paired = f"{count_of(steps, f'paired {known[0].record}')}{_warmup(comparison, plan)}"
    basis = [f"{count_of(pairs, 'run pair')}{of_most}, {paired}"]
    unverifiable = len(preflight.rows("unverifiable")) if preflight is not None else 0
    verified = len(preflight.ledger) - unverifiable if preflight is not None else 0
    different = sum(row.why != COMPARED for row in preflight.rows("different")) if preflight is not None else 0
    if verified and not terms and different:
        basis.insert(0, f"{different} different of {count_of(verified, 'verified setting')}")
    elif verified and not terms:
        counted = f"0 unequal of {count_of(verified, 'verified setting' if unverifiable else 'setting')}"
        basis.insert(0, counted if unverifiable else f"terms equal ({counted})")
    return ArmVerdict(
        arm,
        plan.baseline,
        verdict,
        ", ".join([_in_words(claims, groups, plan.until), *dict.fromkeys(one.scope for one in unequal if one.scope)]),
        tuple(_ratio(group) for group in groups),
        pairs,
        steps,
        " · ".join(basis),
        tuple(caveats_of(arm, claims, comparison, gate, preflight, unequal)),
        tuple(_remedies(known, comparison, preflight, unequal, logs)),
    )


def _ratio(every: Sequence[Claim]) -> Ratio:
    narrow = [claim for claim in every if not claim.too_wide]
    group = narrow or every
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
        not narrow,
    )


def _in_words(claims: Sequence[Claim], groups: Sequence[Sequence[Claim]], until: float) -> str:
    """The verdict in words; with a sweep, at how many factor combinations each verdict holds."""
    if len(claims) == 1:
        (claim,) = claims
        if claim.one_pair:
            return f"{VERDICT_NAMES['~']}, one {claim.record if claim.one_step else 'run pair'} only"
        return _name(claim.verdict, claim.unit, until)
    best = groups[0]
    names = [_name(claim.verdict, claim.unit, until) for claim in best]
    counts = {name: names.count(name) for name in (_name(verdict, best[0].unit, until) for verdict in "+-=~")}
    counts[f"unknown {best[0].unit}"] = sum(map(len, groups[1:]))
    counts[VERDICT_NAMES["x"]] = len(claims) - sum(map(len, groups))
    parts = [f"{name} at {count}" for name, count in counts.items() if count]
    return f"{', '.join(parts)} of {len(claims)} factor combinations"


def _name(verdict: str, unit: str, until: float) -> str:
    """`faster`, and its unit where that is not equal work; `equal within 5%`."""
    name = VERDICT_NAMES[verdict]
    if verdict == "=":
        name += f" within {100 * (until - 1):.3g}%"
    return f"{name} {unit}" if verdict in "+-=" and unit != AT_EQUAL_WORK else name


def _warmup(comparison: pd.DataFrame, plan: PlanRead) -> str:
    fewest = int(comparison["warmup_left_out"].min())
    if fewest >= plan.warmup_steps or plan.step_of != "step":
        return f" after {count_of(fewest, 'warm-up step')}" if fewest else ""
    return f" (a run begins later: {fewest} of {plan.warmup_steps} warm-up steps left out)"


def _remedies(
    known: Sequence[Claim],
    comparison: pd.DataFrame,
    preflight: Preflight | None,
    unequal: Sequence[Finding],
    logs: Sequence[str] = (),
) -> list[str]:
    """What would resolve the question: equal terms, more steps, more runs, data that the logs lack.

    `logs` are the arms of the two that cannot get more runs, where those of others are added until it is resolved.
    """
    codes = list(dict.fromkeys(finding.code for finding in unequal if not finding.scope))
    remedies = [*dict.fromkeys(finding.settle for finding in unequal if finding.settle)]
    if WHOLE in codes:
        remedies.append("one trainer in both arms")
    if settings := [code for code in codes if code != WHOLE]:
        # The caveat names more of them.
        remedies.append(f"runs on equal terms ({join_first(settings, 2)})")
    if preflight is None:
        remedies.append("a preflight, which compares the settings")
    unbound = [c for c in known if math.isnan(c.interval[0]) and not c.one_pair and c.row["why"] != ROUNDED]
    if unbound or all(claim.one_step for claim in known):
        remedies.append("more steps" if known[0].record == "step" else "more runs of the benchmark")
    if len(known) == 1 and (runs := _more_runs(known[0], comparison, logs)):
        remedies.append(runs)
    lacking = [why_not_equal_work(claim) for claim in known if lacks_equal_work(claim)]
    if logs := [why for why in lacking if NOT_KNOWN in why]:
        remedies.append(f"logs with {logs[0].partition(NOT_KNOWN)[0].removesuffix(' is ').removesuffix(' are ')}")
    if NO_SUPPORT in lacking:
        remedies.append("runs whose responses have similar lengths")
    return remedies


def _more_runs(claim: Claim, comparison: pd.DataFrame, logs: Sequence[str]) -> str:
    """What runs would resolve one claim; "" where chance is not why it is open."""
    more = claim.row["runs_to_resolve"]
    # More runs are not known to reduce a spread that a few outlying steps decide.
    outliers = any(outliers_decide(r.raw_speedup, r.median_speedup) for r in rows_of(comparison))
    if claim.verdict != "~":
        return ""
    if outliers:
        return "runs on a machine without other work" if claim.too_wide else ""
    if claim.one_pair and claim.record == "step":
        # It measures only the noise of its own steps, and no further step of it shows what other runs do.
        more = more if more > 0 else 1.0
    if not more > 0:
        return "more run pairs" if claim.too_wide else ""
    least = "at least" if claim.one_pair else "about"
    if logs:
        return f"{least} {count_of(int(more), 'more log')} of {logs[0] if len(logs) == 1 else 'each arm'}"
    return f"{least} {count_of(int(more), 'more run pair')}"


def with_engines_alone(verdicts: Sequence[ArmVerdict], plan: PlanRead) -> list[ArmVerdict]:
    """The verdicts; one of a training has a caveat if its two engines alone differ the other way."""
    return [_with_caveat(one, verdicts, plan) if plan.trains(one.arm) else one for one in verdicts]


def _with_caveat(training: ArmVerdict, verdicts: Sequence[ArmVerdict], plan: PlanRead) -> ArmVerdict:
    engines = [str(plan.arms[arm].get("engine")) for arm in (training.baseline, training.arm)]
    for alone in verdicts:
        faster, others = _side(alone), [str(plan.arms[arm].get("engine")) for arm in (alone.baseline, alone.arm)]
        if plan.trains(alone.arm) or UNKNOWN in engines or sorted(others) != sorted(engines) or not faster:
            continue
        if _side(training) == (-faster if others == engines else faster):
            ratio = alone.ratios[0]
            text = (
                f"The engines alone say the opposite: {alone.arm} is {ratio_text(ratio.value[0])} as fast as "
                f"{alone.baseline} {ratio.unit}. A training has other lengths, another load, and work without the "
                "engine."
            )
            # Before what is missing.
            caveats = list(training.caveats)
            place = next((at for at, one in enumerate(caveats) if one.kind == "data"), len(caveats))
            return replace(training, caveats=(*caveats[:place], Caveat("estimates", text, "answer"), *caveats[place:]))
    return training


def _side(verdict: ArmVerdict) -> int:
    """1 where the arm is faster in its first ratio, -1 where it is slower, 0 where that is not known."""
    ratios = [ratio for ratio in verdict.ratios[:1] if not ratio.too_wide]
    sides = {direction(value) for ratio in ratios for value in ratio.value}
    return sides.pop() if len(sides) == 1 else 0
