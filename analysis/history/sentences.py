"""Says in words what a series shows."""

from __future__ import annotations

import math

from analysis.history.changes import Difference
from analysis.history.series import LEAST_POINTS, QUANTITIES, Series
from common.verdicts import count_of


def sentence(series: Series) -> str:
    """The current level, the last change with its interval, and how much could be seen."""
    quantity, level = QUANTITIES[series.quantity], series.levels[-1]
    count = len(series.points)
    place = f" at {series.factors}" if series.factors else ""
    text = f"{series.arm}{place}: {quantity.name} {number_text(math.exp(level.mean))}"
    if changes := series.changes:
        last = changes[-1]
        text += f", {percent_text(last.slower)} since {last.at.date}"
        text += f" ({last.cause})" if last.cause else " (releases and stack are equal)"
        return f"{text}. {count_of(len(changes), 'change')} in {count_of(count, 'experiment')}."
    if count < LEAST_POINTS:
        return f"{text} in {count_of(count, 'experiment')}; {LEAST_POINTS} are needed to mark a change."
    text += f", no change in {count_of(count, 'experiment')}."
    if not math.isnan(series.detectable):
        text += f" Five more would probably show a lasting one of {100 * series.detectable:.2g}%."
    return text


def percent_text(slower: Difference) -> str:
    """`6.1% slower (95% CI 4.0 to 8.3%)`, or `faster`; without an interval only the number."""
    name, sign = ("slower", 1) if slower.value >= 0 else ("faster", -1)
    low, high = sorted(sign * _percent(end) for end in (slower.low, slower.high))
    interval = f" (95% CI {low:.1f} to {high:.1f}%)" if math.isfinite(slower.low) else " (no interval)"
    return f"{sign * _percent(slower.value):.1f}% {name}{interval}"


def number_text(value: float) -> str:
    """A number with four digits."""
    return f"{value:,.{max(0, 3 - math.floor(math.log10(value)))}f}"


def _percent(log: float) -> float:
    return 100 * math.expm1(min(log, 50.0))
