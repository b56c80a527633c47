"""How much of a step's time grows with its floor, and what if less of it does than the roofline estimate takes?"""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from analysis.estimates.equal_work import FLOOR, GENERATION, NO_SUPPORT, STEP, Row

# The roofline's correction of what is no generation is worth a word from here on.
REST_MATTERS_FROM = 0.02
UNSETTLED = "not settled by the floor alone"


def generation_alone(pairs: pd.DataFrame) -> float:
    """The roofline estimate if the floor had scaled generation alone; NaN where generation or a floor is not known.

    η takes the whole step, so that all four estimates speak of the same seconds; the rest of a step (training) need not
    grow as the floor of its generation does.
    """
    names = [f"{name}_{side}" for name in (STEP, GENERATION, FLOOR) for side in "ab"]
    if any(n not in pairs or not (pairs[n] > 0).all() for n in names):
        return math.nan
    step_a, step_b, gen_a, gen_b, floor_a, floor_b = (float(pairs[n].sum()) for n in names)
    mean = (floor_a + floor_b) / 2
    return (step_a - gen_a + gen_a * mean / floor_a) / (step_b - gen_b + gen_b * mean / floor_b)


def rest_of_step(roofline: Row, pairs: pd.DataFrame) -> str:
    """By how much the roofline estimate would differ if the floor had scaled generation alone, where that matters."""
    alone = generation_alone(pairs)
    if not (roofline["value"] > 0 and alone > 0) or not _far(alone, roofline["value"]):
        return ""
    share = pairs[[f"{GENERATION}_{s}" for s in "ab"]].sum().sum() / pairs[[f"{STEP}_{s}" for s in "ab"]].sum().sum()
    return (
        f"generation is {100 * share:.0f} % of the step, and the roofline estimate ({roofline['value']:.2f}×) scales "
        f"the rest with it; with generation alone scaled to equal floors it would be {alone:.2f}×"
    )


def settled_roofline(rows: Mapping[str, Row], pairs: pd.DataFrame) -> Row:
    """The roofline's row; not resolved where the arms' work is far apart and nothing checks what the floor makes of it.

    How much of a step grows with its floor is not known: between all of it (the estimate) and none (raw). The fit finds
    that out from the steps. Without the fit, and with lengths so far apart that no step of one arm is like the other's,
    or that it matters whether generation alone is scaled, the truth lies anywhere between: the interval spans it.
    """
    row, raw = rows["roofline"], rows["raw"]["value"]
    if not (row["low"] > 0 and raw > 0) or rows["standardised"]["value"] > 0:
        return row
    alone = generation_alone(pairs)
    other = alone if alone > 0 else raw
    outside = not row["low"] <= other <= row["high"] and _far(other, row["value"])
    if not (outside or (rows["standardised"]["why"] == NO_SUPPORT and _far(raw, row["value"]))):
        return row
    ends = [row["low"], row["high"], raw, other, *(end for name in ("low", "high") if (end := rows["raw"][name]) > 0)]
    return row | {
        "low": min(ends),
        "high": max(ends),
        "verdict": "~",
        "minimum_detectable_ratio": math.nan,
        "runs_to_resolve": math.nan,
        "why": f"{UNSETTLED}: the arms' work is so far apart that it matters how much of a step grows with its floor "
        f"(all of it: {row['value']:.2f}×; none: {raw:.2f}×), and there is no fit to tell",
    }


def _far(a: float, b: float) -> bool:
    return abs(math.log(a / b)) >= REST_MATTERS_FROM
