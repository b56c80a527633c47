"""Computes the seconds of each phase of an arm's step, none counted twice, and their sums."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product

import pandas as pd

from analysis.counted import mean_of, median_of, steps_per_row
from analysis.wide import OWN, PHASE, ROUNDING, counted_rows
from trainers.logs.record import STEPS_LOGGED
from trainers.timers.exclusive import parents
from trainers.timers.tree import Phase, TimerTree, in_order

RESIDUAL = "residual"
COLUMNS = [
    *("factors", "arm", "path", "parent", "label", "category", "depth", "steps", "present_steps"),
    *("mean_s", "median_s", "own_mean_s", "own_share", "rounding_s", "own_rounding_s"),
]
BETWEEN_STEPS = "between_steps_s"
SUMS_COLUMNS = [
    *("factors", "arm", "steps"),
    *("all_timers_s", "without_nested_s", "step_s", "own_sum_s", "own_sum_share", "between_steps_mean_s"),
]


def shown_phase(path: str, trees: Sequence[TimerTree]) -> Phase:
    """A path's phase, from the first tree that declares it."""
    tree = next((t for t in trees if t.declared(path)), trees[0])
    return tree.phase(path)


def phase_table(
    wide: pd.DataFrame, arms: Sequence[str], trees: Sequence[TimerTree], own: Mapping[str, Sequence[TimerTree]]
) -> pd.DataFrame:
    """One row per factor combination, arm and phase, over the counted steps (columns: `COLUMNS`).

    `own_mean_s` is the phase's mean seconds without its children's: over an arm's rows under the root it sums to the
    mean step. The root's own time is the residual. A missing phase counts as 0 s. `rounding_s` and `own_rounding_s`
    (with the children's) are the largest errors of those means from rounded sources. `own` has the trees of each arm,
    which label and categorise its phases; all `trees` give the order of phases.
    """
    rows = []
    counted = counted_rows(wide, "factors", "arm", STEPS_LOGGED)
    ordered = in_order([c.removeprefix(PHASE) for c in wide.columns if c.startswith(PHASE)], trees)
    root = trees[0].root if trees else ""
    for factors, arm in product(counted["factors"].unique(), arms):
        group = counted[(counted["factors"] == factors) & (counted["arm"] == arm)]
        steps = steps_per_row(group)
        # Phase by phase: a copy of all their columns takes too much memory.
        timed = [p for p in ordered if wide.loc[group.index, PHASE + p].notna().any()]
        rounding_s, parent_of = {p: _mean_rounding_s(wide, group, p) for p in timed}, parents(timed)
        root_s = mean_of(wide.loc[group.index, PHASE + root], steps) if timed else math.nan
        for path in timed:
            phase = shown_phase(path, [*own.get(arm, ()), *trees])
            logged = wide.loc[group.index, PHASE + path]
            seconds = logged.fillna(0.0)
            own_mean_s = mean_of(wide.loc[group.index, OWN + path].fillna(0.0), steps)
            inside = path == root or path.startswith(root + "/")
            rows.append(
                {
                    "factors": factors,
                    "arm": arm,
                    "path": path,
                    "parent": parent_of[path],
                    "label": phase.label,
                    "category": RESIDUAL if path == root else phase.category,
                    "depth": path.count("/"),
                    "steps": int(steps.sum()),
                    "present_steps": int(steps[logged.notna()].sum()),
                    "mean_s": mean_of(seconds, steps),
                    "median_s": median_of(seconds, steps),
                    "own_mean_s": own_mean_s,
                    "own_share": own_mean_s / root_s if inside else math.nan,
                    "rounding_s": rounding_s[path],
                    "own_rounding_s": rounding_s[path] + sum(rounding_s[p] for p in timed if parent_of[p] == path),
                }
            )
    return pd.DataFrame(rows, columns=COLUMNS)


def _mean_rounding_s(wide: pd.DataFrame, group: pd.DataFrame, path: str) -> float:
    column = ROUNDING + path
    return mean_of(wide.loc[group.index, column].fillna(0.0), steps_per_row(group)) if column in wide else 0.0


def category_table(phases: pd.DataFrame, root: str) -> pd.DataFrame:
    """Mean own seconds per factor combination, arm and category; they sum to the arm's mean step."""
    inside = phases[(phases["path"] == root) | phases["path"].str.startswith(root + "/")]
    return inside.groupby(["factors", "arm", "category"], sort=False)["own_mean_s"].sum().reset_index()


def sums_table(phases: pd.DataFrame, wide: pd.DataFrame, trees: Sequence[TimerTree]) -> pd.DataFrame:
    """One row per factor combination and arm, mean seconds of its counted steps (columns: `SUMS_COLUMNS`).

    `all_timers_s` adds all timers inside the step, as a reader of the log would; of nested timers only those
    that every arm logs, so that the arms' sums are of the same timers. `without_nested_s` adds the step's own children
    alone. `own_sum_s` adds all own times and the residual, and equals the step.
    """
    rows = []
    root = trees[0].root if trees else ""
    counted = counted_rows(wide, "factors", "arm", STEPS_LOGGED, BETWEEN_STEPS)
    arms = phases.groupby("factors", sort=False)["arm"].transform("nunique")
    shared = phases.groupby(["factors", "path"], sort=False)["arm"].transform("nunique") == arms
    for (factors, arm), group in phases.groupby(["factors", "arm"], sort=False):
        inside = group[group["path"].str.startswith(root + "/")]
        nested = inside[(inside["parent"] != root) & shared[inside.index]]
        step = group[group["path"] == root].iloc[0]
        mine = counted[(counted["factors"] == factors) & (counted["arm"] == arm)]
        between = mine.get(BETWEEN_STEPS, pd.Series(dtype=float)).astype(float)
        weights = steps_per_row(mine)[between.index]
        children_s = inside.loc[inside["parent"] == root, "mean_s"]
        own_sum_s = math.fsum([*inside["own_mean_s"], step["own_mean_s"]])
        rows.append(
            {
                "factors": factors,
                "arm": arm,
                "steps": int(step["steps"]),
                "all_timers_s": math.fsum([*children_s, *nested["mean_s"]]),
                "without_nested_s": math.fsum(children_s),
                "step_s": float(step["mean_s"]),
                "own_sum_s": own_sum_s,
                "own_sum_share": own_sum_s / float(step["mean_s"]),
                "between_steps_mean_s": mean_of(between, weights),
            }
        )
    return pd.DataFrame(rows, columns=SUMS_COLUMNS)
