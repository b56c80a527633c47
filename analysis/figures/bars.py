"""Draws where the mean step goes: its categories as stacked bars."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from analysis.factors import factors_label
from analysis.figures.drawing import (
    CATEGORY_COLOURS,
    HATCHED,
    WIDTH,
    Figure,
    draw,
    left_out,
    listed,
    panel_name,
    seconds_text,
)
from analysis.phases import RESIDUAL
from analysis.runs import rows_of

MAX_BARS = 40
LINE, LETTERS = 14, 27
"""A bar's name: pixels between its lines, and letters in a line."""
UNSEEN_SHARE = 0.002
"""A negative time below this share of the longest bar is drawn as 0: it is no pixel wide, but shifts the axis."""


def bar_name(arm: str, factors: str) -> str:
    # Vega cuts a long line at its end, where names differ.
    parts = (arm, *factors_label(factors).split(", "))
    return "\n".join(line for part in parts for line in textwrap.wrap(part, LETTERS))


def bar_ends(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame (columns bar, seconds; in drawing order) with `start` and `end` of each piece of its bar.

    Positive pieces stack to the right of zero, negative ones to the left.
    """
    least = -UNSEEN_SHARE * frame.groupby("bar")["seconds"].sum().abs().max()
    seconds = frame["seconds"].where((frame["seconds"] >= 0) | (frame["seconds"] < least), 0.0)
    above, below = seconds.clip(lower=0), seconds.clip(upper=0)
    end = above.groupby(frame["bar"]).cumsum().where(seconds >= 0, below.groupby(frame["bar"]).cumsum())
    return frame.assign(start=end - seconds, end=end)


def phase_bars(categories: pd.DataFrame) -> Figure | None:
    """Mean seconds per step by category, one bar per factor combination and arm; the residual is hatched."""
    categories = categories[np.isfinite(categories["own_mean_s"].astype(float))]
    if categories.empty:
        return None
    every = categories[["factors", "arm"]].drop_duplicates()
    groups = every.head(MAX_BARS)
    bars = list(dict.fromkeys(bar_name(r.arm, r.factors) for r in rows_of(groups)))
    unknown = [c for c in categories["category"].unique() if c not in CATEGORY_COLOURS and c != RESIDUAL]
    order = [*CATEGORY_COLOURS, *unknown, RESIDUAL]
    frame = categories.merge(groups, on=["factors", "arm"])
    frame = frame.assign(
        bar=[bar_name(r.arm, r.factors) for r in rows_of(frame)],
        rank=frame["category"].map(order.index),
        seconds=frame["own_mean_s"],
    )
    frame = bar_ends(frame.sort_values(["bar", "rank"]).reset_index(drop=True))
    by_bar = frame.groupby("bar")
    frame["right"] = by_bar["end"].transform("max")
    totals = by_bar["seconds"].transform("sum")
    digits = min(6, max(0, 2 - math.floor(math.log10(totals.abs().min() or 1.0))))
    frame["total"] = [seconds_text(seconds, digits) for seconds in totals]
    frame["first"] = by_bar.cumcount() == 0
    # Vega draws no more of a name than its limit.
    names = min(190, 8 * max(len(line) for bar in bars for line in bar.split("\n")))
    lines = max(bar.count("\n") + 1 for bar in bars)
    each = max(44 if len(bars) <= 12 else 30, LINE * lines + 6)
    layers = _stacked(bars, [c for c in order if c in set(frame["category"])], legend=4 if names > 70 else 8)
    texts = []
    for (arm, factors), rows in frame.groupby(["arm", "factors"], sort=False):
        parts = ", ".join(f"{r.category} {r.own_mean_s:.3g} s" for r in rows_of(rows))
        texts.append(f"{panel_name(str(arm), str(factors))}: {parts}")
    return Figure(
        "phases",
        "Where the step goes",
        "Mean own seconds per counted step. Hatched: the residual, the part of the step that no timer covers. A "
        "negative residual is left of the axis." + left_out(len(groups), len(every), "bars", "phases"),
        listed(texts),
        draw(frame, layers, WIDTH - 60 - names, max(each * len(bars), 60)),
    )


def _stacked(bars: list[str], present: list[str], legend: int) -> list[Any]:
    """The bars' pieces, and each bar's sum at its right."""
    colours = [HATCHED if c == RESIDUAL else CATEGORY_COLOURS.get(c, CATEGORY_COLOURS["other"]) for c in present]
    # Vega centres the first line of a label on the bar.
    by_line = alt.Axis(
        labelExpr="split(datum.label, '\\n')",
        labelLimit=190,
        labelLineHeight=LINE,
        labelOffset=alt.ExprRef(f"-{LINE} / 2 * (split(datum.value, '\\n').length - 1)"),
    )
    base = alt.Chart().encode(y=alt.Y("bar:N", sort=bars, title=None, axis=by_line))
    axis = alt.Axis(tickCount=8, labelFlush=False)
    swatches = alt.Legend(symbolStrokeColor="currentColor", symbolStrokeWidth=1, columns=legend)
    pieces = base.mark_bar(height=alt.RelativeBandSize(0.72)).encode(
        x=alt.X("start:Q", title="mean seconds per step, own time of each category", axis=axis),
        x2=alt.X2("end"),
        color=alt.Color("category:N", scale=alt.Scale(domain=present, range=colours), legend=swatches),
        stroke=alt.condition(
            alt.datum.category == RESIDUAL, alt.value("currentColor"), alt.value("transparent"), empty=False
        ),
    )
    sums = base.transform_filter(alt.datum.first).mark_text(align="left", dx=6, fontSize=12)
    return [pieces, sums.encode(x=alt.X("right:Q"), text=alt.Text("total:N"))]
