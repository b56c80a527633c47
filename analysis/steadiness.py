"""Looks for steps that decide a ratio though they say little of the engine: a warm-up that goes on, and long steps."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd

from analysis.compared import Compared
from analysis.ratio import RunNumbers, interval
from analysis.windows import median_of
from common.messages import join_first

FALLS_BY, ERRORS = 0.02, 3.0
"""An arm's steps still fall if the first third is so much longer than the last, by so many standard errors."""
LONG = 4.0
"""A step is long from so many times its run's median on."""
MOST_NAMES = 6
QUICK = 0.25
"""Fewer than so many of a run's steps are without an evaluation only if it evaluates more often than any should."""


def still_falling(side: pd.DataFrame) -> bool:
    """Whether an arm's steps become faster from their first third to their last, within its runs."""
    logs = np.log(side["seconds"]) - np.log(side["seconds"]).groupby(side["run"]).transform("mean")
    place, rows = side.groupby("run").cumcount(), side.groupby("run")["step"].transform("size")
    third = (rows // 3).clip(lower=1)
    first, last = logs[place < third], logs[place >= rows - third]
    fall = first.mean() - last.mean()
    error = math.sqrt(first.var(ddof=0) / len(first) + last.var(ddof=0) / len(last))
    return bool((rows >= 3).all() and fall > max(FALLS_BY, ERRORS * error))


def after_warmup(one: Compared) -> tuple[Compared, tuple[str, ...], int]:
    """The comparison after the steps that still fall, the arms that fall, and the warm-up's steps by then.

    At most half of the rows are left out.
    """
    falling = tuple(name for name, side in zip((one.baseline, one.arm), one.sides, strict=True) if still_falling(side))
    later, most = one, min((int(side.groupby("run").size().min()) for side in one.sides), default=0) // 2
    more = 0
    while more < most and any(still_falling(side) for side in later.sides):
        # Of a long run a tenth more at once: each look is at all steps.
        more = min(most, more + 1 + more // 10)
        later = _of(one, *(side[side.groupby("run").cumcount() >= more] for side in one.sides))
    if later is one:
        return one, (), 0
    first = min(float(((side["step"] - side["n"]) / side["gap"].fillna(1.0)).min()) for side in later.sides)
    return later, falling, round(first)


def _of(one: Compared, baseline: pd.DataFrame, arm: pd.DataFrame) -> Compared:
    """The same comparison over other steps."""
    return replace(one, steps=replace(one.steps, baseline=baseline, arm=arm))


def long_steps(one: Compared) -> tuple[str, Compared]:
    """The long steps of both arms by name, and the comparison without them."""
    shown, kept = [], []
    for name, side in zip((one.baseline, one.arm), one.sides, strict=True):
        medians = {run: median_of(of["seconds"], of["n"]) for run, of in side.groupby("run")}
        times = side["seconds"] / side["run"].map(medians)
        long = times >= LONG
        shown += [
            f"{name}'s step {step} ({of:.0f} times)" for step, of in zip(side["step"][long], times[long], strict=True)
        ]
        kept.append(side[~long])
    return join_first(shown, MOST_NAMES), _of(one, *kept)


def median_ratio(one: Compared) -> float:
    """The ratio of the runs' median steps, which a few long steps do not change."""
    a, b = (
        float(np.mean([math.log(median_of(run["seconds"], run["n"])) for _, run in side.groupby("run")]))
        for side in one.sides
    )
    return math.exp(a - b)


def explained_by_evaluations(one: Compared, sample: RunNumbers, confidence: float) -> bool:
    """Whether evaluations or checkpoints of the slower arm could explain its difference, by a wall clock alone.

    They lengthen some of its steps and none of the faster arm's, so the slower arm's quick steps must be slower, too.
    """
    slower = 0 if sample.log_ratio > 0 else 1
    side = one.sides[slower]
    if not side["by_clock"].any():
        return False
    quick = np.log(side.groupby("run")["seconds"].quantile(QUICK).to_numpy())
    low, high = interval(replace(sample, **{("baseline", "arm")[slower]: quick}), confidence)
    return not (low > 1 if slower == 0 else high < 1)
