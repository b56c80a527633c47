"""Divides an arm's mean step into parts, from the decode floor to the time without a timer."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from analysis.phases import RESIDUAL
from analysis.roofline.step_floors import COMPUTE_S, FLOOR_S, GENERATION_S, KV_S, WEIGHT_S
from analysis.wide import PHASE, counted_rows
from analysis.windows import mean_of, steps_per_row
from trainers.logs.record import STEPS_LOGGED
from trainers.timers.tree import CATEGORIES

COLUMNS = ["factors", "arm", "part", "label", "seconds", "kind", "steps", "floor_steps"]
_FLOOR = (FLOOR_S, WEIGHT_S, KV_S, COMPUTE_S)
# kind: `floor` and `gap` divide generation where there is a floor.
_LABELS: Mapping[str, tuple[str, str]] = {
    "weight_read": ("Weights read", "floor"),
    "kv_read": ("Keys and values read", "floor"),
    "compute": ("Arithmetic", "floor"),
    "framework_gap": ("Generation above the floor", "gap"),
    "generation": ("Generation", "generation"),
    "weight_sync": ("Weight sync", "sync"),
    "log-probs": ("Log-probs", "training"),
    "rewards": ("Rewards", "rewards"),
    "loss+backward": ("Loss and backward", "training"),
    "optimizer": ("Optimizer", "training"),
    "other": ("Other timed phases", "other"),
    RESIDUAL: ("Residual", "residual"),
}


def waterfall_table(wide: pd.DataFrame, categories: pd.DataFrame) -> pd.DataFrame:
    """The parts of each arm's mean counted step, in seconds, in the order in which they are shown (`COLUMNS`).

    `categories` comes from `category_table`, `wide` from `with_floors`. An arm's parts sum to the mean of its
    `timing_s/step`. The steps with a decode floor (`floor_steps` of `steps`) divide generation into
    weights and keys read, or arithmetic where that is more, and the time above the floor. Without such steps it is one
    part. The residual is what is left, and keeps its sign. An arm without timers inside the step has no parts.
    """
    counted = counted_rows(wide, "factors", "arm", STEPS_LOGGED, PHASE + "step", GENERATION_S, *_FLOOR)
    rows: list[tuple[object, ...]] = []
    for (factors, arm), mine in categories.groupby(["factors", "arm"], sort=False):
        group = counted[(counted["factors"] == factors) & (counted["arm"] == arm)]
        seconds = dict(zip(mine["category"], mine["own_mean_s"].astype(float), strict=True))
        if set(seconds) == {RESIDUAL}:
            continue
        parts, floor_steps = _generation_parts(seconds.pop("generation", None), group)
        timed = [category for category in CATEGORIES if category in seconds]
        parts |= {category.replace(" ", "_"): seconds[category] for category in timed}
        step_s = mean_of(group[PHASE + "step"], steps_per_row(group))
        parts[RESIDUAL] = math.fsum([step_s, *(-s for s in parts.values())])
        rows += [
            (factors, arm, part, _LABELS[part][0], s, _LABELS[part][1], int(steps_per_row(group).sum()), floor_steps)
            for part, s in parts.items()
        ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _generation_parts(generation_s: float | None, steps: pd.DataFrame) -> tuple[dict[str, float], int]:
    """Mean seconds of generation in parts, by the steps that have a floor, and the number of these steps."""
    if generation_s is None:
        return {}, 0
    floored = steps[steps[FLOOR_S].notna()] if FLOOR_S in steps else steps[:0]
    weights = steps_per_row(floored)
    total = math.fsum(floored[GENERATION_S] * weights) if len(floored) else 0.0
    if total <= 0:
        return {"generation": generation_s}, 0
    reads = floored[WEIGHT_S] + floored[KV_S]
    by_reads = (reads >= floored[COMPUTE_S]).to_numpy()
    of = {
        "weight_read": np.where(by_reads, floored[WEIGHT_S], 0.0),
        "kv_read": np.where(by_reads, floored[KV_S], 0.0),
        "compute": np.where(by_reads, 0.0, floored[COMPUTE_S]),
    }
    sums = {part: math.fsum(values * weights) for part, values in of.items()}
    parts = {part: generation_s * s / total for part, s in sums.items() if s > 0}
    parts["framework_gap"] = math.fsum([generation_s, *(-s for s in parts.values())])
    return parts, int(weights.sum())
