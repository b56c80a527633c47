"""Puts the four estimates of each arm's speed beside its verdict, for the top of the page."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.estimates.arm import ACROSS
from analysis.report.cells import Cell, times
from analysis.report.comparison_tables import ESTIMATE_WORDS
from analysis.report.content import Content
from analysis.runs import rows_of
from analysis.verdict.arm_verdict import ArmVerdict

Number = tuple[str, tuple[Cell, ...], tuple[Cell, ...]]
"""What it is, the value (two where it spans factor combinations), and its interval."""


@dataclass(frozen=True)
class ArmAnswer:
    """One arm against the baseline."""

    verdict: ArmVerdict
    numbers: tuple[Number, ...]
    note: str


def answers(content: Content) -> list[ArmAnswer]:
    """One for each verdict."""
    found = []
    for verdict in content.headlines:
        rows = content.estimates[content.estimates["arm"] == verdict.arm]
        spans = rows["factors"].nunique() > 1
        numbers: list[Number] = []
        for name, label in ESTIMATE_WORDS.items():
            have = [r for r in rows_of(rows[(rows["estimate"] == name) & (rows["value"] > 0)])]
            if not have:
                continue
            ends = [min(have, key=lambda r: r.value), max(have, key=lambda r: r.value)]
            values = tuple(times(r.value).at("estimates", r.Index, "value") for r in (ends if spans else ends[:1]))
            if len({cell.text for cell in values}) == 1:
                values = values[:1]
            one = ends[0]
            known = not spans and one.low > 0 and one.high > 0 and one.scope == ACROSS
            interval = tuple(times(getattr(one, end)).at("estimates", one.Index, end) for end in ("low", "high"))
            numbers.append((label, values, interval if known else ()))
        note = f"Seconds of {verdict.baseline} over seconds of {verdict.arm}: above 1, {verdict.arm} is faster."
        if spans:
            note += " Lowest to highest factor combination; the table has the intervals."
        elif any(interval for _, _, interval in numbers):
            note += " Small: the 95% interval."
        found.append(ArmAnswer(verdict, tuple(numbers), note))
    return found
