"""Measures the noise: how much two runs of the same engine differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from analysis.estimates.arm import estimates, needed
from analysis.estimates.bootstrap import CONFIDENCE, RESAMPLES, students_t
from analysis.estimates.comparable import ALL_COMPARABLE, Comparable
from analysis.estimates.equal_work import STEP
from analysis.pairs import paired_steps
from analysis.planned import PlanRead
from analysis.wide import counted_rows
from analysis.windows import first_steps
from trainers.logs.record import STEPS_LOGGED

# The number of pairs grows with the square of the seeds, and these are enough to show the spread.
MOST_SEEDS = 12
COLUMNS = ["factors", "low", "high", "runs", "source", "step_low", "step_high"]


def repetition_of(plan: PlanRead, arm: str) -> str:
    """The arm that `arm` repeats, or the baseline that repeats `arm`; otherwise ""."""
    of_baseline = plan.baseline if plan.same_as.get(plan.baseline) == arm else ""
    return plan.same_as.get(arm, of_baseline)


def noise_table(wide: pd.DataFrame, plan: PlanRead, comparable: Comparable = ALL_COMPARABLE) -> pd.DataFrame:
    """The A/A bands by factor combination, those of declared A/A arms first (columns: `COLUMNS`).

    95% of the ratios of step time of two equal runs are between `low` and `high`, those of two single steps between
    `step_low` and `step_high`; `runs` is the number of runs. A second band comes from pairs of one arm's seeds; it is
    wider, because their work differs too. Arms that are not `comparable` are in neither.
    """
    rows: list[dict[str, object]] = []
    counted = counted_rows(wide, "factors", "arm", "seed", "step", STEPS_LOGGED, STEP)
    for factors in wide["factors"].unique():
        here = counted[counted["factors"] == factors]
        for arm, other in repetitions(plan, factors, comparable):
            pairs = paired_steps(wide, factors, other, arm, (STEP,))
            if len(pairs):
                matched = [(p[f"{STEP}_a"], p[f"{STEP}_b"]) for _, p in pairs.groupby("seed")]
                rows.append(_row(factors, matched, len(matched), 2 * len(matched), f"{arm}, the repetition of {other}"))
        matched, runs = [], 0
        arms: list[str] = []
        for arm in plan.arms:
            if plan.is_other_kind(arm) or (factors, arm) in {**comparable.refused, **comparable.not_repeated}:
                continue
            seeds = list(here[here["arm"] == arm].groupby("seed"))[:MOST_SEEDS]
            # Rows of one number may stand for other steps in another seed.
            of_seed = [rows.assign(first=first_steps(rows)).set_index(["step", "first"])[STEP] for _, rows in seeds]
            both = [pd.concat(two, axis=1, join="inner") for two in combinations(of_seed, 2)]
            if mine := [(m.iloc[:, 0], m.iloc[:, 1]) for m in both if len(m)]:
                matched, runs, arms = matched + mine, runs + len(seeds), [*arms, arm]
        if matched:
            rows.append(_row(factors, matched, runs - len(arms), runs, f"pairs of seeds of {', '.join(arms)}"))
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(
    factors: str, matched: Sequence[tuple[pd.Series, pd.Series]], freedom: int, runs: int, source: str
) -> dict[str, object]:
    """The band from log ratios of step times, whose true mean is 0.

    The mean square of the runs' log ratios has `freedom` degrees of freedom.
    """
    sums = [math.log(float(a.sum()) / float(b.sum())) for a, b in matched]
    logs = np.concatenate([np.log(a.to_numpy(dtype=float) / b.to_numpy(dtype=float)) for a, b in matched])
    size = float(np.mean(np.square(sums))) ** 0.5 * students_t(freedom)
    steps = float(np.quantile(np.abs(logs), CONFIDENCE))
    band = {"low": math.exp(-size), "high": math.exp(size), "step_low": math.exp(-steps), "step_high": math.exp(steps)}
    return {"factors": factors, **band, "runs": runs, "source": source}


def repetitions(plan: PlanRead, factors: str, comparable: Comparable) -> list[tuple[str, str]]:
    """(arm, the arm that it repeats) of the declared A/A arms that ran under the same conditions."""
    return [(arm, other) for arm, other in plan.same_as.items() if (factors, arm) not in comparable.not_repeated]


def noise_bands(
    wide: pd.DataFrame,
    plan: PlanRead,
    factors: str,
    resamples: int = RESAMPLES,
    comparable: Comparable = ALL_COMPARABLE,
) -> dict[str, float]:
    """Estimate -> how far from 1 the ratio of the same engine, run twice, may be (as |log ratio|), by the A/A arms.

    It is the far end of the A/A estimate's own interval, the widest of several. An estimate without an A/A arm is
    absent.
    """
    bands: dict[str, float] = {}
    for arm, other in repetitions(plan, factors, comparable):
        pairs = paired_steps(wide, factors, other, arm, needed())
        for row in estimates(pairs, resamples=resamples) if len(pairs) else []:
            ends = [abs(math.log(row[end])) for end in ("value", "low", "high") if row[end] > 0]
            if ends:
                bands[row["estimate"]] = max(bands.get(row["estimate"], 0.0), *ends)
    return bands
