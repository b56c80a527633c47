"""How response lengths and rewards are spread."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from analysis.figures.drawing import GREY, HEIGHT, WIDTH, Figure, arm_scale, dash_scale, render
from analysis.figures.panels import ARM_LEGEND, MANY_ARMS, panels
from analysis.figures.thinning import cumulative_shares, length_histogram, series
from analysis.reward import REWARD
from analysis.runs import PlanRead
from common.verdicts import count_of

PANEL_WIDTH, PANEL_HEIGHT = 185, 100
MAX_PANELS = 24
LENGTH_SHARE = "share of the arm's responses"
REWARD_SHARE = "share of the arm's steps up to that reward"


def _by_arm(frame: pd.DataFrame, plan: PlanRead, x: str, x_title: str, y: str, y_title: str) -> Any:
    """Step lines of all arms in one plot, or (many arms) one panel each with the baseline's in grey."""
    arms = [arm for arm in plan.arms if arm in set(frame["arm"])]
    order = alt.Order("order:Q")
    if len(arms) <= MANY_ARMS:
        return (
            alt.Chart(frame)
            .mark_line(interpolate="step-after", strokeWidth=2)
            .encode(
                x=alt.X(
                    f"{x}:Q",
                    title=x_title,
                    scale=alt.Scale(zero=False),
                    axis=alt.Axis(labelFlush=False, labelOverlap="greedy", tickCount=8),
                ),
                y=alt.Y(f"{y}:Q", title=y_title, axis=alt.Axis(format="%")),
                color=alt.Color("arm:N", scale=arm_scale(plan), legend=ARM_LEGEND),
                strokeDash=alt.StrokeDash("arm:N", scale=dash_scale(plan), legend=ARM_LEGEND),
                order=order,
            )
            .properties(width=WIDTH, height=HEIGHT)
        )
    drawn = arms[:MAX_PANELS]
    ghost = frame[frame["arm"] == plan.baseline]
    everything = pd.concat(
        [
            rows.assign(panel=n, ghost=grey)
            for n, arm in enumerate(drawn)
            for rows, grey in ((ghost, True), (frame[frame["arm"] == arm], False))
        ],
        ignore_index=True,
    )
    x_axis = alt.X(
        f"{x}:Q",
        title=x_title,
        scale=alt.Scale(nice=False, zero=False),
        axis=alt.Axis(tickCount=3, labelOverlap="greedy"),
    )
    # Beside a small panel there is no room for the title: the caption has it.
    y_axis = alt.Y(f"{y}:Q", title=None, axis=alt.Axis(format="%", tickCount=4))
    base = alt.Chart().encode(x=x_axis, y=y_axis, order=order)
    grey = base.transform_filter(alt.datum.ghost).mark_line(interpolate="step-after", strokeWidth=1.5, color=GREY)
    mine = base.transform_filter("!datum.ghost").mark_line(interpolate="step-after", strokeWidth=2)
    coloured = mine.encode(color=alt.Color("arm:N", scale=arm_scale(plan), legend=None))
    layered = alt.layer(grey, coloured).properties(width=PANEL_WIDTH, height=PANEL_HEIGHT)
    return panels(layered, everything, drawn, 3, PANEL_WIDTH).resolve_axis(x="shared")


def _many(plan: PlanRead, frame: pd.DataFrame, y_title: str) -> str:
    arms = frame["arm"].nunique()
    if arms <= MANY_ARMS:
        return ""
    cut = f" The first {MAX_PANELS} of {arms} arms are drawn." if arms > MAX_PANELS else ""
    return f" A panel for each arm, all on the same axes: {y_title}; grey: {plan.baseline}.{cut}"


def length_figure(lengths: pd.DataFrame, plan: PlanRead) -> Figure | None:
    """Distribution of response lengths by arm."""
    frame = length_histogram(lengths)
    if frame.empty:
        return None
    frame = frame.assign(order=frame["start"])
    chart = _by_arm(frame, plan, "start", "response length, tokens", "share", LENGTH_SHARE)
    finite = lengths[np.isfinite(lengths["value"].astype(float))]
    stats = finite.groupby("arm", sort=False)["value"].agg(["mean", "max", "size"])
    words = "; ".join(
        f"{arm}: mean {s['mean']:.4g}, longest {s['max']:.0f}, {count_of(int(s['size']), 'response')}"
        for arm, s in stats.iterrows()
    )
    return Figure(
        "response-length",
        "How long the responses are",
        "All responses of the counted steps. A synchronous step waits for its longest response, so arms whose "
        "lengths differ did not do equal work." + _many(plan, frame, LENGTH_SHARE),
        f"Distribution of response lengths in tokens. {words}",
        render(chart),
    )


MEAN, LONGEST = "mean_response_length", "max_response_length"


def length_scalars_figure(wide: pd.DataFrame, plan: PlanRead) -> Figure | None:
    """Mean and longest response over the steps, where single lengths were not logged."""
    parts = []
    for column, what in ((LONGEST, "longest"), (MEAN, "mean")):
        found = series(wide[wide["counted"].astype(bool)], column)
        parts.append(found.assign(what=what, line=what + "/" + found["line"].astype(str)))
    frame = pd.concat([p for p in parts if len(p)], ignore_index=True) if any(map(len, parts)) else pd.DataFrame()
    if frame.empty:
        return None
    kinds = list(frame["what"].unique())
    chart = (
        alt.Chart(frame)
        .mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=14) if len(frame) <= 400 else False)
        .encode(
            x=alt.X(
                "step:Q",
                title="training step",
                axis=alt.Axis(tickMinStep=1, format=",d", labelFlush=False),
                scale=alt.Scale(nice=False, zero=False),
            ),
            y=alt.Y("value:Q", title="response length, tokens", scale=alt.Scale(zero=True)),
            color=alt.Color("arm:N", scale=arm_scale(plan), legend=ARM_LEGEND),
            strokeDash=alt.StrokeDash(
                "what:N",
                scale=alt.Scale(domain=kinds, range=[[1, 0] if k == "mean" else [2, 2] for k in kinds]),
                # Beside points Vega makes a legend of points: a fill without a stroke, which for a line is nothing.
                legend=alt.Legend(
                    symbolType="stroke",
                    symbolSize=300,
                    symbolStrokeColor="currentColor",
                    symbolFillColor="transparent",
                ),
            ),
            detail="line:N",
        )
        .properties(width=WIDTH, height=HEIGHT)
    )
    counted = wide[wide["counted"].astype(bool)]
    words = []
    for arm, rows in counted.groupby("arm", sort=False):
        told = []
        for column, how in ((MEAN, "mean"), (LONGEST, "longest")):
            values = pd.to_numeric(rows[column], errors="coerce") if column in rows else pd.Series(dtype=float)
            values = values[np.isfinite(values)]
            if len(values):
                told.append(f"{how} {values.mean() if how == 'mean' else values.max():.4g}")
        if told:
            words.append(f"{arm}: {', '.join(told)}")
    return Figure(
        "response-length",
        "How long the responses are",
        "No distribution: the single lengths were not logged, only " + " and ".join(kinds[::-1]) + " of each step. A "
        "synchronous step waits for its longest response, so arms whose lengths differ did not do equal work.",
        "Response lengths in tokens over the counted steps; no distribution is known. " + "; ".join(words),
        render(chart),
        "steps",
    )


def reward_distribution(wide: pd.DataFrame, plan: PlanRead) -> Figure | None:
    """How the counted steps' mean rewards are spread, by arm, as cumulative shares."""
    if REWARD not in wide:
        return None
    counted = wide[wide["counted"].astype(bool)]
    rewards = pd.DataFrame({"arm": counted["arm"], "value": pd.to_numeric(counted[REWARD], errors="coerce")})
    rewards = rewards[np.isfinite(rewards["value"])]
    frame = cumulative_shares(rewards)
    if frame.empty:
        return None
    chart = _by_arm(frame, plan, "value", "mean reward of a step", "share", REWARD_SHARE)
    stats = rewards.groupby("arm", sort=False)["value"].agg(["min", "median", "max", "size"])
    words = "; ".join(
        f"{arm}: from {s['min']:.4g} over the median {s['median']:.4g} to {s['max']:.4g}, "
        f"{count_of(int(s['size']), 'step')}"
        for arm, s in stats.iterrows()
    )
    return Figure(
        "reward-distribution",
        "How the rewards are spread",
        "Mean rewards of the counted steps: how large a share of an arm's steps had that reward or less. A curve "
        "further right means higher rewards. Rewards rise while a policy learns: arms compare where they trained the "
        "same steps." + _many(plan, frame, REWARD_SHARE),
        f"Cumulative distribution of the counted steps' mean rewards. {words}",
        render(chart),
        "steps",
    )
