"""Defines an arm's verdict: its ratio with the interval, its caveats, and what would resolve it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, TypeAdapter

# JSON has null for NaN.
Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
Span = tuple[Number, Number]
NO_SPAN = (math.nan, math.nan)
# People would remember the number, however wide the interval beside it. Files keep it.
WIDEST = 3.0
WIDE = "the interval is wider than a factor of 3 either way"
Kind = Literal["terms", "gate", "spread", "estimates", "data"]


@dataclass(frozen=True)
class Caveat:
    """One reason not to rely on a verdict, and the section of the page that has the details."""

    kind: Kind
    text: str
    section: str


@dataclass(frozen=True)
class Ratio:
    """The claimed ratio of the factor combinations with the same unit: seconds of the baseline over the arm's."""

    unit: str
    estimates: tuple[str, ...]
    at: tuple[str, ...]
    """The factor combinations; one empty text without a sweep."""
    value: Span
    """The lowest and the highest of these combinations."""
    interval: Span
    """The lowest and the highest end of the 95% intervals; NaN where no combination has an interval."""
    interval_at: tuple[str, ...]
    """The combinations that have an interval."""
    too_wide: bool = False
    """Whether no interval is narrow enough: then only this object has the numbers."""


@dataclass(frozen=True)
class ArmVerdict:
    """One arm against the baseline; the first ratio says most about speed. Its fields are keys of verdict.json."""

    arm: str
    baseline: str
    verdict: Literal["+", "-", "=", "~", "x"]
    words: str
    ratios: tuple[Ratio, ...]
    runs: tuple[int, int]
    """Of the baseline and of the arm, over all factor combinations."""
    steps: tuple[int, int]
    """The steps that are compared, of all runs of the baseline and of the arm."""
    basis: str
    caveats: tuple[Caveat, ...]
    """The most harmful first."""
    settle: tuple[str, ...]

    def as_json(self) -> Any:
        """The object in verdict.json: tuples as lists, NaN as null."""
        return json.loads(_ADAPTER.dump_json(self))

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> ArmVerdict:
        """The verdict of an object in verdict.json."""
        return _ADAPTER.validate_python(raw)


_ADAPTER = TypeAdapter(ArmVerdict)


def ratio_text(value: float) -> str:
    """A ratio as `2.15×`, with three digits from 10 on."""
    if math.isnan(value):
        return "—"
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}×"


def is_too_wide(value: float, low: float, high: float) -> bool:
    """Whether a 95% interval reaches farther than `WIDEST` from its ratio, which is then not printed."""
    return bool(high > WIDEST * value or value > WIDEST * low >= 0)
