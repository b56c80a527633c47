"""Draws seconds, rewards, mismatch and lengths over the training steps."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from analysis.figures.bars import phase_bars
from analysis.figures.drawing import (
    GREY,
    WIDTH,
    Figure,
    arm_scale,
    dash_scale,
    draw,
    listed,
    once,
    only_first,
    wrapped,
)
from analysis.mismatch import DEFINITIONS, logged_definition
from analysis.planned import PlanRead, factors_label
from analysis.quantiles import students_t
from analysis.wide import PHASE, REWARD, first_of
from trainers.registry import single_rewards

MANY_ARMS, MAX_PANELS = 6, 12
"""With more arms, each has its own panel: in one plot nobody could tell their lines apart."""
MAX_POINTS = 300
LEAST_RUNS = 3
"""An interval over two runs spans nine standard deviations to either side: it would hide the curve."""
WIDE_RANGE = 30
OF_ONE_STEP = "The verdict's interval is of the mean step: far narrower than single steps vary. "
MEAN_LENGTH, LONGEST = "mean_response_length", "max_response_length"


def over_steps(
    wide: pd.DataFrame,
    plan: PlanRead,
    quantities: Mapping[str, pd.Series],
    name: str,
    title: str,
    unit: str,
    caption: str = "",
    from_zero: bool = True,
) -> Figure | None:
    """Quantities, by the name of their panels, over the training steps; steps that do not count are grey."""
    many, parts, texts = wide["arm"].nunique() > MANY_ARMS, [], []
    # Without the other columns: of 1,000 runs they take 100 MB.
    steps = wide[["factors", "arm", "run_id", "step", "counted"]]
    for quantity, values in quantities.items():
        known = steps.assign(value=pd.to_numeric(values, errors="coerce").astype(float))
        known = known[np.isfinite(known["value"])].astype({"counted": bool})
        lines = curve_lines(known)
        places = zip(lines["arm"], lines["factors"], strict=True)
        names = [filter(None, (quantity, factors_label(key), arm if many else "")) for arm, key in places]
        parts.append(lines.assign(panel=[wrapped(" · ".join(each), 36) if name else "" for each in names]))
        medians = known[known["counted"]].groupby("arm", sort=False)["value"].median()
        texts += [f"{quantity} of {arm}: median {v:.4g}".removeprefix(" of ") for arm, v in medians.items()]
    frame = pd.concat(parts, ignore_index=True)
    if frame.empty:
        return None
    if from_zero:
        # Of few runs the interval of seconds or tokens may reach below what there can be.
        frame["low"] = frame["low"].clip(lower=min(0.0, float(frame["value"].min())))
    panels = list(frame["panel"].unique())
    frame = frame[frame["panel"].isin(panels[:MAX_PANELS])]
    how = "One line a run. "
    if (frame["line"] == frame["arm"]).any():
        how = f"Mean over an arm's runs; the band is its 95% interval, where {LEAST_RUNS} runs or more have the step. "
    size = (WIDTH, 240) if len(panels) == 1 else ((WIDTH - 90) / 2, 130)
    own = {"y": "independent"} if len(quantities) > 1 else {}
    return Figure(
        name,
        title,
        f"{caption}{how}Grey: steps that do not count." + only_first(MAX_PANELS, len(panels), "panels", "steps"),
        f"{title}, {unit}, over training steps. {listed(texts)}",
        draw(_rows(frame), _line_layers(frame, plan, unit, from_zero), size, own, columns=2),
    )


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(frame.to_json(orient="records", double_precision=15))
    return found


def curve_lines(frame: pd.DataFrame) -> pd.DataFrame:
    """The `value` over the steps (columns: factors, arm, line, step, value, low, high, counted, kept).

    One line a run, or from three runs an arm on their mean with its 95% interval. Long runs are averaged in bins.
    """
    width = math.ceil(frame["step"].max() / MAX_POINTS) if len(frame) else 1
    if width > 1:
        frame = frame.assign(step=((frame["step"] - 1) // width) * width + (width + 1) / 2)
    as_means = frame.groupby(["factors", "arm"])["run_id"].nunique().max() >= LEAST_RUNS
    line = ["factors", "arm", *([] if as_means else ["run_id"]), "step"]
    # A point that has counted steps uses only those.
    frame = frame[frame["counted"] | ~frame.groupby(line)["counted"].transform("any")]
    by_run = frame.groupby(["factors", "arm", "run_id", "step"], sort=False, as_index=False)
    each = by_run.agg(value=("value", "mean"), counted=("counted", "any"))
    points = each.groupby(line, sort=False, as_index=False).agg(
        value=("value", "mean"), sd=("value", "std"), runs=("value", "size"), counted=("counted", "any")
    )
    reach = {n: students_t(n - 1) / math.sqrt(n) if n >= LEAST_RUNS else math.nan for n in points["runs"].unique()}
    half, kept = points["sd"] * points["runs"].map(reach), points["value"].where(points["counted"])
    return points.assign(line=points[line[-2]], kept=kept, low=kept - half, high=kept + half)


def _line_layers(frame: pd.DataFrame, plan: PlanRead, unit: str, from_zero: bool) -> list[Any]:
    """The warm-up's background, all values in grey, and the counted ones in the arm's colour."""
    log = from_zero and 0 < WIDE_RANGE * frame["value"].min() < frame["value"].max()
    title = f"{unit} (log scale)" if log else unit
    scale = alt.Scale(type="log", nice=False) if log else alt.Scale(zero=from_zero)
    y_axis = alt.Axis(tickCount=5, labelExpr="format(datum.value, ',')", labelOverlap="greedy")
    x_axis = alt.Axis(tickMinStep=1, format=",d", labelFlush=False, labelOverlap="greedy", tickCount=8)
    x = alt.X("step:Q", title="training step", axis=x_axis, scale=alt.Scale(nice=False, zero=False))
    base, colours = alt.Chart().encode(x=x, detail=alt.Detail("line:N")), _colours(plan, frame)

    def y(field: str) -> Any:
        return alt.Y(f"{field}:Q", title=title, scale=scale, axis=y_axis)

    layers: list[Any] = []
    if plan.warmup_steps:
        first, last = float(frame["step"].min()), float(frame["step"].max())
        ends = {"x": alt.XDatum(first), "x2": alt.X2Datum(min(plan.warmup_steps + 0.5, last))}
        layers.append(once().mark_rect(color=GREY, opacity=0.16).encode(**ends))
    layers.append(base.mark_line(color=GREY, strokeWidth=1).encode(y=y("value")))
    if frame["low"].notna().any():
        layers.append(base.mark_area(opacity=0.18).encode(y=y("low"), y2=alt.Y2("high"), color=colours["color"]))
    lines = base.mark_line(strokeWidth=2, point=alt.OverlayMarkDef(size=14) if len(frame) <= 200 else False)
    layers.append(lines.encode(y=y("kept"), **colours))
    if not frame["counted"].all():
        grey = base.transform_filter("!datum.counted").mark_point(color=GREY, filled=True, size=18, opacity=1)
        layers.append(grey.encode(y=y("value")))
    return layers


def _colours(plan: PlanRead, frame: pd.DataFrame) -> dict[str, Any]:
    """The arms' colours and dashes; in its own panel an arm needs no legend."""
    drawn = [arm for arm in plan.arms if arm in set(frame["arm"])]
    lines = alt.Legend(symbolType="stroke", symbolSize=300, columns=3, labelLimit=190, values=drawn)
    legend = lines if len(drawn) <= MANY_ARMS else None
    return {
        "color": alt.Color("arm:N", scale=arm_scale(plan.arms), legend=legend),
        "strokeDash": alt.StrokeDash("arm:N", scale=dash_scale(plan.arms), legend=legend),
    }


def reward_figure(wide: pd.DataFrame, plan: PlanRead) -> Figure | None:
    """The score over the steps; with several rewards a panel for each of them, too."""
    single = single_rewards(map(str, wide.columns))
    score = {"score" if len(single) > 1 else "": wide[REWARD]} if REWARD in wide else {}
    if len(single) <= 1:
        return over_steps(wide, plan, score, "reward", "Reward", "mean reward", from_zero=False) if score else None
    caption = "The score is the weighted sum of the rewards. Each reward is before its weight, over the completions "
    caption += "that have a value. "
    quantities = score | {name: first_of(wide, columns) for name, columns in single.items()}
    return over_steps(wide, plan, quantities, "reward", "Rewards", "mean reward", caption, from_zero=False)


def length_figure(wide: pd.DataFrame, plan: PlanRead) -> Figure | None:
    """The mean and the longest response of each step."""
    names = {"mean": MEAN_LENGTH, "longest": LONGEST}
    quantities = {name: wide[column] for name, column in names.items() if column in wide}
    title, caption = "How long the responses are", "A synchronous step waits for its longest response. "
    return over_steps(wide, plan, quantities, "response-length", title, "tokens", caption) if quantities else None


def figures_of(plan: PlanRead, tables: Mapping[str, pd.DataFrame]) -> list[Figure]:
    """The figures of a report's tables (`Content`), in order, without those that have no data."""
    wide = tables["steps"]
    if not len(wide):
        return []
    made = [phase_bars(plan, tables)]
    # One step needs no figure over the steps.
    if wide["run_id"].duplicated().any():
        seconds = {"": wide[PHASE + "step"]}
        made += [
            over_steps(wide, plan, seconds, "step-time", "Seconds of each step", "seconds per step", OF_ONE_STEP),
            reward_figure(wide, plan),
            _mismatch_figure(wide, plan),
            length_figure(wide, plan),
        ]
    return [figure for figure in made if figure is not None]


def _mismatch_figure(wide: pd.DataFrame, plan: PlanRead) -> Figure | None:
    name = logged_definition(wide)
    title = "How far engine and trainer are apart"
    return over_steps(wide, plan, {"": wide[name]}, "mismatch", title, DEFINITIONS[name]) if name else None
