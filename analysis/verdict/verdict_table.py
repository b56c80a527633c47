"""Builds the verdict table: for each arm its verdict, ratio, interval, caveats, and what would resolve it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from analysis.compared import outliers_decide
from analysis.estimates.estimate_table import EQUAL_WORK
from analysis.estimates.gate import LABELS, failed_at
from analysis.factors import factors_label
from analysis.planned import PlanRead
from analysis.runs import rows_of
from analysis.terms import in_words
from analysis.verdict.arm_verdict import NO_SPAN, ArmVerdict, Caveat, Ratio, ratio_text
from analysis.verdict.caveats import WHOLE, caveats_of, lacks_equal_work
from analysis.verdict.claim import AT_EQUAL_WORK, UNITS, Claim, claim_from, direction
from common.findings import Finding, Preflight
from common.messages import join_first
from common.verdicts import count_of
from engines import UNKNOWN

# Of fewer steps the public runs that SPREAD is measured on say less.
LEAST_STEPS_FOR_LIKELY = 10
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
        if rows.empty or of_arm.empty or plan.repeats(arm):
            continue
        gate_rows = gate[gate["arm"] == arm] if gate is not None else None
        claims = []
        for factors, group in of_arm.groupby("factors", sort=False):
            rows_of_claim: list[Any] = group.to_dict("records")
            by_estimate = {row["estimate"]: row for row in rows_of_claim}
            claim = claim_from(factors_label(str(factors)), by_estimate, plan.step_of, plan.until)
            if worse := failed_at(gate_rows, str(factors)):
                # An arm that trains worse is not faster at the same training.
                why = f"{arm} is worse in {' and '.join(LABELS[name] for name in worse)}"
                claim = replace(claim, verdict="x", why=why if claim.valued else claim.why)
            claims.append(claim)
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
    known = [claim for claim in claims if claim.valued]
    if not known:
        why = "; ".join(dict.fromkeys(claim.why for claim in claims))
        return ArmVerdict(arm, plan.baseline, "x", f"{VERDICT_NAMES['x']}, {why}", (), (0, 0), (0, 0), "", (), ())
    preflight = preflight and preflight.between((plan.baseline, arm))
    terms = preflight.unequal((plan.baseline, arm)) if preflight is not None else []
    unequal = [*disturbed, *terms]
    units = [unit.replace("step", plan.step_of) for unit in UNITS.values()]
    groups = [same for unit in units if (same := [claim for claim in known if claim.unit == unit])]
    one_verdict = len({claim.verdict for claim in groups[0]}) == 1 and len(groups[0]) == len(claims)
    verdict: Any = groups[0][0].verdict if one_verdict else "~"
    logs = plan.imported(plan.baseline, arm) if plan.most else []
    basis = [f"{_sizes(known)}{_of_most(known, plan, logs)}{_warmup(comparison, plan)}"]
    if counted := in_words(preflight, (plan.baseline, arm)):
        basis.insert(0, counted)
    return ArmVerdict(
        arm,
        plan.baseline,
        verdict,
        ", ".join(
            [
                _in_words(claims, groups, plan, preflight is not None and not unequal),
                *dict.fromkeys(one.scope for one in unequal if one.scope),
            ]
        ),
        tuple(_ratio(group) for group in groups),
        _summed([claim.runs for claim in known]),
        _summed([claim.steps for claim in known]),
        " · ".join(basis),
        tuple(caveats_of(arm, claims, comparison, gate, preflight, unequal)),
        tuple(_remedies(known, comparison, preflight, unequal, logs)),
    )


def _summed(pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    baseline, arm = (sum(side) for side in zip(*pairs, strict=True))
    return baseline, arm


def _sizes(known: Sequence[Claim]) -> str:
    """How many runs are compared with how many, and their steps: `2 runs against 2, 20 steps each`."""
    runs, steps = _summed([claim.runs for claim in known]), _summed([claim.steps for claim in known])
    each = [total / count for claim in known for total, count in zip(claim.steps, claim.runs, strict=True)]
    record = known[0].record
    sizes = f"{count_of(runs[0], 'run')} against {runs[1]}"
    if len(set(each)) == 1 and each[0].is_integer():
        return f"{sizes}, {count_of(int(each[0]), record)} each"
    return f"{sizes}, {count_of(steps[0], record)} against {steps[1]:,}"


def _of_most(known: Sequence[Claim], plan: PlanRead, logs: Sequence[str]) -> str:
    """The most runs of an arm; a sum over factor combinations has none, and logs are as many as there are."""
    return f" (of at most {count_of(plan.most, 'run')} an arm)" if plan.most and len(known) == 1 and not logs else ""


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


def _in_words(claims: Sequence[Claim], groups: Sequence[Sequence[Claim]], plan: PlanRead, equal_terms: bool) -> str:
    """The verdict in words; with a sweep, at how many factor combinations each verdict holds."""
    if len(claims) == 1:
        (claim,) = claims
        if claim.verdict == "x":
            return f"{VERDICT_NAMES['x']}, {claim.why}"
        if claim.one_run:
            return (equal_terms and _likely(claim, plan.spread)) or _of_one_run(claim)
        return _name(claim.verdict, claim.unit, plan.until)
    best = groups[0]
    names = [_name(claim.verdict, claim.unit, plan.until) for claim in best]
    counts = {name: names.count(name) for name in (_name(verdict, best[0].unit, plan.until) for verdict in "+-=~")}
    counts[f"unknown {best[0].unit}"] = sum(claim.verdict != "x" for group in groups[1:] for claim in group)
    counts[VERDICT_NAMES["x"]] = sum(claim.verdict == "x" for claim in claims)
    parts = [f"{name} at {count}" for name, count in counts.items() if count]
    return f"{', '.join(parts)} of {len(claims)} factor combinations"


def _of_one_run(claim: Claim) -> str:
    """The verdict in words where an arm has a single run, which claims no direction from its own data."""
    return f"{VERDICT_NAMES['~']}, {f'one {claim.record} only' if claim.one_step else claim.one_run}"


def _likely(claim: Claim, spread: float) -> str:
    """Which arm is likely faster although an arm has a single run; "" where a repeated run could say otherwise.

    Its own data claims no direction: how far runs of one configuration differ is known from public logs, for steps at
    equal work on one kind of machine.
    """
    value = claim.row["value"]
    low, high = value / (1 + spread), value * (1 + spread)
    side = direction(low) if value > 1 else direction(high)
    enough = min(count / runs for count, runs in zip(claim.steps, claim.runs, strict=True)) >= LEAST_STEPS_FOR_LIKELY
    if claim.unit != AT_EQUAL_WORK or not enough or not side or side != direction(value):
        return ""
    ends = "-".join(ratio_text(end).rstrip("×") for end in (low, high))
    name = VERDICT_NAMES["+" if side > 0 else "-"]
    return f"likely {name} ({ends} if repeated runs differ by up to {100 * spread:.3g}%)"


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
    if all(claim.one_step for claim in known):
        remedies.append("more steps" if known[0].record == "step" else "more runs of the benchmark")
    if len(known) == 1 and (runs := _more_runs(known[0], comparison, logs)):
        remedies.append(runs)
    lacking = [claim.rows[EQUAL_WORK]["settle"] for claim in known if lacks_equal_work(claim)]
    return list(dict.fromkeys([*remedies, *filter(None, lacking)]))


def _more_runs(claim: Claim, comparison: pd.DataFrame, logs: Sequence[str]) -> str:
    """What runs would resolve one claim; "" where chance is not why it is open."""
    more = claim.row["runs_to_resolve"]
    if claim.verdict != "~" or (claim.one_run and claim.record != "step"):
        return ""
    # More runs are not known to reduce a spread that a few outlying steps decide.
    if any(outliers_decide(r.raw_speedup, r.median_speedup) for r in rows_of(comparison)):
        return "runs on a machine without other work" if claim.too_wide else ""
    if not more > 0:
        return "more runs of each arm" if claim.too_wide else ""
    least = "at least" if claim.one_run else "about"
    if logs:
        return f"{least} {count_of(int(more), 'more log')} of {logs[0] if len(logs) == 1 else 'each arm'}"
    return f"{least} {count_of(int(more), 'more run')} of {claim.lacking or 'each arm'}"


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
