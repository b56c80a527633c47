"""Lists what limits a verdict, the most harmful first: terms, gate, spread of runs, estimates, missing data."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence, Sized
from textwrap import shorten
from typing import Any

import pandas as pd

from analysis.compared import disagrees, outliers_decide
from analysis.estimates.estimate_table import EQUAL_WORK, PER_STEP, disagreement, what_differs
from analysis.estimates.gate import LABELS, WORSE_ARM, missing_numbers
from analysis.factors import at, factors_label
from analysis.runs import rows_of
from analysis.verdict.arm_verdict import WIDE, Caveat, ratio_text
from analysis.verdict.claim import AT_EQUAL_WORK, Claim, direction
from common.findings import Finding, Preflight
from common.messages import join_first

# A larger ratio is not worth stating as what the runs would resolve.
MOST_DETECTABLE = 10.0
# The ratio of the two speed-ups from which the wall clock is a caveat.
WALL_CLOCK_FROM = 1.1
# From this logarithm on the rounding of printed times is a caveat.
ROUNDING_FROM = 0.01
# No engine is so much faster than another: from here on a unit is the likelier cause.
OTHER_UNIT_FROM = 50.0
MOST_NAMES = 4
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
    known, rows = [claim for claim in claims if claim.valued], list(rows_of(comparison))
    failed, not_judged = _gate(arm, gate)
    told = {claim.at for claim in known if not claim.too_wide}
    # The results of one benchmark are of different loads by intent.
    of_steps = rows if all(claim.record == "step" for claim in known) else []
    texts: tuple[tuple[Any, str, Iterable[str]], ...] = (
        ("estimates", "steps", _other_unit(of_steps)),
        ("terms", "answer", _unequal_work(of_steps)),
        ("terms", "ledger", _terms(preflight, unequal)),
        ("gate", "gate", failed),
        ("spread", "answer", _spread(claims, known)),
        ("data", "steps", _steps_in_common(rows)),
        ("estimates", "answer", _disagreements(known, rows)),
        ("estimates", "steps", _outliers(of_steps, told)),
        ("estimates", "steps", _rounded(rows)),
        ("estimates", "cost", _wall_clock([row for row in rows if factors_label(row.factors) in told])),
        ("data", "gate", not_judged),
        ("data", "answer", _missing(claims, {row.unequal_work for row in rows})),
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
    worse, lacking = _quantities(gate[failed], gate, True), _quantities(open_rows, gate, False)
    return (
        [f"The correctness gate fails: {arm} is worse in {worse}."] if worse else [],
        [f"The correctness gate cannot judge {lacking}: some steps have numbers in one arm only."] if lacking else [],
    )


def _quantities(rows: pd.DataFrame, gate: pd.DataFrame, numbers: bool) -> str:
    """The quantities of these rows of the gate, with numbers on request, or with the factor combinations."""
    found = _grouped((row.quantity, factors_label(row.factors)) for row in rows_of(rows))
    texts = []
    for name, places in found:
        every, one = gate[gate["quantity"] == name], rows[rows["quantity"] == name].iloc[0]
        shown = f" ({one['arm_value']:.3g} against {one['baseline']:.3g})" if numbers and len(every) == 1 else ""
        texts.append(LABELS[name] + (shown or _at(places, every)))
    return ", ".join(texts)


def _spread(claims: Sequence[Claim], known: Sequence[Claim]) -> Iterator[str]:
    """Too few runs or steps, and what noise leaves not resolved."""
    where = " at each factor combination" if len(claims) > 1 else ""
    if known and all(claim.one_step for claim in known):
        step = "One step of one run each" if known[0].record == "step" else "One result each"
        others = "other steps and other runs" if known[0].record == "step" else "other runs of the benchmark"
        yield f"{step}{where}: {others} may differ."
    elif known and all(claim.one_run for claim in known):
        kind = known[0].one_run
        yield f"{kind[0].upper()}{kind[1:]}{where}: how much other runs differ is unknown."
    for why, places in _grouped((c.row["why"], c.at) for c in known if c.too_wide):
        # Another reason than chance is reported below.
        reason = "" if why else " (too few runs or steps)"
        yield f"No ratio{_at(places, claims)}: its 95% interval is wider than a factor of 3 either way{reason}."
    open_claims = [c for c in known if c.verdict == "~" and not (c.one_run or (c.too_wide and c.why in ("", WIDE)))]
    reasons = ((c.why and f" {c.unit}: {c.why}", c.at) for c in open_claims)
    for why, places in _grouped(reasons):
        if why or len(claims) > 1:
            yield f"Not resolved{_at(places, claims)}{why}."
    if len(claims) == 1 and known and (least := _detectable(known[0])):
        yield f"These runs resolve only ratios of {ratio_text(least)} or more."


def _steps_in_common(rows: list[Any]) -> Iterator[str]:
    """Runs that are left out as too short, and counters whose steps could not be matched."""
    for short, places in _grouped((r.short_runs, factors_label(r.factors)) for r in rows if r.short_runs):
        yield f"Left out{_at(places, rows)}, with less than half of the median run's steps: {short}."
    if places := [factors_label(r.factors) for r in rows if not r.by_number]:
        yield (
            f"The runs' step counters advance by different gaps{_at(places, rows)}, so no steps are matched by their "
            "number."
        )


def _detectable(claim: Claim) -> float:
    """The smallest ratio that these runs resolve; 0 where noise is not why the claim is open."""
    row = claim.row
    least: float = row["minimum_detectable_ratio"]
    # A larger observed ratio is open for another reason than noise.
    smaller = max(row["value"], 1 / row["value"]) < least
    by_noise = claim.verdict == "~" and row["low"] <= 1 <= row["high"]
    return least if by_noise and smaller and 0 < least < MOST_DETECTABLE and direction(least) else 0.0


def _disagreements(known: Sequence[Claim], rows: list[Any]) -> Iterator[str]:
    """Where step time and equal work disagree."""
    tokens = {factors_label(row.factors): row.tokens_ratio for row in rows}
    apart = [claim for claim in known if disagreement(claim.rows)]
    reasons = (
        (what_differs(tokens.get(c.at, math.nan), all(c.rows[n]["low"] > 0 for n in (PER_STEP, EQUAL_WORK))), c.at)
        for c in apart
    )
    for why, places in _grouped(reasons):
        numbers = (
            f" (per step {ratio_text(apart[0].value(PER_STEP))})" if len(known) == 1 and not known[0].too_wide else ""
        )
        yield f"Step time{numbers} and equal work disagree{_at(places, known)}: {why}."


def _other_unit(rows: list[Any]) -> Iterator[str]:
    """Steps so far apart that one log's seconds may be of another unit."""
    if any(max(row.raw_speedup, 1 / row.raw_speedup) >= OTHER_UNIT_FROM for row in rows if row.raw_speedup > 0):
        yield "The steps are so far apart that one log may have another unit; name the unit in its column (step_ms)."


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


def _rounded(rows: list[Any]) -> Iterator[str]:
    """Times that are printed with too few digits for the ratio that they give."""
    if any(row.rounding > max(ROUNDING_FROM, abs(math.log(row.raw_speedup))) for row in rows if row.raw_speedup > 0):
        yield "The times are printed with so few digits that rounding alone could explain the difference."


def _wall_clock(rows: list[Any]) -> Iterator[str]:
    """The ratio by wall clock, where it differs from that of the steps."""
    apart = [
        f"{ratio_text(r.wall_speedup)} (per step {ratio_text(r.raw_speedup)}){at(r.factors)}"
        for r in rows
        if max(r.raw_speedup / r.wall_speedup, r.wall_speedup / r.raw_speedup) > WALL_CLOCK_FROM
    ]
    if apart:
        yield f"By wall clock, which includes the time between steps: {join_first(apart, MOST_NAMES)}."


def _unequal_work(rows: list[Any]) -> Iterator[str]:
    """What differs in the steps' work but lengths, which the estimate takes out."""
    for why, places in _grouped((row.unequal_work, factors_label(row.factors)) for row in rows if row.unequal_work):
        yield f"A step is other work in the two arms{_at(places, rows)}: {why}."


def _missing(claims: Sequence[Claim], said: Container[str]) -> Iterator[str]:
    """Factor combinations without a comparison, and those without a ratio at equal work; not for a reason in `said`."""
    for why, places in _grouped((c.why, c.at) for c in claims if not c.valued):
        yield f"Not compared{_at(places, claims)}: {why}."
    unknown = [c for c in claims if c.valued and lacks_equal_work(c)]
    for why, places in _grouped((why_not_equal_work(c), c.at) for c in unknown):
        if why not in said:
            yield f"Speed at equal work is unknown{_at(places, claims)}: {why}."


def lacks_equal_work(claim: Claim) -> bool:
    """Whether a ratio at equal work is missing; a benchmark's requests, which all clients choose, need none."""
    return claim.record == "step" and claim.unit != AT_EQUAL_WORK


def why_not_equal_work(claim: Claim) -> str:
    """Why a claim has no ratio at equal work."""
    return str(claim.rows[EQUAL_WORK]["why"])


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
