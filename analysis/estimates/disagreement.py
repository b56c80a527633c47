"""Compares the estimates of one arm with each other: where they contradict, and what the roofline takes for granted."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from analysis.estimates.equal_work import EQUAL_WORK, FLOOR, GENERATION, STEP, Row
from analysis.speedup import disagrees

# From here on raw and equal work differ in a way that matters, be it drift or luck: it is what these steps did.
FAR = 1.15
# From here on two sums of lengths differ by more than how a mean is printed.
LENGTHS_DIFFER_FROM = 0.01
# The roofline's correction of what is no generation is worth a word from here on.
REST_MATTERS_FROM = 0.02
UNSETTLED = "not settled by the floor alone"


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
