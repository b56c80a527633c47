"""How many seconds of an arm's mean step each category takes."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from analysis.figures.drawing import CATEGORY_COLOURS, WIDTH, Figure, render
from analysis.figures.panels import left_out, listed
from analysis.figures.svg import HATCHED
from analysis.phases import RESIDUAL
from analysis.rows import rows_of
from analysis.runs import factors_label

MAX_BARS = 40
LINE = 14
"""Pixels from one line of a bar's name to the next."""
UNSEEN_SHARE = 0.002
"""A negative time of less than this share of the longest bar would be no pixel wide, and shift the axis."""


def bar_name(arm: str, factors: str) -> str:
    # A line for each: of two factors in one the second would be cut. A line break within a name would be one more.
    return "\n".join(" ".join(part.split()) for part in (arm, *factors_label(factors).split(", ")) if part)


def bar_ends(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame (columns bar, seconds; in drawing order) with `start` and `end` of each piece of its bar.

    What is above zero is stacked to the right of zero, what is below to the left.
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
    frame = categories.merge(groups, on=["factors", "arm"])
    frame["bar"] = [bar_name(r.arm, r.factors) for r in rows_of(frame)]
    known = [c for c in frame["category"].unique() if c not in CATEGORY_COLOURS and c != RESIDUAL]
    order = [*CATEGORY_COLOURS, *known, RESIDUAL]
    frame["rank"] = frame["category"].map(order.index)
    frame["seconds"] = frame["own_mean_s"]
    frame = bar_ends(frame.sort_values(["bar", "rank"]).reset_index(drop=True))
    present = [c for c in order if c in set(frame["category"])]
    colours = [HATCHED if c == RESIDUAL else CATEGORY_COLOURS.get(c, CATEGORY_COLOURS["other"]) for c in present]
    bars = list(dict.fromkeys(bar_name(r.arm, r.factors) for r in rows_of(groups)))
    # Of a label that is cut, no more is drawn than its limit.
    names = min(190, 8 * max(len(line) for bar in bars for line in bar.split("\n")))
    is_residual = alt.datum.category == RESIDUAL
    lines = max(bar.count("\n") + 1 for bar in bars)
    # Vega centres the first of a label's lines on the bar.
    by_line = alt.Axis(
        labelExpr="split(datum.label, '\\n')", labelLimit=190, labelLineHeight=LINE, labelOffset=-LINE / 2 * (lines - 1)
    )
    chart = (
        alt.Chart(frame)
        .mark_bar(height=alt.RelativeBandSize(0.72))
        .encode(
            x=alt.X(
                "start:Q",
                title="mean seconds per step, own time of each category",
                axis=alt.Axis(tickCount=8, labelFlush=False),
            ),
            x2="end:Q",
            y=alt.Y("bar:N", sort=bars, title=None, axis=by_line),
            color=alt.Color(
                "category:N",
                scale=alt.Scale(domain=present, range=colours),
                legend=alt.Legend(
                    symbolStrokeColor="currentColor", symbolStrokeWidth=1, columns=4 if names > 70 else 8
                ),
            ),
            stroke=alt.condition(is_residual, alt.value("currentColor"), alt.value("transparent")),
        )
    )
    totals = frame.groupby("bar", sort=False).agg(right=("end", "max"), total=("seconds", "sum")).reset_index()
    totals["text"] = [f"{seconds:,.3g} s" for seconds in totals["total"]]
    labels = (
        alt.Chart(totals)
        .mark_text(align="left", dx=6, fontSize=12)
        .encode(x="right:Q", y=alt.Y("bar:N", sort=bars, axis=by_line), text="text:N")
    )
    each = max(44 if len(bars) <= 12 else 30, LINE * lines + 6)
    svg = render((chart + labels).properties(width=WIDTH - 60 - names, height=max(each * len(bars), 60)))
    words = listed(
        str(bar).replace("\n", ", ") + ": " + ", ".join(f"{r.category} {r.own_mean_s:.3g} s" for r in rows_of(rows))
        for bar, rows in frame.groupby("bar", sort=False)
    )
    return Figure(
        "phases",
        "Where the step goes",
        "Mean own seconds per counted step. Hatched: the residual, the part of the step that no timer covers; "
        "below zero it is left of the axis." + left_out(len(groups), len(every), "bars", "phases"),
        words,
        svg,
        "phases",
    )
