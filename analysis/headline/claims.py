"""What is claimed, how sure that is, and what it would take to be surer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analysis.estimates.equal_work import EQUAL_WORK
from analysis.headline.case import Case, places
from analysis.headline.ratios import Span, direction, inverse, over, range_text, swapped
from analysis.rows import rows_of
from analysis.speedup import outliers_decide
from analysis.verdicts import count_of

# An interval whose ends differ by more says nothing of the ratio.
TOO_WIDE = 10.0
UNITS = {"raw": "per step", "per_token": "per response token"}


def claims(
    arm: str,
    base: str,
    cases: list[Case],
    told: list[Case],
    verdict: str,
    claimed: tuple[str, ...],
    values: Span,
    interval: Span,
) -> str:
    """The claim, and beside it the ratios that it does not rest on."""
    at_equal_work = claimed[0] in EQUAL_WORK
    unit = "at equal work" if at_equal_work else UNITS[claimed[0]]
    claim = _claim(unit, values, arm, base)
    by = f"by {' and '.join(claimed)}" if at_equal_work else ""
    alone = len(cases) == 1 and cases[0].one_step
    known = [case for case in told if case.certain]
    spread = "" if alone else "no interval"
    if interval[1] > TOO_WIDE * interval[0]:
        spread = "too few runs or steps for an interval of use"
    elif 0 < len(known) < len(told):
        here = over([case.span(case.certain, "low", "high") for case in known])
        spread = f"95% known at {places(known)} only: {range_text(*(inverse(here) if swapped(values) else here))}"
    elif not math.isnan(interval[0]):
        certain = with_intervals(told, claimed)
        of = "" if len(certain) == len(claimed) else f" by {' and '.join(certain)} alone" if certain else " where known"
        spread = f"95%{of}: {range_text(*(inverse(interval) if swapped(values) else interval))}"
    limits = ", ".join(filter(None, (by, spread)))
    claim += f" ({limits})" if limits else ""
    if alone:
        claim = f"one step of one run each: {claim}"
    elif verdict == "~":
        claim = f"{_undecided(arm, cases)}: {claim}"
    others = [
        _claim(UNITS[name], over([c.span([name]) for c in told if name in c.valued]), arm, base)
        for name in UNITS
        if name not in claimed and any(name in c.valued for c in told)
    ]
    unknown = [] if at_equal_work else ["at equal work"]
    if not at_equal_work and "per_token" not in claimed:
        unknown.append("per response token")
    lacking = f"{' and '.join(unknown)} it is not known" if unknown else ""
    if alone:
        lacking = f"no interval can be given{', and ' if lacking else ''}{lacking}"
    return capital("; ".join(filter(None, [claim, *others, lacking]))) + "."


def with_intervals(told: list[Case], claimed: Sequence[str]) -> list[str]:
    """Those of the claim that have an interval wherever they have a value: whose the interval is."""
    return [name for name in claimed if all(name in case.certain for case in told if name in case.claimed)]


def _undecided(arm: str, cases: list[Case]) -> str:
    if len(cases) == 1:
        return "no difference to be seen" if cases[0].unmoved else "not resolved which is faster"
    words = {"+": "faster", "-": "slower", "~": "not resolved", "x": "not compared"}
    counts = {v: sum(case.verdict == v for case in cases) for v in words}
    parts = [f"{word} in {counts[v]}" for v, word in words.items() if counts[v]]
    return f"of {len(cases)} factor combinations {arm} is {', '.join(parts)}"


def _claim(unit: str, span: Span, arm: str, base: str) -> str:
    if {direction(end) for end in span} == {0}:
        return f"{unit} {arm} and {base} take the same time (1.00×)"
    if swapped(span):
        return f"{unit} the baseline {base} is {range_text(*inverse(span))} as fast as {arm}"
    return f"{unit} {arm} is {range_text(*span)} as fast as {base}"


def limits(
    cases: list[Case], told: list[Case], everything: Span, verdict: str, swapped: bool, comparison: pd.DataFrame
) -> list[str]:
    """The range over all estimates, in the claim's direction, and what it would take to resolve what is not."""
    found = []
    names = {name for case in told for name in case.valued}
    if len(names) > 1:
        count = {2: "both", 3: "all three", 4: "all four"}[len(names)]
        found.append(f"Over {count} estimates: {range_text(*(inverse(everything) if swapped else everything))}.")
    if len(cases) > 1:
        found += _unresolved(cases)
    if verdict == "~" and len(cases) == 1:
        rows = [told[0].rows[name] for name in told[0].claimed]
        reasons = dict.fromkeys(
            f"{n.replace('_', ' ')}: {r['why']}" for n, r in zip(told[0].claimed, rows, strict=True) if r["why"]
        )
        if told[0].certain and reasons:
            found.append(f"{capital('; '.join(reasons))}.")
        more = [r["runs_to_resolve"] for r in rows]
        least = [r["minimum_detectable_ratio"] for r in rows]
        if all(0 < value < TOO_WIDE for value in least) and direction(max(least)):
            found.append(f"These runs would have shown a ratio of {max(least):.2f}×, not less.")
        # What a few outlying steps decide is no spread that more runs are known to tame.
        tame = not any(outliers_decide(r.raw_speedup, r.median_speedup) for r in rows_of(comparison))
        if all(value > 0 for value in more) and tame and not told[0].unmoved:
            found.append(f"{count_of(int(max(more)), 'more pair of runs', 'more pairs of runs')} could resolve it.")
    return found


def _unresolved(cases: Sequence[Case]) -> list[str]:
    """At which factor combinations the claim is not resolved, or not made, and why."""
    reasons: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        if case.verdict == "x":
            reasons.setdefault(("Not compared", str(case.rows["raw"]["why"])), []).append(case)
        elif case.verdict == "~":
            whys = [f"{n.replace('_', ' ')}: {r['why']}" for n in case.claimed if (r := case.rows[n])["why"]]
            reasons.setdefault(("Not resolved", "; ".join(whys)), []).append(case)
    return [
        f"{what} at {places(mine)}{f' ({why})' if why else ''}." for (what, why), mine in reasons.items() if mine[0].at
    ]


def capital(text: str) -> str:
    return text[0].upper() + text[1:]
