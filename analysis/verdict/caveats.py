"""Lists what limits a verdict, the most harmful first: terms, gate, spread of runs, estimates, missing data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.estimates.disagreement import disagreement, has_intervals, lengths_differ
from analysis.estimates.gate import LABELS, WORSE_ARM, missing_numbers
from analysis.runs import factors_label, rows_of
from analysis.speedup import disagrees, outliers_decide
from analysis.verdict.arm_verdict import MOST_PLACES, Caveat, places, ratio_text
from analysis.verdict.claim import AT_EQUAL_WORK, Claim, direction
from common.findings import Finding, Preflight

# An interval whose ends differ by more is of little use.
TOO_WIDE = 10.0
# From here on the ratio by the wall clock is another one than that of the steps.
WALL_CLOCK_FROM = 1.1
# So many settings are named.
MOST_NAMES = 4
# The findings that arms have different trainers, and that these work otherwise, which no setting ends.
WHOLE, WAYS = "trainers", "trainer-ways"


def caveats_of(
    arm: str,
    claims: Sequence[Claim],
    comparison: pd.DataFrame,
    gate: pd.DataFrame | None,
    preflight: Preflight | None,
    unequal: Sequence[Finding],
) -> list[Caveat]:
    """The caveats of one arm by order of harm; `claims` are those of all its factor combinations."""
    known = [claim for claim in claims if claim.verdict != "x"]
    missing: list[str] = []
    found = [Caveat("terms", text, "ledger") for text in _terms(preflight, unequal)]
    if gate is not None:
        if len(worse := gate[gate["verdict"] == WORSE_ARM]):
            found.append(Caveat("gate", f"The correctness gate fails: {arm} is worse in {_labels(worse)}.", "gate"))
        if len(lacking := missing_numbers(gate)):
            missing.append(f"The correctness gate cannot judge {_labels(lacking)}: steps of one arm lack numbers.")
    found += [Caveat("spread", text, "answer") for text in _spread(claims, comparison)]
    found += [Caveat("estimates", text, "answer") for text in _contradictions(known)]
    found += [Caveat("estimates", text, "steps") for text in _outliers(list(rows_of(comparison)))]
    found += [Caveat("estimates", text, "cost") for text in _by_wall_clock(list(rows_of(comparison)))]
    found += [Caveat("data", text, "gate") for text in missing]
    found += [Caveat("data", text, "answer") for text in _missing(claims)]
    found += [Caveat("data", text, "ledger") for text in _unverified(preflight)]
    return found


def _terms(preflight: Preflight | None, unequal: Sequence[Finding]) -> Iterator[str]:
    if preflight is None:
        yield "The settings are not compared: there is no preflight."
    elif not preflight.ledger:
        yield "The settings are not compared: the fairness ledger is empty."
    for finding in unequal:
        if finding.scope:
            yield f"{finding.what}: {finding.why}."
    if codes := [finding.code for finding in unequal if not finding.scope]:
        of = "the ratio is one of whole systems" if WHOLE in codes else "the engines alone do not explain the ratio"
        yield f"Unequal terms ({names_of(codes)}): {of}."


def _spread(claims: Sequence[Claim], comparison: pd.DataFrame) -> Iterator[str]:
    """Too few runs or steps, and what noise leaves open."""
    known = [claim for claim in claims if claim.verdict != "x"]
    where = " at each factor combination" if len(claims) > 1 else ""
    if known and all(claim.one_step for claim in known):
        yield f"One step of one run each{where}: other steps and other runs may differ."
    elif known and all(claim.one_pair for claim in known):
        yield f"One run pair{where}: how much other runs differ is unknown."
    if any(disagrees(r.lowest_seed_speedup, r.highest_seed_speedup) for r in rows_of(comparison)):
        yield "By step time the seeds disagree on which arm is faster."
    if wide := [c.at for c in known if c.interval[1] > TOO_WIDE * c.interval[0]]:
        yield f"The interval is too wide to be of use{_at(wide, claims)}: too few runs or steps."
    open_at: dict[str, list[str]] = {}
    for claim in known:
        if claim.verdict == "~" and not claim.contradicted and not claim.one_pair:
            by = claim.why and f" by {claim.estimate.replace('_', ' ')}: {claim.why}"
            open_at.setdefault(by, []).append(claim.at)
    for why, at in open_at.items():
        if why or len(claims) > 1:
            yield f"Not resolved{_at(at, claims)}{why}."
    if len(claims) == 1 and known and (least := _detectable(known[0])):
        yield f"These runs resolve only ratios from {ratio_text(least)} on."


def _detectable(claim: Claim) -> float:
    """The smallest ratio that the runs would have shown; NaN or 0 where noise is not what leaves the claim open."""
    row = claim.row
    least: float = row["minimum_detectable_ratio"]
    # What else than noise leaves open, no smaller ratio would have shown.
    beyond = max(row["value"], 1 / row["value"]) < least
    told = (
        claim.verdict == "~" and row["low"] <= 1 <= row["high"] and 0 < least < TOO_WIDE and direction(least) and beyond
    )
    return least if told else 0.0


def _contradictions(known: Sequence[Claim]) -> Iterator[str]:
    """Estimates that disagree, above all step time with equal work."""
    for claim in known:
        if claim.contradicted:
            yield f"The estimates disagree{_at([claim.at], known)}: {claim.why}."
    apart = [claim for claim in known if disagreement(claim.rows)]
    for differ in (True, False):
        some = [claim for claim in apart if lengths_differ(claim.rows) is differ]
        if not some:
            continue
        numbers = f" (per step {ratio_text(some[0].value('raw'))})" if len(known) == 1 else ""
        why = "yet both arms' responses have equally many tokens, so rely on neither alone"
        if differ:
            sure = all(has_intervals(claim.rows) for claim in some)
            why = f"the responses differ in length, so step time alone {'misleads' if sure else 'may mislead'}"
        yield f"Step time{numbers} and equal work disagree{_at([c.at for c in some], known)}: {why}."
    if not apart and any(disagrees(c.value("raw"), c.value("per_token")) for c in known):
        yield "Per step and per response token disagree on which arm is faster: the responses differ in length."


def _outliers(rows: list[Any]) -> Iterator[str]:
    if any(disagrees(r.raw_speedup, r.median_speedup) for r in rows):
        yield "The median steps point to the other arm: a few outlying steps decide."
    elif some := [r for r in rows if outliers_decide(r.raw_speedup, r.median_speedup)]:
        medians = _listed(some, [ratio_text(r.median_speedup) for r in some])
        yield f"A few outlying steps decide how much: by median steps {medians}."


def _by_wall_clock(rows: list[Any]) -> Iterator[str]:
    """What the ratio becomes with the time between steps, where that is another one."""
    apart = [(r, r.raw_speedup / r.wall_speedup) for r in rows]
    some = [r for r, times in apart if max(times, 1 / times) > WALL_CLOCK_FROM]
    if some:
        each = [f"{ratio_text(r.wall_speedup)} (per step {ratio_text(r.raw_speedup)})" for r in some]
        yield f"By the wall clock, which holds the time between steps too, {_listed(some, each)}."


def _listed(rows: list[Any], texts: Sequence[str]) -> str:
    """A text for each factor combination, the first few."""
    each = [
        text + (f" at {factors_label(r.factors)}" if r.factors else "") for r, text in zip(rows, texts, strict=True)
    ]
    more = f" and {len(rows) - MOST_PLACES} more" if len(rows) > MOST_PLACES else ""
    return ", ".join(each[:MOST_PLACES]) + more


def _missing(claims: Sequence[Claim]) -> Iterator[str]:
    """Factor combinations that are not compared, and equal work that is unknown."""
    absent: dict[str, list[str]] = {}
    unknown: dict[str, list[str]] = {}
    for claim in claims:
        if claim.verdict == "x":
            absent.setdefault(claim.why, []).append(claim.at)
        elif claim.unit != AT_EQUAL_WORK:
            unknown.setdefault(equal_work_lacks(claim), []).append(claim.at)
    for why, at in absent.items():
        yield f"Not compared{_at(at, claims)}: {why}."
    for why, at in unknown.items():
        yield f"Speed at equal work is unknown{_at(at, claims)}: {why}."


def equal_work_lacks(claim: Claim) -> str:
    """Why a claim has no ratio at equal work."""
    return str(claim.rows["standardised"]["why"])


def _unverified(preflight: Preflight | None) -> Iterator[str]:
    unknown = list(dict.fromkeys(row.setting for row in preflight.rows("unverifiable"))) if preflight else []
    if preflight and unknown:
        yield f"{len(unknown)} of {len(preflight.ledger)} settings cannot be verified ({names_of(unknown, 2)})."


def names_of(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """The first of several names, and how many more there are."""
    names = list(dict.fromkeys(names))
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _at(some: Sequence[str], every: Sequence[Claim]) -> str:
    return f" at {places(some)}" if len(some) < len(every) else ""


def _labels(gate: pd.DataFrame) -> str:
    return ", ".join(LABELS[name] for name in dict.fromkeys(gate["quantity"]))
