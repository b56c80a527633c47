"""Do the estimates of one arm contradict one another?"""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from analysis.arm_estimates import Row
from analysis.equal_work import EQUAL_WORK, FLOOR, GENERATION, STEP
from analysis.speedup import disagrees

# From here on raw and equal work differ in a way that matters, be it drift or luck: it is what these steps did.
FAR = 1.15


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
        if not (apart or far or (opposite and raw["verdict"] in "+-")):
            return ""
    elif not (opposite or far):
        return ""
    values = ", ".join(f"{row['estimate']} {row['value']:.2f}×" for row in equal)
    return (
        f"by step time {raw['value']:.2f}×, at equal work {values}: the arms did not do the same work (their responses "
        "differ in length), and step time alone would mislead"
    )


# The roofline's correction of what is no generation is worth a word from here on.
REST_MATTERS_FROM = 0.02


def rest_of_step(roofline: Row, pairs: pd.DataFrame) -> str:
    """By how much the roofline estimate would differ if the floor had scaled generation alone, where that matters.

    η takes the whole step, so that all four estimates speak of the same seconds; the rest of a step (training) need not
    grow as the floor of its generation does.
    """
    names = [f"{name}_{side}" for name in (STEP, GENERATION, FLOOR) for side in "ab"]
    if not roofline["value"] > 0 or any(n not in pairs or not (pairs[n] > 0).all() for n in names):
        return ""
    step_a, step_b, gen_a, gen_b, floor_a, floor_b = (float(pairs[n].sum()) for n in names)
    mean = (floor_a + floor_b) / 2
    alone = (step_a - gen_a + gen_a * mean / floor_a) / (step_b - gen_b + gen_b * mean / floor_b)
    if abs(math.log(alone / roofline["value"])) < REST_MATTERS_FROM:
        return ""
    share = (gen_a + gen_b) / (step_a + step_b)
    return (
        f"generation is {100 * share:.0f} % of the step, and the roofline estimate ({roofline['value']:.2f}×) scales "
        f"the rest with it; with generation alone scaled to equal floors it would be {alone:.2f}×"
    )
