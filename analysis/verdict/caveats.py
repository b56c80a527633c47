"""Lists what limits a verdict, the most harmful first: terms, gate, spread of runs, estimates, missing data."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence, Sized
from textwrap import shorten
from typing import Any

import pandas as pd

from analysis.estimates.arm import different_work, disagreement, has_intervals
from analysis.estimates.equal_work import NEEDS
from analysis.estimates.gate import LABELS, WORSE_ARM, missing_numbers
from analysis.factors import at, factors_label
from analysis.pairs import TOKENS, disagrees, outliers_decide
from analysis.runs import rows_of
from analysis.verdict.arm_verdict import WIDE, Caveat, ratio_text
from analysis.verdict.claim import AT_EQUAL_WORK, Claim, direction
from common.findings import Finding, Preflight
from common.messages import join_first

# A larger ratio is not worth stating as what the runs would resolve.
MOST_DETECTABLE = 10.0
# The ratio of the two speed-ups from which the wall clock is a caveat.
WALL_CLOCK_FROM = 1.1
# No engine is so much faster than another: from here on a unit is the likelier cause.
OTHER_UNIT_FROM = 50.0
MOST_NAMES = 4
BY_TOKENS = tuple(name for name, needs in NEEDS.items() if TOKENS in needs)
# Of a longer difference the first words are shown; the page has the rest.
MOST_SHOWN = 160
# The code of a finding that no setting removes: the arms have different trainers, which work differently.
WHOLE = "trainers"


def caveats_of(
    arm: str,
    claims: Sequence[Claim],
    comparison: pd.DataFrame,
    gate: pd.DataFrame | None,
    preflight: Preflight | None,
    unequal: Sequence[Finding],
) -> list[Caveat]:
    """The caveats of one arm by order of harm; `claims` are those of all its factor combinations."""
    known, rows = [claim for claim in claims if claim.verdict != "x"], list(rows_of(comparison))
    failed, not_judged = _gate(arm, gate)
    told = {claim.at for claim in known if not claim.too_wide}
    # The results of one benchmark are of different loads by intent.
    of_steps = rows if all(claim.record == "step" for claim in known) else []
    texts: tuple[tuple[Any, str, Iterable[str]], ...] = (
        ("estimates", "steps", _other_unit(of_steps)),
        ("terms", "ledger", _terms(preflight, unequal)),
        ("gate", "gate", failed),
        ("spread", "answer", _spread(claims, known, rows)),
        ("estimates", "answer", _contradictions(known)),
        ("estimates", "steps", _outliers(of_steps, told)),
        ("estimates", "cost", _wall_clock([row for row in rows if factors_label(row.factors) in told])),
        ("data", "answer", _assumed(known, rows)),
        ("data", "gate", not_judged),
        ("data", "answer", _missing(claims)),
        ("data", "ledger", _unverified(preflight)),
    )
    return [Caveat(kind, text, section) for kind, section, found in texts for text in found]


def _terms(preflight: Preflight | None, unequal: Sequence[Finding]) -> Iterator[str]:
    if preflight is None:
        yield "The settings are not compared: there is no preflight."
    elif not preflight.ledger:
        yield "The settings are not compared: the fairness ledger is empty."
    for finding in unequal:
        if finding.scope:
            yield f"{finding.what}: {finding.why}."
    if codes := list(dict.fromkeys(finding.code for finding in unequal if not finding.scope)):
        effect = "the ratio compares whole systems" if WHOLE in codes else "the engines alone do not explain the ratio"
        what = next(finding.what for finding in unequal if not finding.scope)
        shown = shorten(what, MOST_SHOWN, placeholder=" ...") if len(codes) == 1 else join_first(codes, MOST_NAMES)
        yield f"Unequal terms ({shown}): {effect}."


def _gate(arm: str, gate: pd.DataFrame | None) -> tuple[list[str], list[str]]:
    """What the correctness gate fails, and what it cannot judge."""
    if gate is None:
        return [], []
    failed, open_rows = gate["verdict"] == WORSE_ARM, missing_numbers(gate[gate["verdict"] != WORSE_ARM])
    worse, lacking = (_quantities(rows, gate) for rows in (gate[failed], open_rows))
    return (
        [f"The correctness gate fails: {arm} is worse in {worse}."] if worse else [],
        [f"The correctness gate cannot judge {lacking}: some steps have numbers in one arm only."] if lacking else [],
    )


def _quantities(rows: pd.DataFrame, gate: pd.DataFrame) -> str:
    """The quantities of these rows of the gate, each with its factor combinations unless these are all."""
    found = _grouped((row.quantity, factors_label(row.factors)) for row in rows_of(rows))
    return ", ".join(LABELS[name] + _at(places, gate[gate["quantity"] == name]) for name, places in found)


def _spread(claims: Sequence[Claim], known: Sequence[Claim], rows: list[Any]) -> Iterator[str]:
    """Too few runs or steps, and what noise leaves not resolved."""
    where = " at each factor combination" if len(claims) > 1 else ""
    if known and all(claim.one_step for claim in known):
        step = "One step of one run each" if known[0].record == "step" else "One result each"
        others = "other steps and other runs" if known[0].record == "step" else "other runs of the benchmark"
        yield f"{step}{where}: {others} may differ."
    elif known and all(claim.one_pair for claim in known):
        yield f"One run pair{where}: how much other runs differ is unknown."
    # Runs of equal arms fall to either side.
    open_rows = [r for r in rows if any(c.at == factors_label(r.factors) and c.verdict != "=" for c in known)]
    if any(disagrees(r.lowest_seed_speedup, r.highest_seed_speedup) for r in open_rows):
        yield "By step time the seeds disagree on which arm is faster."
    for why, places in _grouped((c.row["why"], c.at) for c in known if c.too_wide):
        # Another reason than chance is reported below.
        reason = "" if why else " (too few runs or steps)"
        yield f"No ratio{_at(places, claims)}: its 95% interval is wider than a factor of 3 either way{reason}."
    open_claims = [
        c
        for c in known
        if c.verdict == "~" and not (c.contradicted or c.one_pair or (c.too_wide and c.why in ("", WIDE)))
    ]
    reasons = ((c.why and f" by {c.estimate.replace('_', ' ')}: {c.why}", c.at) for c in open_claims)
    for why, places in _grouped(reasons):
        if why or len(claims) > 1:
            yield f"Not resolved{_at(places, claims)}{why}."
    if len(claims) == 1 and known and (least := _detectable(known[0])):
        yield f"These runs resolve only ratios of {ratio_text(least)} or more."


def _detectable(claim: Claim) -> float:
    """The smallest ratio that these runs resolve; 0 where noise is not why the claim is open."""
    row = claim.row
    least: float = row["minimum_detectable_ratio"]
    # A larger observed ratio is open for another reason than noise.
    smaller = max(row["value"], 1 / row["value"]) < least
    by_noise = claim.verdict == "~" and row["low"] <= 1 <= row["high"]
    return least if by_noise and smaller and 0 < least < MOST_DETECTABLE and direction(least) else 0.0


def _contradictions(known: Sequence[Claim]) -> Iterator[str]:
    """Estimates that disagree, above all step time with equal work."""
    for claim in known:
        if claim.contradicted:
            yield f"The estimates disagree{_at([claim.at], known)}: {claim.why}."
    apart = [claim for claim in known if disagreement(claim.rows)]
    for differ in (True, False):
        some = [claim for claim in apart if bool(different_work(claim.rows)) is differ]
        if not some:
            continue
        numbers = f" (per step {ratio_text(some[0].value('raw'))})" if len(known) == 1 and not known[0].too_wide else ""
        why = "although both arms generated equally many tokens, so rely on neither alone"
        if differ:
            misleads = "misleads" if all(has_intervals(claim.rows) for claim in some) else "may mislead"
            why = f"{_work_of(some)}, so step time alone {misleads}"
        yield f"Step time{numbers} and equal work disagree{_at([c.at for c in some], known)}: {why}."
    by_token = [claim for claim in known if disagrees(claim.value("raw"), claim.value("per_token"))]
    if by_token and not apart:
        where, unit = _at([claim.at for claim in by_token], known), by_token[0].step_of
        yield f"Per {unit} and per response token disagree on which arm is faster{where}: {_work_of(by_token)}."


def _other_unit(rows: list[Any]) -> Iterator[str]:
    """Steps so far apart that one log's seconds may be of another unit."""
    if any(max(row.raw_speedup, 1 / row.raw_speedup) >= OTHER_UNIT_FROM for row in rows if row.raw_speedup > 0):
        yield "The steps are so far apart that one log may have another unit; name the unit in its column (step_ms)."


def _work_of(claims: Sequence[Claim]) -> str:
    return different_work(claims[0].rows) if len(claims) == 1 else "the arms' steps are different work"


def _outliers(rows: list[Any], told: Container[str]) -> Iterator[str]:
    """Median steps with another ratio: outlying steps are one cause, two kinds of steps another.

    Only the ratios of the factor combinations in `told` are given.
    """
    opposite = [r for r in rows if disagrees(r.raw_speedup, r.median_speedup)]
    if medians := opposite or [r for r in rows if outliers_decide(r.raw_speedup, r.median_speedup)]:
        shown = [
            f"{ratio_text(r.median_speedup)} (per step {ratio_text(r.raw_speedup)}){at(r.factors)}"
            for r in medians
            if factors_label(r.factors) in told
        ]
        what = "point to the other arm" if opposite else "have another ratio"
        numbers = f": {join_first(shown, MOST_NAMES)}" if shown else ""
        yield f"The median steps {what}{numbers}. A few outlying steps may decide."


def _wall_clock(rows: list[Any]) -> Iterator[str]:
    """The ratio by wall clock, where it differs from that of the steps."""
    apart = [
        f"{ratio_text(r.wall_speedup)} (per step {ratio_text(r.raw_speedup)}){at(r.factors)}"
        for r in rows
        if max(r.raw_speedup / r.wall_speedup, r.wall_speedup / r.raw_speedup) > WALL_CLOCK_FROM
    ]
    if apart:
        yield f"By wall clock, which includes the time between steps: {join_first(apart, MOST_NAMES)}."


def _assumed(known: Sequence[Claim], rows: list[Any]) -> Iterator[str]:
    """Factor combinations whose tokens are mean lengths (`equal_work.counts_assumed_equal`)."""
    uncounted = {factors_label(row.factors) for row in rows if math.isnan(row.baseline_tokens + row.arm_tokens)}
    if places := [claim.at for claim in known if claim.estimate in BY_TOKENS and claim.at in uncounted]:
        where = _at(places, known)
        yield f"The ratio{where} takes a step's responses as equally many in both arms: no log has their number."


def _missing(claims: Sequence[Claim]) -> Iterator[str]:
    """Factor combinations without a comparison, and those without a ratio at equal work."""
    for why, places in _grouped((c.why, c.at) for c in claims if c.verdict == "x"):
        yield f"Not compared{_at(places, claims)}: {why}."
    unknown = [c for c in claims if c.verdict != "x" and lacks_equal_work(c)]
    for why, places in _grouped((why_not_equal_work(c), c.at) for c in unknown):
        yield f"Speed at equal work is unknown{_at(places, claims)}: {why}."


def lacks_equal_work(claim: Claim) -> bool:
    """Whether a ratio at equal work is missing; a benchmark's requests, which all clients choose, need none."""
    return claim.record == "step" and claim.unit != AT_EQUAL_WORK


def why_not_equal_work(claim: Claim) -> str:
    """Why a claim has no ratio at equal work."""
    return str(claim.rows["standardised"]["why"])


def _unverified(preflight: Preflight | None) -> Iterator[str]:
    unknown = list(dict.fromkeys(row.setting for row in preflight.rows("unverifiable"))) if preflight else []
    if preflight and unknown:
        yield f"{len(unknown)} of {len(preflight.ledger)} settings cannot be verified ({join_first(unknown, 2)})."


def _grouped(reasons: Iterable[tuple[str, str]]) -> Iterable[tuple[str, list[str]]]:
    """Each reason, and the factor combinations that it applies to."""
    groups: dict[str, list[str]] = defaultdict(list)
    for why, place in reasons:
        groups[why].append(place)
    return groups.items()


def _at(places: Sequence[str], claims: Sized) -> str:
    """` at` these factor combinations; empty where they are all."""
    return f" at {join_first(places, MOST_NAMES)}" if len(places) < len(claims) else ""
