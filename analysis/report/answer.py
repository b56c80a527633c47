"""Puts the four estimates of each arm's speed beside its verdict, for the top of the page."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from analysis.estimates.arm import ACROSS
from analysis.report.addresses import address_part
from analysis.report.cells import Cell, times
from analysis.report.comparison_tables import ESTIMATE_WORDS
from analysis.report.content import Content
from analysis.runs import rows_of
from analysis.verdict.arm_verdict import ArmVerdict

# Of the scale: how far it reaches at least (a ratio of 1.25), and how much of its half is drawn on, in percent.
_LEAST_REACH, _HALF = math.log(1.25), 46.0

Number = tuple[str, tuple[Cell, ...], tuple[Cell, ...]]
"""What it is, the value (two where it spans factor combinations), and its interval."""


@dataclass(frozen=True)
class ArmAnswer:
    """One arm against the baseline."""

    verdict: ArmVerdict
    numbers: tuple[Number, ...]
    note: str
    reach: float = 0.0
    """How far its scale reaches at least, as a logarithm."""

    @property
    def address(self) -> str:
        """The id of its block on the page."""
        return f"arm:{address_part(self.verdict.arm)}"

    @property
    def claimed(self) -> frozenset[str]:
        """The labels of the numbers that the verdict claims."""
        ratios = self.verdict.ratios[:1]
        return frozenset(ESTIMATE_WORDS.get(name, name) for ratio in ratios for name in ratio.estimates)

    @property
    def ends(self) -> tuple[float, ...]:
        """Logarithms of the claim: interval, values, interval (the values, without one); () without a claim."""
        if not self.verdict.ratios or not self.verdict.ratios[0].value[0] > 0:
            return ()
        ratio = self.verdict.ratios[0]
        low, high = (ends[0] or ends[1] for ends in zip(map(_known, ratio.interval), ratio.value, strict=True))
        return tuple(math.log(end) for end in (low, *ratio.value, high))

    @property
    def scale(self) -> tuple[float, ...]:
        """Where `ends` lie, in percent of a logarithmic scale whose middle is 1×."""
        reach = max((_LEAST_REACH, self.reach, *map(abs, self.ends)))
        return tuple(round(50 + _HALF * log / reach, 2) for log in self.ends)


def _known(end: float) -> float:
    return end if end > 0 and math.isfinite(end) else 0.0


def answers(content: Content) -> list[ArmAnswer]:
    """One for each verdict."""
    found = []
    for verdict in content.arm_verdicts:
        estimates = content.tables["estimates"]
        rows = estimates[estimates["arm"] == verdict.arm]
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
    # One scale for all arms.
    reach = max((abs(end) for one in found for end in one.ends), default=0.0)
    return [replace(one, reach=reach) for one in found]
