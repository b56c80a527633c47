"""Defines a verdict: the arms, the ratio and its interval, the caveats, and what would settle it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Span = tuple[float, float]
NO_SPAN = (math.nan, math.nan)
Kind = Literal["terms", "gate", "spread", "estimates", "data"]
# Of more factor combinations the rest is counted.
MOST_PLACES = 4


@dataclass(frozen=True)
class Caveat:
    """One reason not to rely on a verdict, and the section of the page that has the details."""

    kind: Kind
    text: str
    section: str


@dataclass(frozen=True)
class Ratio:
    """The claimed ratio of the factor combinations that have the same unit: seconds of the baseline over the arm's."""

    unit: str
    estimates: tuple[str, ...]
    at: tuple[str, ...]
    """The factor combinations; one empty text without a sweep."""
    value: Span
    """The lowest and the highest of these combinations."""
    interval: Span
    """The 95% intervals' lowest and highest end; NaN where no combination has one."""
    interval_at: tuple[str, ...]
    """The combinations that have an interval."""


@dataclass(frozen=True)
class ArmVerdict:
    """One arm against the baseline; the first ratio is the one that says most about speed."""

    arm: str
    baseline: str
    verdict: Literal["+", "-", "~", "x"]
    words: str
    ratios: tuple[Ratio, ...]
    run_pairs: int
    paired_steps: int
    basis: str
    caveats: tuple[Caveat, ...]
    """The most harmful first."""
    settle: tuple[str, ...]

    def as_json(self) -> Any:
        """The object in verdict.json: spans as lists, null for a number that is not there."""
        return _without_nan(asdict(self))

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> ArmVerdict:
        """A verdict back from its object."""
        ratios = tuple(
            Ratio(
                unit=one["unit"],
                value=_span(one["value"]),
                interval=_span(one["interval"]),
                **{name: tuple(one[name]) for name in ("estimates", "at", "interval_at")},
            )
            for one in raw["ratios"]
        )
        caveats = tuple(Caveat(**one) for one in raw["caveats"])
        return cls(**raw | {"ratios": ratios, "caveats": caveats, "settle": tuple(raw["settle"])})


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _span(ends: Sequence[float | None]) -> Span:
    low, high = (math.nan if end is None else end for end in ends)
    return low, high


def ratio_text(value: float) -> str:
    """A ratio as `2.15×`, with three digits from 10 on."""
    if math.isnan(value):
        return "—"
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}×"


def places(names: Sequence[str]) -> str:
    """Factor combinations in words, the first few by name."""
    if len(names) > MOST_PLACES:
        return f"{', '.join(names[:MOST_PLACES])} and {len(names) - MOST_PLACES} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
