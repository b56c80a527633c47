"""What the figures of estimates share: the verdicts' shapes, the noise band, the numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from analysis.rows import rows_of

ESTIMATE_LABELS = {
    "raw": "raw",
    "per_token": "per token",
    "roofline": "roofline",
    "standardised": "standardised",
}
RESOLVED, UNRESOLVED, NO_INTERVAL = "resolved", "not resolved (~)", "no interval"
SHAPES = {RESOLVED: "circle", UNRESOLVED: "diamond", NO_INTERVAL: "triangle-up"}


@dataclass(frozen=True)
class Band:
    """Between which ratios an arm lies that is the same as the other."""

    low: float
    high: float
    source: str = ""
    """What was run twice."""

    @property
    def words(self) -> str:
        return f"{self.low:.3g} to {self.high:.3g}"


def label_of(estimate: str) -> str:
    return ESTIMATE_LABELS.get(estimate, estimate.replace("_", " "))


def shape_of(verdict: str, low: float, high: float) -> str:
    """How a value is drawn: not by its colour alone does one see that it is not resolved."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return NO_INTERVAL
    return RESOLVED if verdict in ("+", "-") else UNRESOLVED


def noise_band(noise: pd.DataFrame | None, factors: str, of: str = "") -> Band | None:
    """A factor combination's A/A band: of whole runs, or with `of="step_"` of single steps."""
    if noise is None or f"{of}low" not in noise:
        return None
    for row in rows_of(noise[noise["factors"] == factors]):
        low, high = float(getattr(row, f"{of}low")), float(getattr(row, f"{of}high"))
        if math.isfinite(low) and math.isfinite(high) and 0 < low <= high:
            return Band(low, high, str(getattr(row, "source", "")))
    return None


def band_words(bands: Iterable[Band | None], what: str) -> str:
    """A caption's sentence on the grey band; empty without one."""
    found = list(dict.fromkeys(b for b in bands if b))
    if not found:
        return ""
    one = f" ({found[0].words}; {found[0].source})" if len(found) == 1 and found[0].source else ""
    return (
        f"Grey band: the A/A noise, between which 95% of the ratios of {what} lie that should not differ{one}; "
        "no verdict follows from it. "
    )


def comparable(estimates: pd.DataFrame) -> pd.DataFrame:
    """The rows that have a value which can be drawn on a log axis."""
    values = pd.to_numeric(estimates["value"], errors="coerce")
    return estimates[(values > 0) & (values < math.inf) & (estimates["verdict"] != "x")]


def interval_or_none(row: object) -> tuple[float, float]:
    """A row's interval, NaN both where one end is no positive number."""
    low, high = float(getattr(row, "low", math.nan)), float(getattr(row, "high", math.nan))
    good = math.isfinite(low) and math.isfinite(high) and 0 < low <= high
    return (low, high) if good else (math.nan, math.nan)
