"""How a quantity goes over the training steps."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import pandas as pd

from analysis.figures.drawing import GREY, HEIGHT, WIDTH, Figure, arm_scale, dash_scale, render
from analysis.figures.panels import ARM_LEGEND, MANY_ARMS, log_ticks, panels
from analysis.figures.thinning import series, wants_log
from analysis.runs import PlanRead

PANEL_WIDTH, PANEL_HEIGHT = 185, 110
MAX_PANELS = 24


def _layers(frame: pd.DataFrame, plan: PlanRead, x: Any, y: Any, band: bool, legend: Any) -> Any:
    """The lines, without their data: that may be one panel's or all's."""
    colour = alt.Color("arm:N", scale=arm_scale(plan), legend=legend)
    # An arm alone in its panel needs no dashes, which grey would show through.
    dash: Any = {"strokeDash": alt.StrokeDash("arm:N", scale=dash_scale(plan), legend=legend)} if legend else {}
    layers: list[Any] = []
    base = alt.Chart().encode(x=x)
    if plan.warmup_steps:
        end = min(plan.warmup_steps + 0.5, float(frame["step"].max()))
        span = alt.Chart(pd.DataFrame({"start": [float(frame["step"].min())], "end": [end]}))
        layers.append(span.mark_rect(color=GREY, opacity=0.16).encode(x=alt.X("start:Q"), x2="end:Q"))
    layers.append(base.mark_line(color=GREY, strokeWidth=1).encode(y=y("value:Q"), detail="line:N"))
    if band:
        layers.append(base.mark_area(opacity=0.18).encode(y=y("low:Q"), y2="high:Q", color=colour))
    layers.append(
        base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=14) if len(frame) <= 200 else False).encode(
            y=y("kept:Q"),
            color=colour,
            detail="line:N",
            **dash,
        )
    )
    if not frame["counted"].all():
        grey = base.transform_filter("!datum.counted").mark_point(color=GREY, filled=True, size=18, opacity=1)
        layers.append(grey.encode(y=y("value:Q")))
    return alt.layer(*layers)


def over_steps(
    wide: pd.DataFrame,
    plan: PlanRead,
    column: str,
    name: str,
    title: str,
    unit: str,
    *,
    log_if_wide: bool = False,
    from_zero: bool = True,
    caption: str = "",
    words: str = "",
) -> Figure | None:
    """A quantity over the training steps, by run or (many runs) by arm; what does not count is grey.

    With more arms than `MANY_ARMS` each has a panel of its own, all on the same axes. `caption` goes before
    the words on how it is drawn, `words` after the medians in the text alternative.
    """
    frame = series(wide, column)
    if frame.empty:
        return None
    each_run = not (frame["line"] == frame["arm"]).all()
    log = log_if_wide and wants_log(frame["value"])
    if log:
        frame = frame[frame["value"] > 0].copy()
    for shown, of in (("kept", "value"), ("low", "low"), ("high", "high")):
        frame[shown] = frame[of].where(frame["counted"])
    arms = [arm for arm in plan.arms if arm in set(frame["arm"])]
    x = alt.X(
        "step:Q",
        title="training step",
        axis=alt.Axis(tickMinStep=1, format=",d", labelFlush=False, labelOverlap="greedy"),
        scale=alt.Scale(nice=False, zero=False),
    )
    many = len(arms) > MANY_ARMS
    y_scale, y_axis = alt.Scale(zero=from_zero, nice=True), alt.Axis(tickCount=4 if many else 8)
    if log:
        ends = frame[["value", "low", "high"]].to_numpy(float)
        ends = ends[ends > 0]
        low, high = float(ends.min() / 1.05), float(ends.max() * 1.05)
        y_scale = alt.Scale(type="log", domain=[low, high], nice=False)
        y_axis = alt.Axis(values=log_ticks(low, high, 4 if many else 8), format="~g")
    scaled = f"{unit} (log scale)" if log else unit
    # Beside a small panel there is no room for it: the caption has it.
    y_title = None if many else scaled
    layered = _layers(
        frame,
        plan,
        x,
        lambda field: alt.Y(field, title=y_title, scale=y_scale, axis=y_axis),
        not each_run,
        None if many else ARM_LEGEND,
    )
    if many:
        drawn = arms[:MAX_PANELS]
        mine = frame[frame["arm"].isin(drawn)]
        mine = mine.assign(panel=mine["arm"].map(drawn.index))
        layered = layered.properties(width=PANEL_WIDTH, height=PANEL_HEIGHT)
        chart = panels(layered, mine, drawn, 3, PANEL_WIDTH).resolve_axis(x="shared")
    else:
        chart = layered.properties(data=frame, width=WIDTH, height=HEIGHT)
    how = "One line per run." if each_run else "Median over an arm's runs; the band holds 10% to 90% of them."
    if many:
        how += f" A panel for each arm, all on the same axes, in {scaled}."
    if len(arms) > MAX_PANELS:
        how += f" The first {MAX_PANELS} of {len(arms)} arms are drawn."
    if wide["factors"].nunique() > 1:
        how += " All factor combinations together."
    # Of all runs' steps, as the tables have it: a drawn line may be of many runs.
    values = wide.loc[wide["counted"].astype(bool), ["arm", column]].replace([math.inf, -math.inf], math.nan)
    medians = values.groupby("arm", sort=False)[column].median().dropna()
    told = "; ".join(f"{arm}: median {value:.4g}" for arm, value in medians.items())
    return Figure(
        name,
        title,
        f"{caption}{how} Grey: steps that do not count (warm-up, first step after a resume).",
        f"{title}, {unit}, over training steps. {told}{words}",
        render(chart),
        "steps",
    )
