"""How much of a step waits for its longest response."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from analysis.figures.distributions import LONGEST, MEAN
from analysis.figures.drawing import Figure
from analysis.figures.over_steps import over_steps
from analysis.figures.panels import listed, panel_name
from analysis.rows import rows_of
from analysis.runs import PlanRead

BUBBLE = "length_bubble"


def with_length_bubble(wide: pd.DataFrame, lengths: pd.DataFrame | None = None) -> pd.DataFrame:
    """The frame with `length_bubble`: 1 - mean / longest response of a step, NaN where it cannot be one.

    From what the trainer logs of a step; where it logs neither, from the single lengths.
    """
    mean, longest = (
        pd.to_numeric(wide[name], errors="coerce").astype(float)
        if name in wide
        else pd.Series(math.nan, index=wide.index)
        for name in (MEAN, LONGEST)
    )
    if lengths is not None and len(lengths):
        values = lengths.assign(value=lengths["value"].astype(float))
        own = values.groupby(["run_id", "step"])["value"].agg(["mean", "max"])
        steps = pd.MultiIndex.from_frame(wide[["run_id", "step"]])
        told = own.reindex(steps).set_axis(wide.index)
        mean, longest = mean.fillna(told["mean"]), longest.fillna(told["max"])
    good = (mean >= 0) & (longest > 0) & (mean <= longest) & np.isfinite(longest)
    return wide.assign(**{BUBBLE: (1 - mean / longest).where(good)})


def straggler_figure(
    wide: pd.DataFrame,
    plan: PlanRead,
    stragglers: pd.DataFrame | None = None,
    lengths: pd.DataFrame | None = None,
) -> Figure | None:
    """The length bubble over the steps, by arm; the text alternative has the table's numbers."""
    told = []
    if stragglers is not None and len(stragglers):
        for row in rows_of(stragglers):
            ratio, bubble = (float(getattr(row, name, math.nan)) for name in ("straggler_ratio", BUBBLE))
            if math.isfinite(ratio) and math.isfinite(bubble):
                name = panel_name(row.arm, row.factors)
                told.append(f"{name}: longest over mean {ratio:.3g}, length bubble {bubble:.3g}")
    return over_steps(
        with_length_bubble(wide, lengths),
        plan,
        BUBBLE,
        "stragglers",
        "Waiting for the longest response",
        "length bubble: 1 − mean / longest response",
        caption="A synchronous step ends with its longest response. At 0 all are equally long; at 0.75 the mean is a "
        "quarter of the longest: three quarters of the places in the batch wait, on average, while it is generated. ",
        words=f". Over all counted steps: {listed(told)}" if told else "",
    )
