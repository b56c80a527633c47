"""What is claimed, how sure that is, and what it would take to be surer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.headline.case import AT_EQUAL_WORK, UNITS, ArmAtPoint, places
from analysis.headline.ratios import NO_SPAN, Span, direction, inverse, over, range_text, swapped
from analysis.runs import rows_of
from analysis.speedup import outliers_decide
from common.verdicts import count_of

# An interval whose ends differ by more says nothing of the ratio.
TOO_WIDE = 10.0


@dataclass(frozen=True)
class Claim:
    """What cases of one unit come to together; the interval is NaN where one of them has none."""

    names: tuple[str, ...]
    values: Span
    interval: Span


def claim_of(group: Sequence[ArmAtPoint]) -> Claim:
    """The claim of cases of one unit."""
    names = tuple(dict.fromkeys(case.claimed for case in group))
    intervals = [case.interval for case in group]
    interval = NO_SPAN if any(math.isnan(low) for low, _ in intervals) else over(intervals)
    return Claim(names, over([case.span([case.claimed]) for case in group]), interval)


def claims(arm: str, base: str, cases: list[ArmAtPoint], groups: list[list[ArmAtPoint]], verdict: str) -> list[str]:
    """The claim, and beside it the ratios that it does not rest on; one more for each further unit, with its places."""
    alone = len(cases) == 1 and cases[0].one_step
    said = [_said(arm, base, group, alone) for group in groups]
    if len(groups) > 1:
        told = [f"At {places(group)}: {text}." for group, text in zip(groups, said, strict=True)]
        return [f"{capital(_undecided(arm, cases, groups))}.", *told]
    start = "one step of one run each: " if alone else f"{_undecided(arm, cases, groups)}: " if verdict == "~" else ""
    return [f"{capital(start + said[0])}."]


def _said(arm: str, base: str, group: Sequence[ArmAtPoint], alone: bool) -> str:
    """The claim of cases of one unit; `alone` where they are one step of one run each."""
    unit, claim = group[0].unit, claim_of(group)
    by = f"by {' and '.join(claim.names)}" if unit == AT_EQUAL_WORK else ""
    limits = ", ".join(filter(None, (by, _spread(group, claim, alone))))
    others = [
        _claim(UNITS[name], over([c.span([name]) for c in group if name in c.valued]), arm, base)
        for name in UNITS
        if name not in claim.names and any(name in c.valued for c in group)
    ]
    unknown = [] if unit == AT_EQUAL_WORK else [AT_EQUAL_WORK]
    if unit == UNITS["raw"]:
        unknown.append(UNITS["per_token"])
    lacking = f"{' and '.join(unknown)} it is not known" if unknown else ""
    if alone:
        lacking = f"no interval can be given{', and ' if lacking else ''}{lacking}"
    ratio = _claim(unit, claim.values, arm, base) + (f" ({limits})" if limits else "")
    return "; ".join(filter(None, [ratio, *others, lacking]))


def _spread(group: Sequence[ArmAtPoint], claim: Claim, alone: bool) -> str:
    """How sure the claim is: its interval, in its direction, and of what that is."""

    def text(span: Span) -> str:
        return range_text(*(inverse(span) if swapped(claim.values) else span))

    known = [case for case in group if not math.isnan(case.interval[0])]
    if claim.interval[1] > TOO_WIDE * claim.interval[0]:
        return "too few runs or steps for an interval of use"
    if 0 < len(known) < len(group):
        return f"95% known at {places(known)} only: {text(over([c.interval for c in known]))}"
    if math.isnan(claim.interval[0]):
        return "" if alone else "no interval"
    return f"95%: {text(claim.interval)}"


def _undecided(arm: str, cases: list[ArmAtPoint], groups: list[list[ArmAtPoint]]) -> str:
    if len(cases) == 1 and cases[0].one_pair:
        return "one pair of runs, so no direction is claimed"
    if len(cases) == 1:
        return "no difference to be seen" if cases[0].unmoved else "not resolved which is faster"
    mine, elsewhere = groups[0], sum(map(len, groups[1:]))
    words = {"+": "faster", "-": "slower", "~": "not resolved"}
    counts = {word: sum(case.verdict == v for case in mine) for v, word in words.items()}
    counts |= {f"not known {mine[0].unit}": elsewhere, "not compared": len(cases) - len(mine) - elsewhere}
    parts = [f"{word} in {count}" for word, count in counts.items() if count]
    return f"of {len(cases)} factor combinations {arm} is {', '.join(parts)}"


def _claim(unit: str, span: Span, arm: str, base: str) -> str:
    if {direction(end) for end in span} == {0}:
        return f"{unit} {arm} and {base} take the same time (1.00×)"
    if swapped(span):
        return f"{unit} the baseline {base} is {range_text(*inverse(span))} as fast as {arm}"
    return f"{unit} {arm} is {range_text(*span)} as fast as {base}"


def limits(
    cases: list[ArmAtPoint],
    groups: list[list[ArmAtPoint]],
    everything: Span,
    verdict: str,
    swapped: bool,
    comparison: pd.DataFrame,
) -> list[str]:
    """The range over all estimates, in the claim's direction, and what it would take to resolve what is not."""
    found = []
    told = [case for group in groups for case in group]
    names = {name for case in told for name in case.valued}
    if len(names) > 1:
        count = {2: "both", 3: "all three", 4: "all four"}[len(names)]
        found.append(f"Over {count} estimates: {range_text(*(inverse(everything) if swapped else everything))}.")
    if len(cases) > 1:
        found += _unresolved(cases, groups[0][0].unit)
    if verdict == "~" and len(cases) == 1:
        found += _what_it_takes(told[0], comparison)
    return found


def _what_it_takes(case: ArmAtPoint, comparison: pd.DataFrame) -> list[str]:
    """Why one combination's claim is not resolved, and what would resolve it."""
    found, row = [], case.row
    if case.why and not case.one_pair and row["low"] > 0:
        found.append(f"{capital(case.reason)}.")
    least = row["minimum_detectable_ratio"]
    # What else than chance leaves open, no smaller ratio would have shown, and no more runs would.
    beyond = max(row["value"], 1 / row["value"]) < least
    if row["low"] <= 1 <= row["high"] and 0 < least < TOO_WIDE and direction(least) and beyond:
        found.append(f"These runs would have shown a ratio of {least:.2f}×, not less.")
    # What a few outlying steps decide is no spread that more runs are known to tame.
    tame = not any(outliers_decide(r.raw_speedup, r.median_speedup) for r in rows_of(comparison))
    more = row["runs_to_resolve"]
    if more > 0 and tame and direction(row["value"]):
        count = count_of(int(more), "more pair of runs", "more pairs of runs")
        # One pair knows its own steps' noise alone.
        found.append(
            f"At least {count} {'is' if more == 1 else 'are'} needed to resolve it."
            if case.one_pair
            else f"{count} could resolve it."
        )
    return found


def _unresolved(cases: Sequence[ArmAtPoint], unit: str) -> list[str]:
    """At which factor combinations the claim is not resolved, or not made, and why; others than `unit` are named."""
    reasons: dict[tuple[str, str], list[ArmAtPoint]] = {}
    for case in cases:
        if case.verdict == "x":
            reasons.setdefault(("Not compared", str(case.rows["raw"]["why"])), []).append(case)
        elif case.verdict == "~":
            what = "Not resolved" if case.unit == unit else f"Not resolved {case.unit}"
            reasons.setdefault((what, case.reason), []).append(case)
    return [
        f"{what} at {places(mine)}{f' ({why})' if why else ''}." for (what, why), mine in reasons.items() if mine[0].at
    ]


def capital(text: str) -> str:
    return text[0].upper() + text[1:]
