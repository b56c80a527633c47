"""Defines an arm's verdict: its sentence, its ratio with the interval, its caveats, and what would resolve it."""

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
WIDE = "its 95% interval is wider than a factor of 3 either way"
Kind = Literal["terms", "gate", "spread", "estimates", "data"]


@dataclass(frozen=True)
class Caveat:
    """One reason not to rely on a verdict."""

    kind: Kind
    text: str


@dataclass(frozen=True)
class Ratio:
    """The claimed ratio of the factor combinations with the same unit: seconds of the baseline over the arm's."""

    unit: str
    at: tuple[str, ...]
    """The factor combinations; one empty text without a sweep."""
    value: Span
    """The lowest and the highest of these combinations."""
    interval: Span
    """The lowest and the highest end of the 95% intervals; NaN where a combination has none."""
    seconds: Span = NO_SPAN
    """The baseline's and the arm's seconds that the ratio is made of; NaN with several combinations."""
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
    sentence: str = ""
    """The answer in one line, with its seconds."""
    difference: str = ""
    """Where the difference lies, as a sentence; "" where that is not known, or chance may be all of it."""
    mismatch: str = ""
    """How far both engines are from their trainers, as a sentence; "" where not both log it."""
    per_gpu: tuple[str, ...] = ()
    """Of loops on unlike splits of GPUs: what the GPUs of both did, a sentence each."""

    def as_json(self) -> Any:
        """The object in verdict.json: tuples as lists, NaN as null."""
        return json.loads(_ADAPTER.dump_json(self))

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> ArmVerdict:
        """The verdict of an object in verdict.json."""
        return _ADAPTER.validate_python(raw)


_ADAPTER = TypeAdapter(ArmVerdict)


def ratio_text(value: float) -> str:
    """A ratio as `2.15x`, with three digits from 10 on."""
    if math.isnan(value):
        return "—"
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}x"


def span_text(span: Span) -> str:
    """An interval of ratios: `1.71 to 1.96`."""
    return " to ".join(ratio_text(end).removesuffix("x") for end in span)


def is_resolved(interval: Span) -> bool:
    """Whether a ratio's interval lies on one side of 1, also as it is printed; not where it is NaN."""
    low, high = interval
    return (low > 1 or high < 1) and ratio_text(1.0) not in map(ratio_text, interval)


def equal_within(interval: Span, until: float) -> bool:
    """Whether an interval lies between 1/`until` and `until`."""
    return 1 / until < interval[0] and interval[1] < until


def digits_text(value: float) -> str:
    """A positive number with three digits, as `41.2`."""
    digits = max(0, 2 - math.floor(math.log10(float(f"{value:.3g}"))))
    return f"{value:,.{digits}f}"


def seconds_text(value: float) -> str:
    """Seconds with three digits, as `41.2 s`."""
    return f"{digits_text(value)} s"


def is_too_wide(value: float, low: float, high: float) -> bool:
    """Whether a 95% interval reaches farther than `WIDEST` from its ratio, which is then not printed."""
    return bool(high > WIDEST * value or value > WIDEST * low >= 0)
