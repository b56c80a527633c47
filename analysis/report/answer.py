"""Collects each arm's four estimates and its verdict, for the top of the page."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from analysis.estimates.arm import ACROSS
from analysis.estimates.too_wide import legible
from analysis.report.addresses import address_part
from analysis.report.cells import Cell, times
from analysis.report.comparison_tables import ESTIMATE_LABELS
from analysis.report.content import Content
from analysis.runs import rows_of
from analysis.verdict.arm_verdict import ArmVerdict

# The scale reaches at least this far (a ratio of 1.25), and draws on this much of its half, in percent.
_LEAST_REACH, _HALF = math.log(1.25), 46.0

Number = tuple[str, tuple[Cell, ...], tuple[Cell, ...]]
"""The estimate, its value (two values over several factor combinations), and its interval."""


@dataclass(frozen=True)
class ArmAnswer:
    """One arm against the baseline."""

    verdict: ArmVerdict
    numbers: tuple[Number, ...]
    note: str
    reach: float = 0.0
    """The least reach of its scale, as a logarithm."""

    @property
    def address(self) -> str:
        """The id of its block on the page."""
        return f"arm:{address_part(self.verdict.arm)}"

    @property
    def claimed(self) -> frozenset[str]:
        """The labels of the estimates that the verdict claims."""
        ratios = self.verdict.ratios[:1]
        return frozenset(ESTIMATE_LABELS.get(name, name) for ratio in ratios for name in ratio.estimates)

    @property
    def ends(self) -> tuple[float, ...]:
        """Logarithms of the claim: interval, values, interval; without an interval the values. () without a claim."""
        if not self.verdict.ratios or not self.verdict.ratios[0].value[0] > 0 or self.verdict.ratios[0].too_wide:
            return ()
        ratio = self.verdict.ratios[0]
        low, high = (
            end if 0 < end < math.inf else value for end, value in zip(ratio.interval, ratio.value, strict=True)
        )
        return tuple(math.log(end) for end in (low, *ratio.value, high))

    @property
    def scale(self) -> tuple[float, ...]:
        """The positions of `ends`, in percent of a logarithmic scale whose middle is 1×."""
        reach = max((_LEAST_REACH, self.reach, *map(abs, self.ends)))
        return tuple(round(50 + _HALF * log / reach, 2) for log in self.ends)


def answers(content: Content) -> list[ArmAnswer]:
    """One for each verdict, all on one scale."""
    found = [_answer(content, verdict) for verdict in content.every_verdict]
    reach = max((abs(end) for one in found for end in one.ends), default=0.0)
    return [replace(one, reach=reach) for one in found]


def _answer(content: Content, verdict: ArmVerdict) -> ArmAnswer:
    estimates = legible(content.tables["estimates"])
    rows = estimates[estimates["arm"] == verdict.arm]
    sweeps = rows["factors"].nunique() > 1
    numbers: list[Number] = []
    for name, label in ESTIMATE_LABELS.items():
        valued = sorted(rows_of(rows[(rows["estimate"] == name) & (rows["value"] > 0)]), key=lambda r: float(r.value))
        if not valued:
            continue
        shown = [valued[0], valued[-1]] if sweeps else valued[:1]
        values = tuple(times(r.value).at("estimates", r.Index, "value") for r in shown)
        if len({cell.text for cell in values}) == 1:
            values = values[:1]
        one = valued[0]
        interval: tuple[Cell, ...] = ()
        if not sweeps and one.low > 0 and one.high > 0 and one.scope == ACROSS:
            interval = tuple(times(getattr(one, end)).at("estimates", one.Index, end) for end in ("low", "high"))
        numbers.append((label, values, interval))
    note = f"Seconds of {verdict.baseline} over seconds of {verdict.arm}: above 1, {verdict.arm} is faster."
    if sweeps:
        note += " Lowest to highest factor combination; the table has the intervals."
    elif any(interval for _, _, interval in numbers):
        note += " Small: the 95% interval."
    return ArmAnswer(verdict, tuple(numbers), note)
