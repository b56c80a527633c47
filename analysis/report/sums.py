"""How do the sums of an arm's timers close with its step?"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analysis.runs import rows_of
from trainers.timers.lookup import TimerTree

BETWEEN_STEPS = "between_steps_s"
COLUMNS = [
    "factors",
    "arm",
    "steps",
    "all_timers_s",
    "nested_s",
    "nested",
    "without_nested_s",
    "step_s",
    "residual_s",
    "residual_rounding_s",
    "own_sum_s",
    "own_sum_share",
    "between_steps_mean_s",
    "between_steps_median_s",
]


def sums_table(phases: pd.DataFrame, wide: pd.DataFrame, trees: Sequence[TimerTree]) -> pd.DataFrame:
    """One row per factor combination and arm, mean seconds of its counted steps (columns: `COLUMNS`).

    `all_timers_s` adds up the timers that were logged inside the step, as a reader of the log would, of those that lie
    inside others only what every arm logs, so that the arms' sums are of the same timers; `nested_s` is what of that
    was counted more than once, since those timers (`nested`) lie inside others; `without_nested_s` adds up the step's
    own children alone. `residual_s` is the step less those, `residual_rounding_s` how far the printed digits
    leave it open (NaN: full precision). `own_sum_s` adds up all own times and the residual: the step again.
    """
    rows = []
    root = trees[0].root if trees else ""
    counted = wide[wide["counted"].astype(bool)]
    arms = phases.groupby("factors", sort=False)["arm"].transform("nunique")
    shared = phases.groupby(["factors", "path"], sort=False)["arm"].transform("nunique") == arms
    for (factors, arm), group in phases.groupby(["factors", "arm"], sort=False):
        inside = group[group["path"].str.startswith(root + "/")]
        nested = inside[(inside["parent"] != root) & shared[inside.index]]
        step = group[group["path"] == root].iloc[0]
        between = counted.loc[(counted["factors"] == factors) & (counted["arm"] == arm)].get(BETWEEN_STEPS)
        told = between.astype(float) if between is not None else pd.Series(dtype=float)
        own_sum_s = math.fsum([*inside["own_mean_s"], step["own_mean_s"]])
        rows.append(
            {
                "factors": factors,
                "arm": arm,
                "steps": int(step["steps"]),
                "all_timers_s": math.fsum([*inside.loc[inside["parent"] == root, "mean_s"], *nested["mean_s"]]),
                "nested_s": math.fsum(nested["mean_s"]),
                "nested": ", ".join(str(r.label) for r in rows_of(nested)),
                "without_nested_s": math.fsum(inside.loc[inside["parent"] == root, "mean_s"]),
                "step_s": float(step["mean_s"]),
                "residual_s": float(step["own_mean_s"]),
                "residual_rounding_s": float(step.get("own_rounding_s", math.nan)),
                "own_sum_s": own_sum_s,
                "own_sum_share": own_sum_s / float(step["mean_s"]),
                "between_steps_mean_s": float(told.mean()),
                "between_steps_median_s": float(told.median()),
            }
        )
    return pd.DataFrame(rows, columns=COLUMNS)
