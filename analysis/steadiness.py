"""Looks for steps that decide a ratio though they say little of the engine: a warm-up that goes on, and long steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis.ratio import RunNumbers, interval
from analysis.windows import median_of

FALLS_BY, ERRORS = 0.02, 3.0
"""An arm's steps still fall if the first third is so much longer than the last, by so many standard errors."""
LONG = 4.0
"""A step is long from so many times its run's median on."""
QUICK = 0.25
"""Fewer than so many of a run's steps are without an evaluation only if it evaluates more often than any should."""


Sides = tuple[pd.DataFrame, pd.DataFrame]
"""The steps of the baseline and of an arm that are compared (analysis/compared.py)."""


@dataclass(frozen=True)
class WarmUp:
    """The steps after the declared warm-up that still become faster."""

    falling: tuple[bool, bool]
    """Whether the steps of the baseline, and of the arm, still become faster."""
    rows: int
    """How many first rows of each run these are, at most half of them; 0 without any."""


def still_falling(side: pd.DataFrame) -> bool:
    """Whether an arm's steps become faster from their first third to their last, within its runs."""
    logs = np.log(side["seconds"]) - np.log(side["seconds"]).groupby(side["run"]).transform("mean")
    place, rows = side.groupby("run").cumcount(), side.groupby("run")["step"].transform("size")
    third = (rows // 3).clip(lower=1)
    first, last = logs[place < third], logs[place >= rows - third]
    fall = first.mean() - last.mean()
    error = math.sqrt(first.var(ddof=0) / len(first) + last.var(ddof=0) / len(last))
    return bool((rows >= 3).all() and fall > max(FALLS_BY, ERRORS * error))


def warm_up_of(sides: Sides) -> WarmUp:
    """Which arms still fall, and how many rows of each run until none does."""
    baseline, arm = falling = tuple(map(still_falling, sides))
    most, rows = min((int(side.groupby("run").size().min()) for side in sides), default=0) // 2, 0
    while rows < most and any(falling):
        # Of a long run a tenth more at once: each look is at all steps.
        rows = min(most, rows + 1 + rows // 10)
        falling = tuple(still_falling(after(side, rows)) for side in sides)
    return WarmUp((baseline, arm) if rows else (False, False), rows)


def after(side: pd.DataFrame, rows: int) -> pd.DataFrame:
    """The rows of each run after so many first ones."""
    return side[side.groupby("run").cumcount() >= rows]


def median_steps(side: pd.DataFrame) -> pd.Series:
    """Each run's median seconds, by its id."""
    return pd.Series({run: median_of(of["seconds"], of["n"]) for run, of in side.groupby("run")})


def explained_by_evaluations(sides: Sides, sample: RunNumbers, confidence: float) -> bool:
    """Whether evaluations or checkpoints of the slower arm could explain its difference, by a wall clock alone.

    They lengthen some of its steps and none of the faster arm's, so the slower arm's quick steps must be slower, too.
    """
    slower = 0 if sample.log_ratio > 0 else 1
    side = sides[slower]
    if not side["by_clock"].any():
        return False
    quick = np.log(side.groupby("run")["seconds"].quantile(QUICK).to_numpy())
    low, high = interval(replace(sample, **{("baseline", "arm")[slower]: quick}), confidence)
    return not (low > 1 if slower == 0 else high < 1)
