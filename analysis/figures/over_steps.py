"""Draws quantities over the training steps, and how lengths are spread, arm by arm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from analysis.figures.drawing import GREY, HEIGHT, WIDTH, Figure, arm_scale, dash_scale, draw, once
from analysis.figures.panels import listed, log_ticks, panel_name, panels
from analysis.figures.thinning import LEAST_RUNS, length_histogram, over_runs, series, wants_log
from analysis.runs import PlanRead, rows_of
from analysis.stragglers import lengths_by_step, mean_and_longest
from common.verdicts import count_of

MANY_ARMS = 6
"""With more arms than that, each has a panel of its own: their lines could not be told apart in one."""
MAX_PANELS = 24
PANEL_WIDTH = 185
# Names of arms often begin alike: a long one loses its middle, where Vega would cut its end.
_ENDS = "length(datum.label) > 22 ? slice(datum.label, 0, 9) + '…' + slice(datum.label, -12) : datum.label"
ARM_LEGEND = alt.Legend(symbolType="stroke", symbolSize=300, columns=3, labelLimit=150, labelExpr=_ENDS)
MEAN, LONGEST, BUBBLE = "mean_response_length", "max_response_length", "length_bubble"
LENGTH_SHARE = "share of the arm's responses"


def _arms(frame: pd.DataFrame, plan: PlanRead) -> list[str]:
    return [arm for arm in plan.arms if arm in set(frame["arm"])]


def _colours(plan: PlanRead, many: bool) -> dict[str, Any]:
    """An arm's colour, and its dashes; alone in its panel it needs none, which grey would show through."""
    colour = alt.Color("arm", type="nominal", scale=arm_scale(plan), legend=None if many else ARM_LEGEND)
    dash = alt.StrokeDash("arm", type="nominal", scale=dash_scale(plan), legend=ARM_LEGEND)
    return {"color": colour} if many else {"color": colour, "strokeDash": dash}


def _draw(frame: pd.DataFrame, layers: list[Any], arms: Sequence[str], panel_height: int) -> str:
    """All arms in one plot; where there are many a panel each, all on the same axes."""
    if len(arms) <= MANY_ARMS:
        return draw(frame, layers, WIDTH, HEIGHT)
    drawn = arms[:MAX_PANELS]
    mine = frame[frame["arm"].isin(drawn)]
    frame = mine if "panel" in mine else mine.assign(panel=mine["arm"].map(drawn.index))
    return draw(frame, layers, PANEL_WIDTH, panel_height, panels(drawn, 3, PANEL_WIDTH, shared_x=True))


def _first(arms: Sequence[str]) -> str:
    return f" The first {MAX_PANELS} of {len(arms)} arms are drawn." if len(arms) > MAX_PANELS else ""


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
    interval: bool = False,
    caption: str = "",
    words: str = "",
) -> Figure | None:
    """A quantity over the training steps, by run or (many runs) by arm; what does not count is grey.

    With `interval` an arm that has several runs is drawn as their mean with its 95% interval over runs, where nothing
    is swept. `caption` goes before the words on how it is drawn, `words` after the medians in the text alternative.
    """
    means = over_runs(wide, column) if interval else None
    frame = series(wide, column) if means is None else means
    if frame.empty:
        return None
    each_run = not (frame["line"] == frame["arm"]).all()
    log = log_if_wide and wants_log(frame["value"])
    frame = frame[frame["value"] > 0] if log else frame
    frame = frame.assign(
        **{shown: frame[of].where(frame["counted"]) for shown, of in (("kept", "value"), ("low", "low"))},
        high=frame["high"].where(frame["counted"]),
    )
    arms = _arms(frame, plan)
    many, scaled = len(arms) > MANY_ARMS, f"{unit} (log scale)" if log else unit
    # Beside a small panel there is no room for the title: the caption has it.
    y = _y_of(frame, None if many else scaled, 4 if many else 8, log, from_zero)
    how = _lines_are(each_run, means is not None)
    if many:
        how += f" A panel for each arm, all on the same axes, in {scaled}.{_first(arms)}"
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
        _draw(frame, _lines(frame, plan, y, not each_run, many), arms, 110),
        "steps",
    )


def _lines_are(each_run: bool, means: bool) -> str:
    if means:
        return f"Mean over an arm's runs; the band is its 95% interval, where {LEAST_RUNS} runs or more have the step."
    return "One line per run." if each_run else "Median over an arm's runs; the band holds 10% to 90% of them."


def _y_of(frame: pd.DataFrame, title: str | None, ticks: int, log: bool, from_zero: bool) -> Callable[[str], Any]:
    """The y channel of a field."""
    scale, axis = alt.Scale(zero=from_zero, nice=True), alt.Axis(tickCount=ticks)
    if log:
        ends = frame[["value", "low", "high"]].to_numpy(float)
        low, high = float(ends[ends > 0].min() / 1.05), float(ends[ends > 0].max() * 1.05)
        scale = alt.Scale(type="log", domain=[low, high], nice=False)
        axis = alt.Axis(values=log_ticks(low, high, ticks), format="~g")
    return lambda field: alt.Y(field, type="quantitative", title=title, scale=scale, axis=axis)


def _step_axis() -> Any:
    axis = alt.Axis(tickMinStep=1, format=",d", labelFlush=False, labelOverlap="greedy")
    scale = alt.Scale(nice=False, zero=False)
    return alt.X("step:Q", title="training step", axis=axis, scale=scale)


def _lines(frame: pd.DataFrame, plan: PlanRead, y: Callable[[str], Any], band: bool, many: bool) -> list[Any]:
    """The warm-up's ground, all values in grey, and those that count in the arm's colour."""
    colours, base = _colours(plan, many), alt.Chart().encode(x=_step_axis())
    layers: list[Any] = []
    if plan.warmup_steps:
        first, last = float(frame["step"].min()), float(frame["step"].max())
        ends = {"x": alt.XDatum(first), "x2": alt.X2Datum(min(plan.warmup_steps + 0.5, last))}
        layers.append(once().mark_rect(color=GREY, opacity=0.16).encode(**ends))
    layers.append(base.mark_line(color=GREY, strokeWidth=1).encode(y=y("value"), detail=alt.Detail("line:N")))
    if band:
        layers.append(base.mark_area(opacity=0.18).encode(y=y("low"), y2=alt.Y2("high"), color=colours["color"]))
    lines = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=14) if len(frame) <= 200 else False)
    layers.append(lines.encode(y=y("kept"), detail=alt.Detail("line:N"), **colours))
    if not frame["counted"].all():
        grey = base.transform_filter("!datum.counted").mark_point(color=GREY, filled=True, size=18, opacity=1)
        layers.append(grey.encode(y=y("value")))
    return layers


def with_length_bubble(wide: pd.DataFrame, lengths: pd.DataFrame | None = None) -> pd.DataFrame:
    """The frame with `length_bubble`: 1 - mean / longest response of a step, NaN where it cannot be one.

    From what the trainer logs of a step; where it logs neither, from the single lengths.
    """
    known = lengths if lengths is not None and len(lengths) else pd.DataFrame({"value": []})
    mean, longest = mean_and_longest(wide, lengths_by_step(known))
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
        known = stragglers.replace([math.inf, -math.inf], math.nan).dropna(subset=["straggler_ratio", BUBBLE])
        told = [
            f"{panel_name(r.arm, r.factors)}: longest over mean {r.straggler_ratio:.3g}, "
            f"length bubble {r.length_bubble:.3g}"
            for r in rows_of(known)
        ]
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


def spread(frame: pd.DataFrame, plan: PlanRead, x: str, x_title: str, y_title: str) -> tuple[str, str]:
    """Step lines of the shares of all arms, the baseline's in grey in the panels of many; and how that is drawn."""
    arms = _arms(frame, plan)
    many = len(arms) > MANY_ARMS
    layers: list[Any] = []
    base = alt.Chart().encode(
        x=alt.X(
            x,
            type="quantitative",
            title=x_title,
            scale=alt.Scale(zero=False, nice=not many),
            axis=alt.Axis(labelFlush=False, labelOverlap="greedy", tickCount=3 if many else 8),
        ),
        y=alt.Y(
            "share:Q",
            title=None if many else y_title,
            axis=alt.Axis(format="%", tickCount=4) if many else alt.Axis(format="%"),
        ),
        order=alt.Order("order:Q"),
    )
    mine = base.mark_line(interpolate="step-after", strokeWidth=2).encode(**_colours(plan, many))
    if not many:
        return _draw(frame, [mine], arms, HEIGHT), ""
    ghost = frame[frame["arm"] == plan.baseline].assign(ghost=True)
    parts = [(n, rows) for n, arm in enumerate(arms[:MAX_PANELS]) for rows in (ghost, frame[frame["arm"] == arm])]
    frame = pd.concat([rows.assign(panel=n) for n, rows in parts], ignore_index=True)
    frame["ghost"] = frame["ghost"].notna()
    grey = base.transform_filter(alt.datum.ghost).mark_line(interpolate="step-after", strokeWidth=1.5, color=GREY)
    layers = [grey, mine.transform_filter("!datum.ghost")]
    how = f" A panel for each arm, all on the same axes: {y_title}; grey: {plan.baseline}.{_first(arms)}"
    return _draw(frame, layers, arms, 100), how


def length_figure(lengths: pd.DataFrame, plan: PlanRead) -> Figure | None:
    """Distribution of response lengths by arm."""
    frame = length_histogram(lengths)
    if frame.empty:
        return None
    svg, how = spread(frame.assign(order=frame["start"]), plan, "start", "response length, tokens", LENGTH_SHARE)
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
        f"lengths differ did not do equal work.{how}",
        f"Distribution of response lengths in tokens. {words}",
        svg,
    )


def length_scalars_figure(wide: pd.DataFrame, plan: PlanRead) -> Figure | None:
    """Mean and longest response over the steps, where single lengths were not logged."""
    counted = wide[wide["counted"].astype(bool)]
    kinds = {"longest": LONGEST, "mean": MEAN}
    parts = [series(counted, column).assign(what=what) for what, column in kinds.items()]
    frame = pd.concat([p for p in parts if len(p)], ignore_index=True) if any(map(len, parts)) else pd.DataFrame()
    if frame.empty:
        return None
    frame["line"] = frame["what"] + "/" + frame["line"].astype(str)
    shown = list(frame["what"].unique())
    lines = (
        alt.Chart()
        .mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=14) if len(frame) <= 400 else False)
        .encode(
            x=_step_axis(),
            y=alt.Y("value:Q", title="response length, tokens", scale=alt.Scale(zero=True)),
            color=alt.Color("arm:N", scale=arm_scale(plan), legend=ARM_LEGEND),
            strokeDash=alt.StrokeDash(
                "what:N",
                scale=alt.Scale(domain=shown, range=[[1, 0] if kind == "mean" else [2, 2] for kind in shown]),
                # Beside points Vega makes a legend of points: a fill without a stroke, which for a line is nothing.
                legend=alt.Legend(
                    symbolType="stroke",
                    symbolSize=300,
                    symbolStrokeColor="currentColor",
                    symbolFillColor="transparent",
                ),
            ),
            detail=alt.Detail("line:N"),
        )
    )
    words = []
    for arm, rows in counted.groupby("arm", sort=False):
        told = []
        for kind, column in reversed(kinds.items()):
            values = pd.to_numeric(rows[column], errors="coerce") if column in rows else pd.Series(dtype=float)
            values = values[np.isfinite(values)]
            told += [f"{kind} {values.mean() if kind == 'mean' else values.max():.4g}"] if len(values) else []
        words += [f"{arm}: {', '.join(told)}"] if told else []
    return Figure(
        "response-length",
        "How long the responses are",
        f"No distribution: the single lengths were not logged, only {' and '.join(shown[::-1])} of each step. A "
        "synchronous step waits for its longest response, so arms whose lengths differ did not do equal work.",
        f"Response lengths in tokens over the counted steps; no distribution is known. {'; '.join(words)}",
        draw(frame, [lines], WIDTH, HEIGHT),
        "steps",
    )
