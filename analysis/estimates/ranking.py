"""Sorts the settings (arm and factors) of a sweep, or of engines alone, by seconds of a step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.compared import LONGEST, STEP, TOKENS
from analysis.counted import gaps, steps_per_row
from analysis.estimates.comparable import different_conditions
from analysis.planned import PlanRead, at, factors_key, factors_label, factors_of
from analysis.ratio import Common, interval, raw
from analysis.runs import Run, rows_of
from analysis.wide import BY_CLOCK, ROUNDING, counted_rows, numbers_of
from trainers.logs.record import STEPS_LOGGED

COLUMNS = ["workload", "factors", "arm", "runs", "step_s", "ratio", "low", "high", "why"]
LEAST, OFF = 3, ROUNDING + "step"


def ranking_table(wide: pd.DataFrame, runs: Sequence[Run], plan: PlanRead) -> pd.DataFrame:
    """One row per setting, the fastest of each workload first; empty without a sweep or with fewer than three settings.

    A run is one number: its mean seconds over the steps that all settings have; `step_s` is their geometric mean.
    `ratio` is a setting's seconds over the first's, with Welch's 95% interval, wider by what rounded seconds may be
    off. Settings that ran elsewhere, and engines alone with other completions, have no ratio, and `why`.
    """
    rows = counted_rows(wide, "arm", "factors", "run_id", "step", STEPS_LOGGED, STEP, TOKENS, LONGEST, OFF, BY_CLOCK)
    rows = rows.assign(workload=rows["factors"].map(_workload), setting=rows["arm"] + "\n" + rows["factors"])
    # Of all steps: one that is left out is no gap of the counter.
    rows["gap"] = rows["run_id"].map(gaps(wide["run_id"], wide["step"], steps_per_row(wide)))
    swept = plan.engines_only or rows["factors"].nunique() > 1
    groups = rows.groupby("workload", sort=False) if swept and rows["setting"].nunique() >= LEAST else ()
    found = [row for _, of in groups for row in _sorted(of, runs, plan.engines_only)]
    return pd.DataFrame(found, columns=COLUMNS)


def _workload(key: str) -> str:
    """The factors that all arms share; another value is other work."""
    return factors_key({path: value for path, value in factors_of(key).items() if path.startswith("workload.")})


def _sorted(rows: pd.DataFrame, runs: Sequence[Run], alone: bool) -> Iterator[tuple[Any, ...]]:
    """The rows of one workload."""
    shared = rows.groupby("step")["setting"].transform("nunique") == rows["setting"].nunique()
    found, work, of_runs = {}, {}, {}
    for key, of in (rows[shared] if shared.any() else rows).groupby(["workload", "factors", "arm"], sort=False):
        clock = {"off_s": np.nan_to_num(numbers_of(of, OFF)), BY_CLOCK: numbers_of(of, BY_CLOCK) > 0}
        words = {"run": of["run_id"], "step": of["step"], "gap": of["gap"], "n": steps_per_row(of), "seconds": of[STEP]}
        found[key] = pd.DataFrame(words | clock)
        work[key] = of.groupby("step")[[name for name in (TOKENS, LONGEST) if name in of]].mean()
        of_runs[key] = [run for run in runs if (run.factors_key, run.arm) == key[1:]]
    seconds = {key: math.exp(raw(of, of).arm.mean()) for key, of in found.items()}
    first, *others = sorted(found, key=lambda key: seconds[key])
    for key in (first, *others):
        why = "; ".join(different_conditions(of_runs[first], of_runs[key]).values())
        if alone and not why and not (work[key].shape[1] == 2 and work[key].equals(work[first])):
            why = "its completions are not of the same lengths as the first's"
        # A setting is the baseline of the first here: its seconds over the first's.
        sample = raw(found[key], found[first])
        rounded = replace(sample, bias=Common(found[key], found[first], True, ()).rounding)
        low, high = (math.nan, math.nan) if why or key == first else interval(rounded)
        ratio = math.nan if why else math.exp(sample.log_ratio)
        yield *key, len(sample.baseline), seconds[key], ratio, low, high, why


def ranking_lines(ranking: pd.DataFrame, plan: PlanRead) -> list[str]:
    """Of engines alone, and of a single arm, for each workload: the first setting, and those not resolved from it."""
    lines = []
    # Arms that train have verdicts.
    for workload, rows in ranking.groupby("workload", sort=False) if plan.engines_only or len(plan.arms) == 1 else ():
        names = [row.arm + (f" ({factors_label(row.factors)})" if row.factors else "") for row in rows_of(rows)]
        compared = rows["ratio"].notna() & (rows.index != rows.index[0])
        unresolved = [name for name, is_open in zip(names, compared & ~(rows["low"] > 1), strict=True) if is_open]
        rest = f"not resolved from it: {', '.join(unresolved)}" if unresolved else "all others are slower"
        if rows["ratio"].isna().any() and not unresolved:
            rest = "the others are slower or not comparable"
        where, fastest_s = at(str(workload)), rows["step_s"].iloc[0]
        lines.append(f"Fastest of {len(rows)} settings{where}: {names[0]}, {fastest_s:.3g} s a step; {rest}.")
    return lines
