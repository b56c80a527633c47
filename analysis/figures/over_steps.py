"""Draws quantities and rewards over the training steps, and how lengths are distributed, arm by arm.

What is drawn is reduced to few points, so that a page of 200 runs stays light.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from analysis.figures.drawing import GREY, HEIGHT, WIDTH, Figure, arm_scale, dash_scale, draw, log_ticks, once, panels
from analysis.logged_rewards import SINGLE_REWARD, first_of
from analysis.planned import PlanRead
from analysis.quantiles import students_t
from analysis.wide import REWARD
from common.verdicts import count_of
from trainers.registry import single_rewards

MANY_ARMS = 6
"""With more arms, each has its own panel: in one plot nobody could tell their lines apart."""
MAX_PANELS, MAX_REWARDS = 24, 8
PANEL_WIDTH = 185
# Names of arms often begin alike: a long one loses its middle, where Vega would cut its end.
_ENDS = "length(datum.label) > 22 ? slice(datum.label, 0, 9) + '…' + slice(datum.label, -12) : datum.label"
MAX_LINES = 8
MAX_POINTS = 300
BINS = 40
LEAST_RUNS = 3
"""An interval over two runs spans nine standard deviations to either side: it would hide the curve."""
COLUMNS = ["arm", "line", "step", "value", "low", "high", "counted"]
MEAN, LONGEST = "mean_response_length", "max_response_length"
LENGTHS = "response-length"
UNEQUAL_WORK = "A synchronous step waits for its longest response, so arms whose lengths differ did not do equal work."


def _arms(frame: pd.DataFrame, plan: PlanRead) -> list[str]:
    return [arm for arm in plan.arms if arm in set(frame["arm"])]


def _colours(plan: PlanRead, arms: Sequence[str]) -> dict[str, Any]:
    """The drawn arms' colours and dashes; in its own panel one needs no dashes, and grey would show through them."""
    legend = alt.Legend(
        symbolType="stroke", symbolSize=300, columns=3, labelLimit=150, labelExpr=_ENDS, values=list(arms)
    )
    if len(arms) > MANY_ARMS:
        return {"color": alt.Color("arm", type="nominal", scale=arm_scale(plan.arms), legend=None)}
    return {
        "color": alt.Color("arm", type="nominal", scale=arm_scale(plan.arms), legend=legend),
        "strokeDash": alt.StrokeDash("arm", type="nominal", scale=dash_scale(plan.arms), legend=legend),
    }


def _draw(frame: pd.DataFrame, layers: list[Any], arms: Sequence[str], panel_height: int) -> str:
    """All arms in one plot, or many arms in a panel each, all on the same axes."""
    if len(arms) <= MANY_ARMS:
        return draw(frame, layers, WIDTH, HEIGHT)
    drawn = arms[:MAX_PANELS]
    rows = frame[frame["arm"].isin(drawn)]
    frame = rows if "panel" in rows else rows.assign(panel=rows["arm"].map(drawn.index))
    return draw(frame, layers, PANEL_WIDTH, panel_height, panels(drawn, 3, PANEL_WIDTH, shared_x=True))


def _in_panels(quantity: str, arms: Sequence[str]) -> str:
    """A caption's sentences on the panels of many arms."""
    more = f" The first {MAX_PANELS} of {len(arms)} arms are drawn." if len(arms) > MAX_PANELS else ""
    return f" A panel for each arm, all on the same axes: {quantity}.{more}"


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
    even: float | None = None,
    caption: str = "",
) -> Figure | None:
    """A quantity over the training steps, by run or (many runs) by arm; steps that do not count are grey.

    With `interval`, an arm with several runs is their mean with its 95% interval over runs, unless there is a sweep.
    `even` is the value of a straight line. `caption` comes before the sentences on the lines.
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
    # A small panel has no room for the axis title: the caption has it.
    y = _y_of(frame, None if many else scaled, 4 if many else 8, log, from_zero)
    one = once().mark_rule(color="currentColor", strokeWidth=1.2)
    rule = [] if even is None else [one.encode(y=alt.YDatum(even))]
    lines = _lines_text(each_run, means is not None)
    if many:
        lines += _in_panels(scaled, arms)
    if wide["factors"].nunique() > 1:
        lines += " All factor combinations together."
    return Figure(
        name,
        title,
        f"{caption}{lines} Grey: steps that do not count (warm-up, first step after a resume).",
        f"{title}, {unit}, over training steps. {_medians_text(wide, column)}",
        _draw(frame, [*rule, *_lines(frame, plan, y, not each_run, arms)], arms, 110),
    )


def _medians_text(wide: pd.DataFrame, column: str) -> str:
    """Medians over all runs' steps, as in the tables: a drawn line may be of many runs."""
    values = wide.loc[wide["counted"].astype(bool), ["arm", column]].replace([math.inf, -math.inf], math.nan)
    medians = values.groupby("arm", sort=False)[column].median().dropna()
    return "; ".join(f"{arm}: median {value:.4g}" for arm, value in medians.items())


def _lines_text(each_run: bool, means: bool) -> str:
    if means:
        return f"Mean over an arm's runs; the band is its 95% interval, where {LEAST_RUNS} runs or more have the step."
    return "One line per run." if each_run else "Median over an arm's runs; the band is their 10% to 90% range."


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


def _lines(frame: pd.DataFrame, plan: PlanRead, y: Callable[[str], Any], band: bool, arms: Sequence[str]) -> list[Any]:
    """The warm-up's background, all values in grey, and the counted ones in the arm's colour."""
    colours, base = _colours(plan, arms), alt.Chart().encode(x=_step_axis())
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


def length_figure(wide: pd.DataFrame, plan: PlanRead, counts: pd.DataFrame) -> Figure | None:
    """Distribution of response lengths by arm (`length_counts`), or their mean over the steps without any."""
    frame, title = length_histogram(counts), "How long the responses are"
    if frame.empty:
        column, what = (MEAN, "mean") if MEAN in wide else (LONGEST, "longest")
        caption = f"No distribution: the logs have no single lengths. {UNEQUAL_WORK} "
        return over_steps(wide, plan, column, LENGTHS, title, f"{what} response of a step, tokens", caption=caption)
    finite = counts[np.isfinite(counts["value"].astype(float))]
    texts = (
        f"{arm}: mean {np.average(of['value'], weights=of['count']):.4g}, longest {of['value'].max():.0f}, "
        f"{count_of(int(of['count'].sum()), 'response')}"
        for arm, of in finite.groupby("arm", sort=False)
    )
    arms = _arms(frame, plan)
    many, share = len(arms) > MANY_ARMS, "share of the arm's responses"
    x_axis = alt.Axis(labelFlush=False, labelOverlap="greedy", tickCount=3 if many else 8)
    y_axis = alt.Axis(format="%", tickCount=4) if many else alt.Axis(format="%")
    x_scale = alt.Scale(zero=False, nice=not many)
    lines = alt.Chart().mark_line(interpolate="step-after", strokeWidth=2)
    encoded = lines.encode(
        x=alt.X("start:Q", title="response length, tokens", scale=x_scale, axis=x_axis),
        y=alt.Y("share:Q", title=None if many else share, axis=y_axis),
        order=alt.Order("start:Q"),
        **_colours(plan, arms),
    )
    return Figure(
        LENGTHS,
        title,
        f"All responses of the counted steps. {UNEQUAL_WORK}" + (_in_panels(share, arms) if many else ""),
        f"Distribution of response lengths in tokens. {'; '.join(texts)}",
        _draw(frame, [encoded], arms, 100),
    )


def reward_figures(wide: pd.DataFrame, plan: PlanRead, rewards: pd.DataFrame) -> list[Figure]:
    """The score over the steps; with several rewards also each of them, at most `MAX_REWARDS`.

    `rewards` is the table of analysis/logged_rewards.py, which has their weights.
    """
    single = single_rewards(map(str, wide.columns))
    weights = {name: _weight(rewards, name) for name in single}

    def curve(frame: pd.DataFrame, column: str, name: str, title: str, unit: str, caption: str) -> Figure | None:
        return over_steps(frame, plan, column, name, title, unit, from_zero=False, interval=True, caption=caption)

    caption = ""
    if len(single) > 1 and all(weights.values()):
        caption = f"The score, a weighted sum: {', '.join(f'{name} × {weight}' for name, weight in weights.items())}. "
    drawn = [curve(wide, REWARD, "reward", "Reward", "mean reward", caption)]
    for reward, columns in list(single.items())[:MAX_REWARDS] if len(single) > 1 else ():
        name = SINGLE_REWARD + re.sub(r"[^A-Za-z0-9_-]+", "-", reward)
        weight = f"Its weight in the score is {weights[reward]}; the curve is without it. " if weights[reward] else ""
        caption = f"{weight or 'Without its weight. '}Completions without a value are left out. "
        frame = wide.assign(**{"single reward": first_of(wide, columns)})
        drawn.append(curve(frame, "single reward", name, f"Reward: {reward}", f"mean of {reward}", caption))
    return [figure for figure in drawn if figure is not None]


def _weight(rewards: pd.DataFrame, name: str) -> str:
    """A reward's weights over arms and factor combinations; "" where a run does not record it."""
    weights = rewards.loc[rewards["reward"] == name, "weight"]
    if weights.empty or weights.isna().any():
        return ""
    return " or ".join(f"{weight:g}" for weight in dict.fromkeys(weights.astype(float)))


def binned(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with its steps rounded to the middle of at most `MAX_POINTS` equal bins."""
    last = int(frame["step"].max()) if len(frame) else 0
    width = math.ceil(last / MAX_POINTS) if last else 1
    if width == 1:
        return frame
    return frame.assign(step=((frame["step"] - 1) // width) * width + (width + 1) / 2)


def series(wide: pd.DataFrame, column: str) -> pd.DataFrame:
    """A quantity over the steps (columns: `COLUMNS`), without values that are not finite.

    One line per run, or (with more than `MAX_LINES` runs) one per arm: the median over its runs with the 10% to 90%
    range.
    """
    frame = _values(wide, column)
    if frame.empty:
        return pd.DataFrame(columns=COLUMNS)
    frame["line"] = frame["run_id"] if wide["run_id"].nunique() <= MAX_LINES else frame["arm"]
    point = ["arm", "line", "step"]
    groups = _counted_first(frame, point).groupby(point)
    summary = groups["value"].quantile(np.array([0.1, 0.5, 0.9])).unstack()
    summary.columns = pd.Index(["low", "value", "high"])
    return summary.assign(counted=groups["counted"].any()).reset_index()[COLUMNS]


def over_runs(wide: pd.DataFrame, column: str) -> pd.DataFrame | None:
    """A quantity over the steps (columns: `COLUMNS`): an arm's mean over its runs, with the mean's 95% interval.

    None with a sweep, and where no arm has `LEAST_RUNS` runs. A step with fewer runs has no interval.
    """
    if column not in wide or wide["factors"].nunique() > 1:
        return None
    if wide.groupby("arm")["run_id"].nunique().max() < LEAST_RUNS:
        return None
    frame = _counted_first(_values(wide, column), ["arm", "step"])
    each = frame.groupby(["arm", "step", "run_id"]).agg({"value": "mean", "counted": "any"})
    means = each.groupby(["arm", "step"]).agg(
        value=("value", "mean"), sd=("value", "std"), runs=("value", "size"), counted=("counted", "any")
    )
    reach = {n: students_t(n - 1) / math.sqrt(n) if n >= LEAST_RUNS else math.nan for n in means["runs"].unique()}
    half = means["sd"] * means["runs"].map(reach)
    means = means.assign(low=means["value"] - half, high=means["value"] + half).reset_index()
    return means.assign(line=means["arm"])[COLUMNS]


def _values(wide: pd.DataFrame, column: str) -> pd.DataFrame:
    """The finite values of a column at binned steps; none without the column."""
    if column not in wide:
        return pd.DataFrame()
    frame = wide[["arm", "run_id", "step"]].assign(
        counted=wide["counted"].astype(bool), value=wide[column].astype(float)
    )
    return binned(frame[np.isfinite(frame["value"])])


def _counted_first(frame: pd.DataFrame, point: list[str]) -> pd.DataFrame:
    """The rows to draw: a point that has counted steps uses only those."""
    return frame[frame["counted"] | ~frame.groupby(point)["counted"].transform("any")]


def length_histogram(lengths: pd.DataFrame) -> pd.DataFrame:
    """Share of an arm's responses by length (`length_counts`), in bins that all arms share.

    Columns: arm, start, end, share.
    """
    names = ["arm", "start", "end", "share"]
    values = lengths["value"].astype(float)
    lengths = lengths[np.isfinite(values)]
    if lengths.empty:
        return pd.DataFrame(columns=names)
    low, high = float(lengths["value"].min()), float(lengths["value"].max())
    # Lengths are whole tokens: a fractional bin would have alternating numbers of lengths.
    width = max(1, math.ceil((high - low + 1) / BINS))
    edges = np.arange(math.floor(low), high + 1 + width, width)
    parts = []
    for arm, group in lengths.groupby("arm", sort=False):
        counts, _ = np.histogram(group["value"].astype(float), bins=edges, weights=group["count"])
        # A last bin of no width closes the outline.
        shares, ends = np.append(counts / group["count"].sum(), 0.0), np.append(edges[1:], edges[-1])
        parts.append(pd.DataFrame({"arm": arm, "start": edges, "end": ends, "share": shares}))
    return pd.concat(parts, ignore_index=True)


def wants_log(values: pd.Series) -> bool:
    """Whether positive values span more than a factor of ten between their 5% and 95% quantiles."""
    positive = values[values > 0]
    return len(positive) > 0 and bool(positive.quantile(0.95) > 10 * positive.quantile(0.05))
