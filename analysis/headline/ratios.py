"""A ratio of two arms, and spans of them, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

Span = tuple[float, float]
NO_SPAN = (math.nan, math.nan)


def ratio_text(value: float) -> str:
    """A ratio as `2.15×`, with three digits from 10 on."""
    if math.isnan(value):
        return "—"
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}×"


def range_text(low: float, high: float) -> str:
    """One ratio, or `1.90× to 2.15×`."""
    a, b = ratio_text(low), ratio_text(high)
    return a if a == b else f"{a} to {b}"


def direction(value: float) -> int:
    """1 where the arm is faster, -1 where the baseline is, 0 where the printed ratio is 1.00, or there is none."""
    rounded = round(value, 2)
    return (rounded > 1) - (rounded < 1)


def swapped(span: Span) -> bool:
    """Whether a claim of this span is one about the baseline, so that its ratios are the other way round."""
    signs = {direction(end) for end in span}
    return signs <= {0, -1} and signs != {0}


def inverse(span: Span) -> Span:
    """The span of the ratios the other way round."""
    return 1 / span[1], 1 / span[0]


def over(spans: Sequence[Span]) -> Span:
    """The span of all that are known."""
    known = [span for span in spans if not math.isnan(span[0])]
    return (min(a for a, _ in known), max(b for _, b in known)) if known else NO_SPAN
