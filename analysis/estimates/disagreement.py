"""Do the estimates of one arm contradict one another?"""

from __future__ import annotations

import math
from collections.abc import Mapping

from analysis.estimates.equal_work import EQUAL_WORK, Row
from analysis.speedup import disagrees

# From here on raw and equal work differ in a way that matters, be it drift or luck: it is what these steps did.
FAR = 1.15
# From here on two sums of lengths differ by more than how a mean is printed.
LENGTHS_DIFFER_FROM = 0.01


def disagreement(rows: Mapping[str, Row]) -> str:
    """How the raw ratio and those at equal work disagree, if they do.

    They do where raw's interval meets none of theirs, where they lie on the other side of 1 and raw's says that it is
    not there by chance, or where raw is `FAR` from all of them; without intervals where the printed ratios lie on two
    sides, too.
    """
    raw = rows["raw"]
    equal = [rows[name] for name in EQUAL_WORK if rows[name]["value"] > 0]
    if not equal or not raw["value"] > 0:
        return ""
    opposite = all(disagrees(raw["value"], row["value"]) for row in equal)
    far = all(max(raw["value"] / row["value"], row["value"] / raw["value"]) > FAR for row in equal)
    if raw["low"] > 0 and all(row["low"] > 0 for row in equal):
        apart = all(raw["low"] > row["high"] or raw["high"] < row["low"] for row in equal)
        if not (apart or far or (opposite and not raw["low"] <= 1 <= raw["high"])):
            return ""
    elif not (opposite or far):
        return ""
    values = ", ".join(f"{row['estimate']} {row['value']:.2f}×" for row in equal)
    text = f"by step time {raw['value']:.2f}×, at equal work {values}: "
    if not lengths_differ(rows):
        return text + "both arms' responses come to as many tokens, so rely on neither alone"
    text += "the arms did not do the same work (their responses differ in length), and step time alone "
    return text + ("would mislead" if has_intervals(rows) else "may mislead; with so few steps it may be chance, too")


def lengths_differ(rows: Mapping[str, Row]) -> bool:
    """Whether the paired responses of two arms come to other sums of tokens, or to other floors on the same GPUs.

    Per token over raw is the quotient of the tokens, roofline over raw that of the floors.
    """
    raw = rows["raw"]["value"]
    by = [row["value"] for name in ("per_token", "roofline") if (row := rows.get(name)) and row["value"] > 0]
    return raw > 0 and any(abs(math.log(value / raw)) > LENGTHS_DIFFER_FROM for value in by)


def has_intervals(rows: Mapping[str, Row]) -> bool:
    """Whether raw and those at equal work that have a value have an interval."""
    return all(rows[n]["low"] > 0 for n in ("raw", *EQUAL_WORK) if rows[n]["value"] > 0)
