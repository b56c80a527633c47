"""Computes how much of generation waits for the longest responses, and the largest speed-up by a faster engine.

The lengths of single responses are reduced run by run: those of a thousand runs take hundreds of MB.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.planned import PlanRead
from analysis.roofline.floors import category_s
from analysis.roofline.step_floors import FLOOR_S, GENERATION_S
from analysis.runs import Lengths, Run
from analysis.wide import PHASE, Columns
from analysis.windows import mean_of, steps_per_row
from trainers.logs.record import STEPS_LOGGED

# In the tail at most this share of a step's responses still runs.
TAIL = 0.1
BY_STEP = ["run_id", "step", "mean", "longest", "iterations", "tail"]
COLUMNS = [
    *("factors", "arm", "steps"),
    *("length_steps", "mean_length", "max_length", "straggler_ratio", "length_bubble", "tail_share"),
    *("generation_share", "amdahl_ceiling", "generation_s", "floor_steps", "floor_s", "efficiency"),
]
_KEY = ["run_id", "step"]
_USED = [*_KEY, STEPS_LOGGED, "mean_response_length", "max_response_length", PHASE + "step", FLOOR_S, GENERATION_S]


def straggler_table(wide: pd.DataFrame, runs: Sequence[Run], plan: PlanRead, lengths: pd.DataFrame) -> pd.DataFrame:
    """One row per factor combination and arm, over its counted steps (`wide` from `with_floors`); ratios are of sums.

    `mean_length` and `max_length`: mean over `length_steps` steps of their mean and longest response, in tokens.
    `straggler_ratio` R = Σ longest / Σ mean; `length_bubble` 1 - 1/R. `tail_share`: the share of decode iterations in
    which at most a tenth of the responses still runs, if all start at once, from steps with ten responses or more.
    `generation_share` f: the share of the generation phases in the step; `amdahl_ceiling` 1 / (1 - f): the speed-up by
    an engine that takes no time. `generation_s`: mean own seconds. `efficiency`: Σ floor / Σ generation over the
    `floor_steps` that have a floor, whose mean is `floor_s`. NaN without data. `lengths` are those of the counted steps
    (`ReducedLengths.by_step`).
    """
    whole = pd.Series(category_s(wide, runs, PHASE, "generation"), index=wide.index)
    rows = []
    used = wide[[name for name in _USED if name in wide]]
    counted = wide["counted"].astype(bool)
    for factors in wide.loc[counted, "factors"].unique():
        for arm in plan.arms:
            steps = used[counted & (wide["factors"] == factors) & (wide["arm"] == arm)]
            if not steps.empty:
                generation = whole[steps.index]
                rows.append(
                    {"factors": factors, "arm": arm, "steps": int(steps_per_row(steps).sum())}
                    | _arm(steps, lengths, generation)
                )
    return pd.DataFrame(rows, columns=COLUMNS)


def _arm(steps: pd.DataFrame, lengths: pd.DataFrame, whole: pd.Series) -> dict[str, float]:
    mean, longest = _mean_and_longest(steps, lengths)
    good = (mean > 0) & (longest >= mean) & np.isfinite(longest)
    weights = steps_per_row(steps)
    straggler_ratio = _ratio((longest * weights)[good].sum(), (mean * weights)[good].sum())
    tailed = steps[_KEY].merge(lengths[lengths["tail"].notna()], on=_KEY)
    timed = whole.notna() & (steps[PHASE + "step"] > 0)
    share = _ratio((whole * weights)[timed].sum(), (steps[PHASE + "step"] * weights)[timed].sum())
    floored = steps[steps[FLOOR_S].notna()] if FLOOR_S in steps else steps[:0]
    of_floor = steps_per_row(floored)
    return {
        "length_steps": int(weights[good].sum()),
        "mean_length": mean_of(mean[good], weights[good]),
        "max_length": mean_of(longest[good], weights[good]),
        "straggler_ratio": straggler_ratio,
        "length_bubble": 1 - 1 / straggler_ratio,
        "tail_share": _ratio(tailed["tail"].sum(), tailed["iterations"].sum()),
        "generation_share": share,
        "amdahl_ceiling": 1 / (1 - share) if share < 1 else math.nan,
        "generation_s": mean_of(steps[GENERATION_S], weights) if GENERATION_S in steps else math.nan,
        "floor_steps": int(of_floor.sum()),
        "floor_s": mean_of(floored[FLOOR_S], of_floor) if len(floored) else math.nan,
        "efficiency": _ratio((floored[FLOOR_S] * of_floor).sum(), (floored[GENERATION_S] * of_floor).sum())
        if len(floored)
        else math.nan,
    }


def _mean_and_longest(steps: pd.DataFrame, lengths: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Each step's mean and longest response as logged, else from its single lengths (`ReducedLengths.by_step`)."""
    own = steps[_KEY].merge(lengths, on=_KEY, how="left").set_index(steps.index)
    mean, longest = (
        (steps[name].astype(float) if name in steps else pd.Series(np.nan, index=steps.index)).fillna(own[column])
        for name, column in (("mean_response_length", "mean"), ("max_response_length", "longest"))
    )
    return mean, longest


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else math.nan


@dataclass(frozen=True)
class ReducedLengths:
    """The lengths of the responses of counted steps."""

    by_step: pd.DataFrame
    """Per run and step: `mean` and `longest` response in tokens, decode `iterations`, and those of the `tail`.

    The tail is NaN with fewer than ten responses, a tenth of which is none.
    """
    counts: pd.DataFrame
    """How many responses of an arm have a length: arm, value, count."""


def counted_lengths(runs: Sequence[Run], wide: pd.DataFrame) -> ReducedLengths:
    """The response lengths of the counted steps of `wide`."""
    counted = wide.loc[wide["counted"].astype(bool), ["run_id", "step"]]
    steps = {str(run_id): of.to_numpy() for run_id, of in counted.groupby("run_id", sort=False)["step"]}

    def samples() -> Iterator[tuple[str, str, Lengths]]:
        for run in runs:
            if run.run_id in steps:
                step, value = run.lengths
                here = np.isin(step, steps[run.run_id])
                yield run.run_id, run.arm, (step[here], value[here])

    return reduced(samples())


def reduced(samples: Iterable[tuple[str, str, Lengths]]) -> ReducedLengths:
    """The lengths of runs, each with its id and its arm."""
    parts, counts = [], dict[str, Counter[float]]()
    for run_id, arm, (step, value) in samples:
        if len(value):
            number, times = np.unique(value, return_counts=True)
            counts.setdefault(arm, Counter()).update(dict(zip(number.tolist(), times.tolist(), strict=True)))
        good = np.isfinite(value) & (value >= 1)
        if good.any():
            of_run = _by_step(step[good], value[good])
            parts.append({"run_id": np.full(len(of_run["step"]), run_id, dtype=object)} | of_run)
    none = pd.DataFrame(columns=BY_STEP).astype(dict.fromkeys(BY_STEP[2:], float))
    # One table at the end: a thousand small ones take most of a second.
    by_step = (
        pd.DataFrame({name: np.concatenate([part[name] for part in parts]) for name in BY_STEP}) if parts else none
    )
    rows = [(arm, value, count) for arm, of in counts.items() for value, count in of.items()]
    return ReducedLengths(by_step, pd.DataFrame(rows, columns=["arm", "value", "count"]))


def _by_step(step: npt.NDArray[np.int32], value: npt.NDArray[np.float64]) -> Columns:
    order = np.lexsort((-value, step))
    step, value = step[order], value[order]
    steps, first, size = np.unique(step, return_index=True, return_counts=True)
    # A response runs until its length: the tail begins when the longest response outside the last tenth ends.
    still = (size * TAIL + 1e-9).astype(int)
    tail = np.where(still > 0, value[first] - value[first + np.minimum(still, size - 1)], np.nan)
    mean = np.add.reduceat(value, first) / size
    return {"step": steps, "mean": mean, "longest": value[first], "iterations": value[first] - 1, "tail": tail}
