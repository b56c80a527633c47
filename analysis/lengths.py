"""Reduces the lengths of single responses run by run: those of a thousand runs take hundreds of MB."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.runs import Lengths, Run

# In the tail at most this share of a step's responses still runs.
TAIL = 0.1
BY_STEP = ["run_id", "step", "mean", "longest", "iterations", "tail"]


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
            parts.append(_by_step(step[good], value[good]).assign(run_id=run_id)[BY_STEP])
    none = pd.DataFrame(columns=BY_STEP).astype(dict.fromkeys(BY_STEP[2:], float))
    by_step = pd.concat(parts, ignore_index=True) if parts else none
    rows = [(arm, value, count) for arm, of in counts.items() for value, count in of.items()]
    return ReducedLengths(by_step, pd.DataFrame(rows, columns=["arm", "value", "count"]))


def _by_step(step: npt.NDArray[np.int32], value: npt.NDArray[np.float64]) -> pd.DataFrame:
    order = np.lexsort((-value, step))
    step, value = step[order], value[order]
    steps, first, size = np.unique(step, return_index=True, return_counts=True)
    # A response runs until its length: the tail begins when the longest response outside the last tenth ends.
    still = (size * TAIL + 1e-9).astype(int)
    tail = np.where(still > 0, value[first] - value[first + np.minimum(still, size - 1)], np.nan)
    mean = np.add.reduceat(value, first) / size
    return pd.DataFrame(
        {"step": steps, "mean": mean, "longest": value[first], "iterations": value[first] - 1, "tail": tail}
    )
