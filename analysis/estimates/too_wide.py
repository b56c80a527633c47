"""Decides which ratios are not printed because their 95% interval says nothing; files keep their numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

# People would remember the number, however wide the interval beside it.
WIDEST = 3.0
WIDE = "the interval is wider than a factor of 3 either way"


def is_too_wide(value: float, low: float, high: float) -> bool:
    """Whether an interval reaches farther than `WIDEST` from its value; not without an interval."""
    return bool(high > WIDEST * value or value > WIDEST * low >= 0)


def legible(estimates: pd.DataFrame) -> pd.DataFrame:
    """The rows of `estimate_table` as they are shown: without the numbers of those that are too wide, which say why."""
    wide = [is_too_wide(*row) for row in estimates[["value", "low", "high"]].astype(float).itertuples(index=False)]
    if not any(wide):
        return estimates
    shown = estimates.astype({"verdict": object, "why": object})
    shown.loc[wide, ["value", "low", "high", "minimum_detectable_ratio"]] = math.nan
    shown.loc[wide, "verdict"] = "~"
    shown.loc[wide, "why"] = WIDE
    return shown
