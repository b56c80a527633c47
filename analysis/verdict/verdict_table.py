"""Builds each arm's verdict: its sentence, ratio, interval and caveats, and what would resolve it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from analysis.compared import STEP, Compared, column_of, mean_of_runs
from analysis.comparison_tables import COMPARISON_COLUMNS
from analysis.cost import PerGpu, per_gpu_lines, per_gpu_of
from analysis.counted import steps_per_row
from analysis.estimates.estimate_table import EQUAL_WORK, PER_STEP
from analysis.estimates.gate import COLUMNS, LABELS, worse_arms
from analysis.mismatch import Mismatch, jumps, mismatch_line, mismatch_of
from analysis.phases import shown_phase
from analysis.planned import PlanRead, factors_label
from analysis.runs import rows_of
from analysis.terms import in_words, other_rollouts
from analysis.verdict.arm_verdict import NO_SPAN, ArmVerdict, Caveat, Ratio, ratio_text, seconds_text, span_text
from analysis.verdict.caveats import MOST_NAMES, JudgedPlace, caveats_of
from analysis.verdict.claim import AT_EQUAL_WORK, LEAST_STEPS_FOR_LIKELY, UNITS, Claim, claim_from, direction
from analysis.wide import OWN, PHASE
from common.findings import Finding, Preflight
from common.messages import join_first
from common.verdicts import Verdict, count_of
from engines import UNKNOWN
from trainers.logs.record import STEPS_LOGGED
from trainers.timers.tree import TimerTree

VERDICT_NAMES = {"+": "faster", "-": "slower", "=": "equal", "~": "not resolved", "x": "not comparable"}
NOT_IN_COMMON = "not in every run"
GENERATION, NO_TIMER = "generation", "no timer"
# Where the difference lies: smaller parts are not shown.
MOST_PARTS, LEAST_SHARE = 3, 0.005
_NOTHING = SimpleNamespace(**dict.fromkeys(COMPARISON_COLUMNS, math.nan))


@dataclass(frozen=True)
class VerdictEvidence:
    """What all verdicts are made of: the tables and findings of one baseline."""

    plan: PlanRead
    wide: pd.DataFrame
    every: Sequence[Compared]
    comparison: pd.DataFrame
    estimates: pd.DataFrame
    gate: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=COLUMNS))
    preflight: Preflight | None = None
    disturbed: Sequence[Finding] = ()
    """Findings about the runs themselves."""
    read: Sequence[Verdict] = ()
    """Findings of reading the runs, of choosing their steps and of comparing them."""
    trees: Mapping[str, Sequence[TimerTree]] = field(default_factory=dict)
    """The timers of each arm's runs."""
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Arms without any ratio, by (factors, arm), with the reason."""

    per_gpu_of: frozenset[tuple[str, str]] = frozenset()
    """The arms that are compared by what their GPUs did, too."""
    gpus: Mapping[str, int | None] = field(default_factory=dict)
    """Those of each run; None where that is unknown."""

    @cached_property
    def per_gpu(self) -> dict[tuple[str, str], PerGpu]:
        """What the GPUs of these arms and of the baseline did, by (factors, arm)."""
        every = [one for one in self.every if (one.factors, one.arm) in self.per_gpu_of]
        found = {(one.factors, one.arm): per_gpu_of(self.wide, one, self.gpus) for one in every}
        return {place: per_gpu for place, per_gpu in found.items() if per_gpu is not None}

    @cached_property
    def mismatches(self) -> dict[tuple[str, str], Mismatch]:
        """Of the arms whose mismatch and the baseline's are logged, by (factors, arm)."""
        found = {(one.factors, one.arm): mismatch_of(self.wide, one) for one in self.every}
        return {place: mismatch for place, mismatch in found.items() if mismatch is not None}


def arm_verdicts(of: VerdictEvidence) -> list[ArmVerdict]:
    """One verdict for each arm that has steps in common with the baseline, in the plan's order; none for an A/A arm."""
    arms = [arm for arm in of.plan.arms if not of.plan.repeats(arm)]
    return [_verdict(of, arm) for arm in arms if {arm} <= {*of.comparison["arm"]} & {*of.estimates["arm"]}]


def _verdict(of: VerdictEvidence, arm: str) -> ArmVerdict:
    plan, both = of.plan, (of.plan.baseline, arm)
    preflight = of.preflight and of.preflight.between(both)
    terms = preflight.unequal(both) if preflight is not None else []
    unequal = [*(one for one in of.disturbed if {*both} & {*one.arms}), *terms]
    places = list(_places(of, arm, preflight, unequal))
    claims = [place.claim for place in places]
    known = [claim for claim in claims if claim.estimate]
    units = dict.fromkeys(claim.unit for estimate in UNITS for claim in known if claim.estimate == estimate)
    ratios = [_ratio(same) for unit in units if (same := [claim for claim in known if claim.unit == unit])]
    one_verdict = len({(claim.verdict, claim.estimate and claim.unit) for claim in claims}) == 1
    verdict: Any = claims[0].verdict if one_verdict else "~"
    alone, place = claims[0] if len(claims) == 1 else None, (places[0].factors, arm)
    likely = _likely(alone, plan.spread) if alone and not (preflight is None or unequal) else ""
    scope = "".join(f", {scope}" for scope in dict.fromkeys(one.scope for one in unequal if one.scope))
    words = likely or _words(claims, plan.until)
    caveats, settle = caveats_of(places)
    return ArmVerdict(
        arm,
        plan.baseline,
        verdict,
        f"{words}{_named(alone, plan.until)[1] if alone else ''}{scope}",
        tuple(ratios),
        _summed([claim.runs for claim in claims]),
        _summed([claim.steps for claim in claims]),
        _basis(of, both, places, known) if known else "",
        caveats,
        settle,
        _sentence(both, words, scope, ratios, alone, bool(likely)),
        _difference(of, arm, alone, bool(likely)) if alone else "",
        mismatch_line(both, places[0].mismatch) if alone else "",
        per_gpu_lines(both, of.per_gpu.get(place)) if alone and place in of.per_gpu_of else (),
    )


def _places(
    of: VerdictEvidence, arm: str, preflight: Preflight | None, unequal: Sequence[Finding]
) -> Iterator[JudgedPlace]:
    """The arm's factor combinations, each with its claim."""
    plan, gate = of.plan, of.gate[of.gate["arm"] == arm]
    arms = {plan.baseline, arm}
    of_run = of.wide[["run_id", "arm"]].drop_duplicates()
    ours = {*arms, *of_run.loc[of_run["arm"].isin(arms), "run_id"]}
    read = [one for one in of.read if one.level != "note" and (not one.about or ours & {*one.about})]
    rows = {row.factors: row for row in rows_of(of.comparison[of.comparison["arm"] == arm])}
    every = of.estimates[of.estimates["arm"] == arm].groupby("factors", sort=False)
    for factors, group in every:
        by_estimate: dict[str, Any] = {row["estimate"]: row for row in group.to_dict("records")}
        claim = claim_from(factors_label(str(factors)), by_estimate, plan.step_of, plan.until)
        here = gate[gate["factors"] == factors]
        worse = [(name, LABELS[what]) for name, what, *_ in worse_arms(here, plan.baseline, arm)]
        one = next(one for one in of.every if one.arm == arm and one.factors == factors)
        mismatch = of.mismatches.get((one.factors, arm))
        worse += [(name, "mismatch") for name in mismatch.beyond(plan.baseline, arm)] if mismatch else []
        if worse:
            # An arm that trains worse is not faster at the same training.
            why = " and ".join(f"{name} is worse in {label}" for name, label in worse)
            claim = replace(claim, verdict="x", why=why if claim.estimate else claim.why)
        row = rows.get(str(factors), _NOTHING) if claim.record == "step" else _NOTHING
        jumped = jumps(of.wide, one, mismatch.quantity) if mismatch else []
        staleness, accepted = (
            {name: mean_of_runs(side, column_of(of.wide, side, quantity)) for side, name in reversed(one.named_sides)}
            for quantity in ("staleness", "acceptance_length")
        )
        # Who logs a length drafts, also where no draft is accepted.
        rollouts = {name: "drafts tokens" for name, length in accepted.items() if not math.isnan(length)}
        rollouts |= other_rollouts(preflight, (plan.baseline, arm))
        driven = not plan.imported(plan.baseline, arm)
        known = (here, mismatch, jumped, staleness, driven, rollouts, preflight, unequal, read)
        each = claim.row["value"] * one.work.responses if claim.estimate == PER_STEP else math.nan
        yield JudgedPlace(one.factors, (plan.baseline, arm), claim, row, *known, len(every) == 1, bool(worse), each)


def _summed(pairs: Sequence[tuple[int, int]]) -> tuple[int, int]:
    baseline, arm = (sum(side) for side in zip(*pairs, strict=True))
    return baseline, arm


def _basis(of: VerdictEvidence, both: tuple[str, str], places: Sequence[JudgedPlace], known: Sequence[Claim]) -> str:
    """What the verdict rests on: the terms, the runs and their steps, those that are left out, the responses' lengths.

    `terms equal (...) · 2 runs against 2, 20 steps each; 20 of 60 steps left out (warm-up)`.
    """
    claim, comparison = places[0].claim, places[0].comparison
    runs, steps = _summed([one.runs for one in known]), _summed([one.steps for one in known])
    first, *more = {total / count for one in known for total, count in zip(one.steps, one.runs, strict=True)}
    record = known[0].record
    counted = f"{count_of(steps[1], record)} against {steps[0]:,}"
    if not more and first.is_integer():
        counted = f"{count_of(int(first), record)} each"
    sizes = f"{count_of(runs[1], 'run')} against {runs[0]}, {counted}"
    if record == "step":
        every = [one for one in of.every if one.arm == both[1] and not one.is_empty]
        here = of.wide["arm"].isin(both) & of.wide["factors"].isin([one.factors for one in every])
        rows = of.wide.loc[here, [name for name in ("step", STEPS_LOGGED, "left_out") if name in of.wide]]
        n, compared = steps_per_row(rows), np.concatenate([side.index for one in every for side in one.sides])
        why = rows["left_out"].replace("", NOT_IN_COMMON)[~rows.index.isin(compared)]
        reasons = n[why.index].groupby(why).sum().sort_values(ascending=False, kind="stable")
        counts = [f"{int(number):,} {reason}" for reason, number in reasons.items()]
        shown = ", ".join(counts if len(counts) > 1 else reasons.index)
        out = int(reasons.sum())
        sizes += f"; {out:,} of {int(n.sum()):,} steps left out ({shown})" if out else ""
    lengths = ""
    # Where the arms differ in these, and no caveat says it.
    if len(places) == 1 and isinstance(comparison.lengths, str):
        said = comparison.lengths in claim.rows[EQUAL_WORK]["why"]
        lengths = "" if said else comparison.lengths + ", taken out" * (claim.estimate == EQUAL_WORK)
    return " · ".join(filter(None, [in_words(places[0].preflight, both, places[0].rollouts), sizes, lengths]))


def _ratio(every: Sequence[Claim]) -> Ratio:
    narrow = [claim for claim in every if not claim.too_wide]
    group = narrow or every
    values, intervals = [claim.row["value"] for claim in group], [claim.interval for claim in group]
    bound = not any(math.isnan(low) for low, _ in intervals)
    return Ratio(
        group[0].unit,
        tuple(claim.at for claim in group),
        (min(values), max(values)),
        (min(low for low, _ in intervals), max(high for _, high in intervals)) if bound else NO_SPAN,
        (group[0].row["baseline_s"], group[0].row["arm_s"]) if len(group) == 1 else NO_SPAN,
        not narrow,
    )


def _words(claims: Sequence[Claim], until: float) -> str:
    """The verdict in words; with a sweep, at how many factor combinations each verdict holds."""
    if len(claims) > 1:
        in_order = sorted(claims, key=lambda claim: "+-=~x".index(claim.verdict))
        names = ["".join(_named(claim, until)) for claim in in_order]
        parts = [f"{name} at {names.count(name)}" for name in dict.fromkeys(names)]
        return f"{', '.join(parts)} of {len(claims)} factor combinations"
    (claim,) = claims
    why = "" if claim.too_wide else claim.why
    if claim.verdict == "~" and claim.lacking:
        why = "one run an arm" if min(claim.runs) == max(claim.runs) else f"one run of {claim.lacking}"
        why = f"one {claim.record} only" if claim.steps == (1, 1) else why
    name, _ = _named(claim, until)
    return f"{name}, {why}" if why else name


def _named(claim: Claim, until: float) -> tuple[str, str]:
    """`faster`, `equal within 5%`; and the unit of a claim that is not at equal work."""
    within = f" within {100 * (until - 1):.3g}%" if claim.verdict == "=" else ""
    unit = f" {claim.unit}" if claim.verdict in "+-=" and claim.unit != AT_EQUAL_WORK else ""
    return f"{VERDICT_NAMES[claim.verdict]}{within}", unit


def _likely(claim: Claim, spread: float) -> str:
    """Which arm is likely faster although an arm has a single run; "" where a repeated run could say otherwise.

    Its own data claims no direction: how far runs of one configuration differ is known from public logs, for steps at
    equal work on one kind of machine.
    """
    if not claim.lacking or claim.verdict != "~" or claim.unit != AT_EQUAL_WORK or claim.row["open"]:
        return ""
    if min(count / runs for count, runs in zip(claim.steps, claim.runs, strict=True)) < LEAST_STEPS_FOR_LIKELY:
        return ""
    value = claim.row["value"]
    low, high = value / (1 + spread), value * (1 + spread)
    side = direction(low) if value > 1 else direction(high)
    if not side or side != direction(value):
        return ""
    share = f"if repeated runs differ by up to {100 * spread:.3g}%"
    return f"likely {VERDICT_NAMES['+' if side > 0 else '-']}: {ratio_text(value)} ({span_text((low, high))} {share})"


def _sentence(
    both: tuple[str, str], words: str, scope: str, ratios: Sequence[Ratio], alone: Claim | None, likely: bool
) -> str:
    """The answer in one line; `alone` is the claim of a single factor combination."""
    baseline, arm = both
    if not ratios or ratios[0].too_wide:
        # Seconds are measured, however wide the interval of their ratio.
        measured = [alone.rows[PER_STEP][f"{side}_s"] for side in ("arm", "baseline")] if alone and ratios else []
        seconds = f": {' against '.join(map(seconds_text, measured))} per {alone.record}" if alone and measured else ""
        return f"{arm} vs {baseline}: {words}{scope}{seconds}."
    ratio = ratios[0]
    value = " to ".join(dict.fromkeys(map(ratio_text, ratio.value)))
    interval = "" if math.isnan(ratio.interval[0]) else f" (95% CI {span_text(ratio.interval)})"
    if alone is None:
        where = f" at {join_first(ratio.at, MOST_NAMES)}" if len(ratios) > 1 else ""
        unit = "" if len(ratios) == 1 and ratio.unit in words else f" {ratio.unit}"
        return f"{arm} vs {baseline}: {words}{scope}: {value}{unit}{where}{interval}."
    baseline_s, arm_s = map(seconds_text, ratio.seconds)
    seconds = f"{arm_s} against {baseline_s} {'a step ' if ratio.unit == AT_EQUAL_WORK else ''}{ratio.unit}"
    if alone.verdict in "+-":
        name = f"{value} faster than {baseline}" if alone.verdict == "+" else f"slower than {baseline}, {value} as fast"
        return f"{arm}: {name}{scope}: {seconds}{interval}."
    # Of a likely ratio the words have the number.
    numbers = f", {seconds}" if likely else f": {value}, {seconds}"
    return f"{arm} vs {baseline}: {words}{scope}{numbers}{interval}."


def _difference(of: VerdictEvidence, arm: str, claim: Claim, likely: bool) -> str:
    """Where the difference lies, as a sentence, if it is larger than its noise: for one run, than repeated runs differ.

    Empty where nothing is known, or where the claim points the other way.
    """
    ratio, claimed_s = claim.rows[PER_STEP]["value"], claim.row["baseline_s"] - claim.row["arm_s"]
    far = claim.lacking and ratio > 0 and max(ratio, 1 / ratio) > 1 + of.plan.spread
    if claim.record != "step" or not (claim.verdict in "+-" or likely or (far and claim.verdict == "~")):
        return ""
    one = next(one for one in of.every if one.arm == arm)
    sides = [_own_seconds(of.wide, side, of.trees.get(name, ())) for side, name in one.named_sides]
    if not all(side.get(GENERATION, 0.0) > 0 for side in sides):
        return ""
    baseline, other = sides
    parts = {part: baseline.get(part, 0.0) - other.get(part, 0.0) for part in {**baseline, **other}}
    total = math.fsum(parts.values())
    if not total * claimed_s > 0:
        return ""
    shares = sorted(((part, seconds / total) for part, seconds in parts.items()), key=lambda one: -abs(one[1]))
    kept = [(part, share) for part, share in shares if abs(share) >= LEAST_SHARE][:MOST_PARTS]
    shown = ", ".join(f"{part} {100 * share:.0f}%" for part, share in kept)
    which = "the measured difference" if claim.estimate == EQUAL_WORK else "the difference"
    if parts[GENERATION] / total < 0.5:
        return f"Most of {which} lies outside generation and is no engine's: {shown}."
    return f"Of {which}: {shown}."


def _own_seconds(wide: pd.DataFrame, side: pd.DataFrame, trees: Sequence[TimerTree]) -> dict[str, float]:
    """An arm's mean own seconds by category of its timers, which sum to its step; empty where its phases overlap."""
    found: dict[str, float] = defaultdict(float)
    if not trees or any(tree.overlap for tree in trees):
        return {}
    root = STEP.removeprefix(PHASE)
    for path in (name.removeprefix(OWN) for name in wide.columns if name.startswith(OWN)):
        seconds = column_of(wide, side, OWN + path)
        if (path == root or path.startswith(f"{root}/")) and seconds.notna().any():
            part = NO_TIMER if path == root else shown_phase(path, trees).category
            found[part] += mean_of_runs(side, seconds.fillna(0.0))
    return found


def with_engines_alone(verdicts: Sequence[ArmVerdict], plan: PlanRead) -> list[ArmVerdict]:
    """The verdicts; one of a training has a caveat if its two engines alone differ the other way."""
    found = []
    for one in verdicts:
        others = [other for other in verdicts if plan.trains(one.arm) and not plan.trains(other.arm)]
        texts = [
            f"The engines alone say the opposite: {alone.arm} is {ratio_text(alone.ratios[0].value[0])} as fast as "
            f"{alone.baseline} {alone.ratios[0].unit}. A training has other lengths, another load, and work without "
            "the engine."
            for alone in others
            if _side(one, plan) == {engine: -side for engine, side in _side(alone, plan).items()} != {}
        ]
        found.append(replace(one, caveats=(*(Caveat("estimates", text) for text in texts[:1]), *one.caveats)))
    return found


def _side(verdict: ArmVerdict, plan: PlanRead) -> dict[str, int]:
    """By engine: 1 for the one that is faster in the first ratio, -1 for the other; empty where that is not known."""
    engines = [str(plan.arms[arm].get("engine")) for arm in (verdict.arm, verdict.baseline)]
    sides = {direction(value) for ratio in verdict.ratios[:1] if not ratio.too_wide for value in ratio.value}
    if UNKNOWN in engines or engines[0] == engines[1] or len(sides) != 1 or 0 in sides:
        return {}
    side = sides.pop()
    return {engines[0]: side, engines[1]: -side}
