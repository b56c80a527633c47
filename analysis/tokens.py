"""Computes how many tokens a step's completions had, where only their mean was logged."""

from __future__ import annotations

import math
from collections.abc import Mapping

# A mean of single-precision numbers is off by half a unit in its 24th bit; the factor is for its sum.
MEAN_PRECISION = 2.0**-22
# No step has more completions or tokens: above this a double does not distinguish whole numbers.
MOST = 2.0**53


def token_sums(scalars: Mapping[str, float], completions: int) -> dict[str, float]:
    """`prompt_tokens` and `response_tokens` from verl's means over `completions`; empty unless they are exact.

    Both products must be whole numbers within the means' own rounding, and must add up to the sum of all tokens where
    the trainer logged it.
    """
    found = {}
    for name in ("prompt", "response"):
        total = scalars.get(f"{name}_length/mean", math.nan) * completions
        allowed = total * MEAN_PRECISION
        if not math.isfinite(total) or abs(total - round(total)) > allowed or allowed > 0.25:
            return {}
        found[f"{name}_tokens"] = float(round(total))
    logged = scalars.get("perf/total_num_tokens")
    return found if logged is None or logged == sum(found.values()) else {}


def completions_of(scalars: Mapping[str, float], rounding: Mapping[str, float]) -> int | None:
    """How many completions a verl step had, by its total and its means; None where several numbers fit, or none."""
    total = scalars.get("perf/total_num_tokens", math.nan)
    names = ("prompt_length/mean", "response_length/mean")
    each = math.fsum(scalars.get(name, math.nan) for name in names)
    off = math.fsum(rounding.get(name, each * MEAN_PRECISION) for name in names)
    if not (math.isfinite(total) and math.isfinite(each)) or each <= off or total <= 0.0:
        return None
    total_off = rounding.get("perf/total_num_tokens", 0.0)
    low, high = (total - total_off) / (each + off), (total + total_off) / (each - off)
    if not high < MOST:
        return None
    fewest, most = math.ceil(low), math.floor(high)
    return fewest if fewest == most and fewest > 0 else None


def tokens_from_mean(mean: float, rounding: float, completions: int) -> tuple[float, float]:
    """(sum of tokens, its largest error) from a printed mean: exact where only one whole number fits.

    NaN and no error where the mean cannot be one of tokens.
    """
    total = mean * completions
    off = max(rounding, abs(mean) * MEAN_PRECISION) * completions
    if not 0.0 <= total + off < MOST:
        return math.nan, 0.0
    fewest, most = math.ceil(total - off), math.floor(total + off)
    return (float(fewest), 0.0) if fewest == most else (total, off)
