"""How much of a step's time grows with its floor, and what if less of it does than the roofline estimate takes?"""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from analysis.estimates.equal_work import FLOOR, GENERATION, STEP, Row

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


def settled_roofline(rows: Mapping[str, Row]) -> Row:
    """The roofline's row; its interval reaches to raw's where the arms' work differs and no fit's interval checks it.

    How much of a step grows with its floor is not known: all of it (the estimate), none (raw), or a part of it. The
    steps tell a fit how much. Without the fit's interval the truth lies anywhere between, and a direction is resolved
    where both ends are.
    """
    row, raw = rows["roofline"], rows["raw"]["value"]
    if not (row["low"] > 0 and raw > 0) or rows["standardised"]["low"] > 0 or not _far(raw, row["value"]):
        return row
    resolved = row["verdict"] == rows["raw"]["verdict"] and row["verdict"] in "+-"
    ends = [row["low"], row["high"], raw, *(end for name in ("low", "high") if (end := rows["raw"][name]) > 0)]
    return row | {
        "low": min(ends),
        "high": max(ends),
        "verdict": row["verdict"] if resolved else "~",
        "minimum_detectable_ratio": math.nan,
        "runs_to_resolve": 0.0 if resolved else math.nan,
        "why": f"{UNSETTLED}: the arms' work differs, it matters how much of a step grows with its floor (all of it: "
        f"{row['value']:.2f}×; none: {raw:.2f}×), and no fit with an interval tells how much",
    }


def _far(a: float, b: float) -> bool:
    return abs(math.log(a / b)) >= REST_MATTERS_FROM
