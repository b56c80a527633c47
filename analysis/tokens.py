"""Computes how many tokens a step's completions had, where only their mean was logged."""

from __future__ import annotations

import math
from collections.abc import Mapping

# A mean of single-precision numbers is off by half a unit in its 24th bit; the factor is for its sum.
MEAN_PRECISION = 2.0**-22
# No step has more completions or tokens: beyond, a double does not tell whole numbers apart.
MOST = 2.0**53


def token_sums(scalars: Mapping[str, float], completions: int) -> dict[str, float]:
    """`prompt_tokens` and `response_tokens` from verl's means over `completions`; empty unless they are exact.

    Both products must be whole numbers within the means' own rounding, and where the trainer logged the
    sum of all tokens they must add up to it.
    """
    found = {}
    for name in ("prompt", "response"):
        mean = scalars.get(f"{name}_length/mean", math.nan)
        total = mean * completions
        if not math.isfinite(total):
            return {}
        off = abs(total - round(total))
        allowed = total * MEAN_PRECISION
        if off > allowed or allowed > 0.25:
            return {}
        found[f"{name}_tokens"] = float(round(total))
    told = scalars.get("perf/total_num_tokens")
    if told is not None and told != sum(found.values()):
        return {}
    return found


def completions_told(scalars: Mapping[str, float], rounding: Mapping[str, float]) -> int | None:
    """How many completions a verl step had, by its total of tokens and their means; None where no number fits alone."""
    total = scalars.get("perf/total_num_tokens", math.nan)
    names = ("prompt_length/mean", "response_length/mean")
    each = math.fsum(scalars.get(name, math.nan) for name in names)
    off = math.fsum(rounding.get(name, each * MEAN_PRECISION) for name in names)
    if not (math.isfinite(total) and math.isfinite(each)) or each <= off or total <= 0.0:
        return None
    cut = rounding.get("perf/total_num_tokens", 0.0)
    low, high = (total - cut) / (each + off), (total + cut) / (each - off)
    if not high < MOST:
        return None
    fewest, most = math.ceil(low), math.floor(high)
    return fewest if fewest == most and fewest > 0 else None


def tokens_from_mean(mean: float, rounding: float, completions: int) -> tuple[float, float]:
    """(sum of tokens, its worst error) from a printed mean: exact where only one whole number fits.

    Not-a-number and no error where a mean is no number of tokens.
    """
    total = mean * completions
    off = max(rounding, abs(mean) * MEAN_PRECISION) * completions
    if not 0.0 <= total + off < MOST:
        return math.nan, 0.0
    fewest, most = math.ceil(total - off), math.floor(total + off)
    return (float(fewest), 0.0) if fewest == most else (total, off)
