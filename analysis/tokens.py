"""How many tokens did a step's completions have, where only their mean was logged?"""

from __future__ import annotations

import math
from collections.abc import Mapping

# A mean of single-precision numbers is off by half a unit in its 24th bit; the factor is for its sum.
MEAN_PRECISION = 2.0**-22


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
