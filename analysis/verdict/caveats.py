"""Has the table of caveats: what limits a verdict, and what would remove it, in order of harm."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import pandas as pd

from analysis.compared import disagrees, outliers_decide
from analysis.estimates.estimate_table import COARSE, EQUAL_WORK, PER_STEP, disagreement, what_differs
from analysis.estimates.gate import LABELS, UNKNOWN, worse_arms
from analysis.mismatch import BOUND, Mismatch
from analysis.terms import ALL_SETTINGS
from analysis.verdict.arm_verdict import WIDE, Caveat, Kind, ratio_text
from analysis.verdict.claim import AT_EQUAL_WORK, LEAST_STEPS_FOR_LIKELY, Claim
from common.findings import Finding, Preflight
from common.messages import join_first
from common.verdicts import Verdict, count_of, verdict_groups

# The ratio of the two speed-ups from which the wall clock is a caveat.
WALL_CLOCK_FROM = 1.1
MOST_NAMES = 4
# From this logarithm on another choice of steps is another ratio.
CHANGES_FROM = 0.02
# Of a longer difference the first words are shown; the page has the rest.
MOST_SHOWN = 160
FILTERS = ("top_p", "top_k", "min_p", "repetition_penalty")
UNFILTERED = {"1", "1.0", "0", "0.0", "-1", "none", "None", "null", "unknown"}
# The code of a finding that no setting removes: the arms have different trainers, which work differently.
WHOLE = "trainers"

# By row of the table: the codes of findings of reading (common/verdicts.py).
CODES = {
    # A number may be of something else.
    "misread": (
        *("run-left-out", "same-rows", "unit-unsaid", "configuration-changed", "declared-contradicts-run"),
        *("batch-size-contradicted", "clock-jump", "no-counted-steps"),
        *("requests-failed", "client-set-the-rate", "children-exceed-parent"),
    ),
    "may-change": (
        *("steps-not-matched", "short-runs", "windows-differ", "evaluation-in-window", "no-warmup-left-out"),
        *("generations-unclear", "times-from-bars", "bars-too-coarse", "times-from-average", "step-no-clock"),
        *("time-in-no-step", "missing-steps", "begins-later"),
        *("incomplete-history", "began-anew", "counter-fell", "timings-missing", "models-unknown", "gpu-count-unknown"),
        *("equal-arms-differ", "release-by-data", "release-undeclared", "mode-unknown"),
    ),
}
# What the sentence, another row or the number of steps left out says already; and whether it says all of it.
SAID = dict.fromkeys(
    (
        *("tokens-unknown", "throughput-only", "overlapping-phases", "no-common-steps", "other-engine"),
        *("gpus-differ", "processors-differ", "gpu-counts-differ", "node-counts-differ", "models-differ"),
        "columns-differ",
    ),
    True,
) | {"step-left-out": False}


@dataclass(frozen=True)
class JudgedPlace:
    """One arm at one factor combination: what the rows of the table test."""

    factors: str
    arms: tuple[str, str]
    """The baseline and the arm."""
    claim: Claim
    comparison: Any
    """Its row of `comparison_table`; of NaN where nothing is compared, and for a benchmark's results: their loads
    differ by intent."""
    gate: pd.DataFrame
    mismatch: Mismatch | None
    jumped: Sequence[tuple[str, int, float]]
    """The runs whose mismatch jumps, the step, and how many times as high it stays."""
    staleness: Mapping[str, float]
    """How many policy versions old the responses of each arm are when they are trained; NaN where it is not logged."""
    driven: bool
    """Whether both arms were trained from here: then a mismatch that can be compared is logged."""
    rollouts: Mapping[str, str]
    """The arms whose engine quantises or drafts, and how (analysis/terms.py)."""
    preflight: Preflight | None
    """Of the two arms."""
    unequal: Sequence[Finding]
    read: Sequence[Verdict]
    """Errors and warnings of reading about the two arms."""
    alone: bool
    """Whether it is the arm's only factor combination."""
    trains_worse: bool = False
    """Whether the gate fails: then no equal terms would make the arms comparable."""
    per_response: float = math.nan
    """The claimed ratio for the same number of responses; NaN where both have as many, or a number is not known."""

    @property
    def printed(self) -> bool:
        """Whether a ratio of it is printed."""
        return bool(self.claim.estimate) and not self.claim.too_wide


# In order of harm: the kind of a caveat, its text, and what would remove it; one without a text is only the latter.
# `{at}` names the factor combinations that have it, where others do not.
TABLE: dict[str, tuple[Kind, str, str]] = {
    "gate": ("gate", "The correctness gate fails{at}: {arm} is worse in {what}.", ""),
    "far": (
        "gate",
        "The gate fails{at}: {arm} is {bound} or more from its trainer: it learns from another policy.",
        "",
    ),
    "work": ("terms", "A step is other work in the two arms{at}: {why}{each}.", "{settle}"),
    "misread": ("data", "{text}.", ""),
    "scope": ("terms", "{what}: {why}.", "{settle}"),
    "terms": ("terms", "Unequal terms ({what}): {effect}.", "{settle}"),
    "no-preflight": (
        "terms",
        "The settings are not compared: there is no preflight.",
        "a preflight, which compares the settings",
    ),
    "no-ledger": ("terms", "The settings are not compared: the fairness ledger is empty.", ""),
    "wide": ("spread", f"No ratio{{at}}: {WIDE} (too few runs or steps).", ""),
    "open": ("spread", "Not resolved{at}.", ""),
    "one-step": ("spread", "", "more steps"),
    "more-runs": ("spread", "", "{settle}"),
    "refused": ("terms", "", "{settle}"),
    "may-change": ("data", "{text}.", ""),
    "lacks": (
        "data",
        "The mismatch of {run} is unknown{at} in {count} of {steps} compared steps, from step {step} on: no number.",
        "",
    ),
    "jump": ("gate", "The mismatch of {run} jumps at step {step} and stays {times} as high: weights may be stale.", ""),
    "aged": (
        "data",
        "The mismatch is also of age{at}: responses are trained {ages} policy versions after they were sampled.",
        "",
    ),
    "other-rollouts": (
        "data",
        "The engine of {arm} {how}, and how far it is from the trainer is not logged by one definition{at}.",
        "logs of the mismatch",
    ),
    "cut": ("data", "The mismatch is not comparable{at}: {settings} cut what the engines sample from.", ""),
    "disagree": ("estimates", "Step time{number} and equal work disagree{at}: {why}.", ""),
    "crossing": ("estimates", "Which is faster depends on the length{at}: {which}.", ""),
    "falling": (
        "estimates",
        "The steps of {arms}{at} still become faster: --warmup {warmup} gives {later} per step, not {now}.",
        "",
    ),
    "long": ("estimates", "Steps many times as long as their run's median{at}: {steps}{effect}.", ""),
    "outliers": ("estimates", "The median steps {what}{at}{numbers}. A few outlying steps may decide.", ""),
    "rounded": (
        "estimates",
        "The logged times may be {off} off (few digits, or a trainer that polls): that alone could explain the "
        "difference.",
        "{settle}",
    ),
    "wall": ("estimates", "By wall clock, which includes the time between steps{at}: {numbers}.", ""),
    "gate-open": ("data", "The gate cannot judge {names}{at}: not all compared steps have numbers in both arms.", ""),
    "not-compared": ("data", "Not compared{at}: {why}.", ""),
    "no-equal-work": ("data", "Speed at equal work is unknown{at}: {why}{remedy}.", ""),
    "other": ("data", "{text}.", ""),
    "unverified": ("data", "{what} cannot be verified{more}.", ""),
}
Doubt = tuple[str, dict[str, str]]
"""A row of the table, and the values of its text."""


def caveats_of(places: Sequence[JudgedPlace]) -> tuple[tuple[Caveat, ...], tuple[str, ...]]:
    """The caveats of one arm from all its factor combinations, in the table's order, and what would remove them.

    Places with equal values share one caveat.
    """
    found: dict[str, dict[tuple[tuple[str, str], ...], list[str]]] = {name: {} for name in TABLE}
    for place in places:
        for name, values in (
            *_of_terms(place),
            *_of_mismatch(place),
            *_of_claim(place),
            *_of_steps(place),
            *_of_reading(place),
        ):
            found[name].setdefault(tuple(values.items()), []).append(place.claim.at)
    caveats, settle = [], []
    not_comparable = {place.claim.at for place in places if place.claim.verdict == "x"}
    for name, (kind, text, remedy) in TABLE.items():
        for items, at in found[name].items():
            values = dict(items) | {"at": f" at {join_first(at, MOST_NAMES)}" if len(at) < len(places) else ""}
            caveats.append(Caveat(kind, text.format_map(values)))
            # Runs that train worse, or ran under other conditions, are no more comparable with another doubt removed.
            if name == "refused" or not {*at} <= not_comparable:
                settle.append(remedy.format_map(values))
    return tuple(dict.fromkeys(one for one in caveats if one.text)), tuple(dict.fromkeys(filter(None, settle)))


def _of_terms(place: JudgedPlace) -> Iterator[Doubt]:
    """The gate, and terms that differ or are not known."""
    for arm, quantity, both in worse_arms(place.gate, *place.arms):
        # The numbers of a sweep are many.
        yield "gate", {"arm": arm, "what": LABELS[quantity] + f" ({both})" * place.alone}
    missing = (place.gate["baseline_missing"] > 0) | (place.gate["arm_missing"] > 0)
    if unknown := [LABELS[name] for name in place.gate.loc[missing & (place.gate["verdict"] == UNKNOWN), "quantity"]]:
        yield "gate-open", {"names": ", ".join(unknown)}
    for finding in place.unequal:
        if finding.scope:
            yield "scope", {"what": finding.what, "why": finding.why, "settle": finding.settle}
    unequal = [finding for finding in place.unequal if not finding.scope]
    if codes := list(dict.fromkeys(finding.code for finding in unequal)):
        settings = [code for code in codes if code != WHOLE]
        remedies = ["one trainer in both arms"] * (WHOLE in codes)
        # The caveat names them.
        remedies += ["runs on equal terms"] if settings else []
        number = "the ratio" if place.printed else "a difference"
        effect = "whole systems are compared" if WHOLE in codes else f"the engines alone do not explain {number}"
        what = shorten(unequal[0].what, MOST_SHOWN, placeholder=" ...") if len(codes) == 1 else ""
        yield "terms", {"what": what or join_first(codes, MOST_NAMES), "effect": effect, "settle": "; ".join(remedies)}
    if place.preflight is None or not place.preflight.ledger:
        yield "no-preflight" if place.preflight is None else "no-ledger", {}
    elif settings := list(dict.fromkeys(row.setting for row in place.preflight.rows("unverifiable"))):
        yield "unverified", _unverified(settings, len(place.preflight.ledger))


def _unverified(settings: Sequence[str], every: int) -> dict[str, str]:
    """How many settings are not known; one row may stand for all of the trainer and the engine, however many."""
    if len(settings) == every:
        return {"what": "The terms", "more": ": no settings in these logs"}
    named = [name for name in settings if not name.startswith(ALL_SETTINGS)]
    names = f" ({join_first([*map(_in_words, named)], 2)})" if named else ""
    if len(named) == len(settings):
        return {"what": f"{len(named)} of {every} settings", "more": names}
    (whole,) = (name for name in settings if name not in named)
    more = f", nor {len(named)} of {every - 1} others{names}" if named else ""
    return {"what": whole[0].upper() + whole[1:], "more": more}


def _in_words(name: str) -> str:
    """A key of the workload in words; a trainer's own key as it is written."""
    own = name.removeprefix("workload.")
    return name if own == name else own.replace("_", " ").replace("gpu", "GPU")


def _of_mismatch(place: JudgedPlace) -> Iterator[Doubt]:
    """Engines that are far from their trainers, or whose mismatch says something else."""
    ledger = place.preflight.ledger if place.preflight is not None else ()
    # The engine's probabilities are then of the tokens that are left, the trainer's of all.
    cuts = [row for row in ledger if row.setting.rpartition(".")[2] in FILTERS]
    settings = [row.setting for row in cuts if {*row.values.values()} - UNFILTERED]
    if settings and (place.mismatch is not None or place.driven):
        yield "cut", {"settings": join_first(settings, MOST_NAMES)}
    if place.mismatch is None:
        for arm, how in place.rollouts.items():
            yield "other-rollouts", {"arm": arm, "how": how}
        return
    if aged := {arm: age for arm, age in place.staleness.items() if age > 0}:
        yield "aged", {"ages": " and ".join(f"{age:.2g} ({arm})" for arm, age in aged.items())}
    for arm in place.mismatch.beyond(*place.arms):
        yield "far", {"arm": arm, "bound": f"{BOUND:g}"}
    if lacks := sorted(place.mismatch.lacks):
        run, step, count, steps = lacks[0]
        more = f" (and of {count_of(len(lacks) - 1, 'more run')})" if len(lacks) > 1 else ""
        yield "lacks", {"run": run + more, "step": str(step), "count": f"{count:,}", "steps": f"{steps:,}"}
    for run, step, factor in place.jumped:
        yield "jump", {"run": run, "step": str(step), "times": ratio_text(factor)}


def _of_claim(place: JudgedPlace) -> Iterator[Doubt]:
    """What keeps a claim open, and what would resolve it."""
    claim, row = place.claim, place.comparison
    too_few = claim.too_wide and claim.row.get("open") != COARSE
    if too_few:
        yield "wide", {}
    # Without a sweep the sentence says it.
    elif claim.verdict == "~" and not (place.alone or claim.lacking):
        yield "open", {}
    if claim.estimate and claim.steps == (1, 1):
        yield "one-step", {}
    if place.alone and claim.verdict == "~" and (claim.record == "step" or not claim.lacking):
        more, few = claim.row["runs_to_resolve"], "more runs of each arm" if too_few else ""
        # More runs are not known to reduce a spread that a few outlying steps decide.
        if outliers_decide(row.raw_speedup, row.median_speedup):
            few = few and "runs on a machine without other work"
        elif more > 0:
            # Of this count no more is known than its size.
            number = count_of(int(float(f"{more:.2g}")), "more run")
            few = f"{'at least' if claim.lacking else 'about'} {number} of {claim.lacking or 'each arm'}"
            fewest = min(count // runs for count, runs in zip(claim.steps, claim.runs, strict=True))
            if claim.lacking and claim.unit == AT_EQUAL_WORK and fewest < LEAST_STEPS_FOR_LIKELY:
                few += f" ({LEAST_STEPS_FOR_LIKELY} counted steps a run, here {fewest}, may show a direction)"
        yield "more-runs", {"settle": few}
    if claim.estimate and disagreement(claim.rows):
        number = f" (per step {ratio_text(claim.rows[PER_STEP]['value'])})" if place.alone and place.printed else ""
        has_intervals = all(claim.rows[name]["low"] > 0 for name in (PER_STEP, EQUAL_WORK))
        yield "disagree", {"number": number, "why": what_differs(row.tokens_ratio, has_intervals)}
    if not claim.estimate:
        yield "refused", {"settle": "" if place.trains_worse else claim.row["settle"]}
        if not place.alone:
            yield "not-compared", {"why": claim.why}
    equal = claim.rows[EQUAL_WORK]
    # A benchmark's requests, which all clients choose, need no equal work.
    if claim.estimate == PER_STEP and claim.record == "step" and equal["why"] != row.unequal_work:
        # Which logs would show it is clear from what is not known.
        remedy = equal["settle"] and not equal["settle"].startswith("logs with ")
        yield "no-equal-work", {"why": equal["why"], "remedy": f"; {equal['settle']} would show it" if remedy else ""}


def _of_steps(place: JudgedPlace) -> Iterator[Doubt]:
    """Which steps decide the ratio per step, and what its seconds leave out."""
    row, printed = place.comparison, place.printed
    now, median = row.raw_speedup, row.median_speedup
    later, without = row.speedup_after_warmup, row.speedup_without_long
    if isinstance(row.unequal_work, str) and row.unequal_work:
        each = f"; per response {place.arms[1]} is {ratio_text(place.per_response)}"
        known = place.per_response > 0
        remedy = "runs with equally many responses a step" if known else ""
        yield "work", {"why": row.unequal_work, "each": each if known and place.alone else "", "settle": remedy}
    if printed and isinstance(row.crossing, str) and row.crossing:
        yield "crossing", {"which": row.crossing}
    if printed and later > 0 and now > 0 and abs(math.log(later / now)) > CHANGES_FROM:
        numbers = {"now": ratio_text(now), "later": ratio_text(later)}
        yield "falling", {**numbers, "arms": row.still_falling, "warmup": f"{row.warmup_needed}"}
    if isinstance(row.long_steps, str) and row.long_steps:
        decide = without > 0 and now > 0 and (abs(math.log(without / now)) > CHANGES_FROM or disagrees(without, now))
        effect = f". They decide: without them {ratio_text(without)} per step, not {ratio_text(now)}"
        yield "long", {"steps": row.long_steps, "effect": effect if printed and decide else ""}
    elif outliers_decide(now, median):
        # None is long: there are two kinds of steps.
        what = "point to the other arm" if disagrees(now, median) else "have another ratio"
        yield (
            "outliers",
            {"what": what, "numbers": f": {ratio_text(median)} (per step {ratio_text(now)})" if printed else ""},
        )
    if place.claim.row.get("open") == COARSE:
        polls = any(one.code == "wait-polled" for one in place.read)
        settle = "" if polls or place.claim.verdict != "~" else "logs with more digits of the step's seconds"
        yield "rounded", {"off": f"{math.expm1(row.rounding):.1%}", "settle": settle}
    if printed and max(now / row.wall_speedup, row.wall_speedup / now) > WALL_CLOCK_FROM:
        yield "wall", {"numbers": f"{ratio_text(row.wall_speedup)} (per step {ratio_text(now)})"}


def _of_reading(place: JudgedPlace) -> Iterator[Doubt]:
    """The findings of reading, once for each code; those of no row come last."""
    placed = {code: name for name, codes in CODES.items() for code in codes}
    order = list(placed)
    found = [one for one in place.read if one.code not in SAID]
    found.sort(key=lambda one: order.index(one.code) if one.code in placed else len(order))
    for _, code, (first, *more) in verdict_groups(found):
        text = first.text.rstrip(".") + (f" (and {len(more)} more like it)" if more else "")
        yield placed.get(code, "other"), {"text": text}
