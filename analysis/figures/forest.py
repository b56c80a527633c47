"""How the four estimates of an arm's speed lie beside each other."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import pandas as pd

from analysis.drawing import GREY, WIDTH, Figure, arm_scale, render
from analysis.figures.estimate_rows import (
    NO_INTERVAL,
    RESOLVED,
    SHAPES,
    UNRESOLVED,
    Band,
    comparable,
    interval_or_none,
    label_of,
    noise_band,
    shape_of,
)
from analysis.figures.panels import (
    interval_text,
    left_out,
    listed,
    panel_name,
    panel_title,
    ratio_axis,
    ratio_domain,
    stacked,
)
from analysis.rows import rows_of
from analysis.runs import Plan

MAX_PANELS = 20
ROW = 22
PLOT_WIDTH = 400


def _rows(rows: pd.DataFrame) -> pd.DataFrame:
    """One panel's estimates: label, value, low, high, shape, text; without a value, text is why."""
    drawable = set(comparable(rows).index)
    found = []
    for row in rows_of(rows):
        if row.Index in drawable:
            low, high = interval_or_none(row)
            sign = " ~" if row.verdict == "~" else ""
            text = interval_text(float(row.value), low, high) + sign
            found.append((label_of(row.estimate), float(row.value), low, high, shape_of(row.verdict, low, high), text))
        else:
            why = getattr(row, "why", "")
            text = f"× {why}" if isinstance(why, str) and why else "× not comparable"
            found.append((label_of(row.estimate), math.nan, math.nan, math.nan, "", text))
    return pd.DataFrame(found, columns=["label", "value", "low", "high", "shape", "text"])


def _chart(
    arm: str, factors: str, frame: pd.DataFrame, plan: Plan, domain: tuple[float, float], band: Band | None, last: bool
) -> Any:
    x_title = f"times as fast as {plan.baseline} (log scale)" if last else None
    y = alt.Y(
        "label:N", sort=list(frame["label"]), title=None, axis=alt.Axis(ticks=False, domain=False, labelLimit=170)
    )

    def x(field: str) -> Any:
        found = ratio_axis(alt.X, field, domain, x_title)
        found.axis.labels = found.axis.ticks = found.axis.domain = last
        return found

    layers: list[Any] = []
    if band:
        layers.append(
            alt.Chart(pd.DataFrame({"low": [band.low], "high": [band.high]}))
            .mark_rect(color=GREY, opacity=0.28)
            .encode(x=x("low:Q"), x2="high:Q")
        )
    one = alt.Chart(pd.DataFrame({"one": [1.0]})).mark_rule(color="currentColor", strokeWidth=1.2)
    layers.append(one.encode(x=x("one:Q")))
    base = alt.Chart(frame.assign(arm=arm))
    colour = alt.Color("arm:N", scale=arm_scale(plan), legend=None)
    valued = base.transform_filter("isValid(datum.value)")
    ranged = base.transform_filter("isValid(datum.low)")
    layers.append(ranged.mark_rule(strokeWidth=2.5).encode(x=x("low:Q"), x2="high:Q", y=y, color=colour))
    kinds = list(SHAPES)
    shape = alt.Shape("shape:N", scale=alt.Scale(domain=kinds, range=[SHAPES[k] for k in kinds]), legend=None)
    solid = valued.transform_filter(alt.datum.shape == RESOLVED)
    hollow = valued.transform_filter(alt.datum.shape != RESOLVED)
    layers.append(
        solid.mark_point(filled=True, size=90, opacity=1).encode(x=x("value:Q"), y=y, shape=shape, color=colour)
    )
    # The page shows through: what is not resolved is an outline.
    layers.append(
        hollow.mark_point(filled=False, size=90, strokeWidth=2, opacity=1).encode(
            x=x("value:Q"), y=y, shape=shape, color=colour
        )
    )
    right = valued.mark_text(align="left", fontSize=12, limit=170).encode(
        x=alt.value(PLOT_WIDTH + 8), y=y, text="text:N"
    )
    without = base.transform_filter("!isValid(datum.value)")
    why = without.mark_text(align="left", fontSize=12, limit=PLOT_WIDTH + 130).encode(
        x=alt.value(6), y=y, text="text:N"
    )
    name = panel_name(arm, factors)
    return alt.layer(*layers, right, why).properties(
        width=PLOT_WIDTH, height=ROW * len(frame), title=panel_title(name, WIDTH)
    )


def estimates_figure(estimates: pd.DataFrame, plan: Plan, noise: pd.DataFrame | None = None) -> Figure | None:
    """Every estimate with its interval, by arm; what is not resolved or not comparable has another shape."""
    if estimates.empty:
        return None
    panels = [(str(f), str(a), _rows(rows)) for (f, a), rows in estimates.groupby(["factors", "arm"], sort=False)]
    drawn = panels[:MAX_PANELS]
    bands = {factors: noise_band(noise, factors) for factors, _, _ in drawn}
    shown = [v for _, _, frame in drawn for v in frame[["value", "low", "high"]].to_numpy(float).ravel()]
    shown += [end for band in bands.values() if band for end in (band.low, band.high)]
    domain = ratio_domain(shown)
    charts = [
        _chart(arm, factors, frame, plan, domain, bands[factors], n == len(drawn) - 1)
        for n, (factors, arm, frame) in enumerate(drawn)
    ]
    words = [
        f"{panel_name(arm, factors)}: " + ", ".join(f"{r.label} {r.text}" for r in rows_of(frame))
        for factors, arm, frame in panels
    ]
    shapes = {shape for _, _, frame in drawn for shape in frame["shape"]}
    meanings = [
        ("Filled circle: the 95% interval does not touch 1. ", RESOLVED in shapes),
        ("Hollow diamond and ~: not resolved, the interval includes 1. ", UNRESOLVED in shapes),
        ("Hollow triangle: no interval can be given. ", NO_INTERVAL in shapes),
        ("×: not comparable, and why. ", "" in shapes),
        (
            "Grey band: the A/A noise, how far two runs of one and the same arm lie apart. ",
            any(bands.values()),
        ),
    ]
    caption = f"Right of the line at 1 the arm is faster than {plan.baseline}. " + "".join(
        text for text, there in meanings if there
    )
    cut = left_out(len(drawn), len(panels), "arms and factor combinations", "estimates")
    return Figure(
        "estimates",
        "Four estimates of speed",
        caption.strip() + cut,
        f"Speed against {plan.baseline}, with 95% intervals. {listed(words)}",
        render(stacked(charts, spacing=10)),
        "estimates",
    )
