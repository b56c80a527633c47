"""Draws where the mean step goes: its categories as stacked bars, and its parts from the floor up as a waterfall."""

from __future__ import annotations

import itertools
import math
import textwrap
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from analysis.factors import factors_label
from analysis.figures.drawing import (
    CATEGORY_COLOURS,
    GREY,
    HATCHED,
    WIDTH,
    Figure,
    draw,
    left_out,
    listed,
    panel_name,
    panels,
    seconds_text,
)
from analysis.phases import RESIDUAL
from analysis.report.cells import MINUS, decimals
from analysis.runs import rows_of

MAX_BARS, MAX_PANELS, MAX_LISTED = 40, 8, 12
LINE, LETTERS = 14, 27
"""A bar's name: pixels between its lines, and letters in a line."""
UNSEEN_SHARE = 0.002
"""A negative time below this share of the longest bar is drawn as 0: it is no pixel wide, but shifts the axis."""
STEP = "mean step"
ROW = 21


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


def cascade(rows: pd.DataFrame) -> pd.DataFrame:
    """One arm's parts as bars: the whole step first, then each part from where the part before it ended.

    A negative part goes back to the left. A part without a finite number has no bar.
    """
    parts = [(r.part, r.label, float(r.seconds), r.kind) for r in rows_of(rows) if math.isfinite(r.seconds)]
    ends = [math.fsum(s for _, _, s, _ in parts[:n]) for n in range(len(parts) + 1)]
    step_s = ends[-1]
    bars = [("step", STEP, step_s, "step", 0.0, step_s)]
    bars += [(*part, start, end) for part, start, end in zip(parts, ends, ends[1:], strict=False)]
    frame = pd.DataFrame(bars, columns=["part", "label", "seconds", "kind", "start", "end"])
    # A label is a bar's place on the axis, so it must be unique.
    twice = frame["label"].duplicated(keep=False)
    frame["label"] = frame["label"].where(~twice, frame["label"] + " (" + frame["part"] + ")")
    colours = frame["part"].str.replace("_", " ").map(CATEGORY_COLOURS).fillna(CATEGORY_COLOURS["generation"])
    colours = colours.mask(frame["kind"] == "step", GREY).mask(frame["kind"] == "residual", HATCHED)
    return frame.assign(
        share=frame["seconds"] / step_s if step_s > 0 else math.nan,
        fill=colours,
        outline=colours.replace(HATCHED, "currentColor"),
        # The engine's time above the floor has the floor's colour, fainter.
        strength=[0.35 if kind in ("gap", "step") else 1.0 for kind in frame["kind"]],
        order=range(len(frame)),
        right=frame[["start", "end"]].max(axis=1),
        next=frame["label"].shift(-1),
    )


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high`, seven steps at most."""
    span = (high - low) / 7
    size = 10.0 ** math.floor(math.log10(span))
    step = next(m * size for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * size >= span)
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _steps(domain: tuple[float, float], ticks: list[float]) -> list[Any]:
    """The waterfall's layers: zero, the rules between bars, the bars, their numbers."""
    labels = alt.Axis(labelLimit=200, ticks=False, domain=False)
    y = alt.Y("label:N", sort=alt.EncodingSortField("order"), title=None, axis=labels)
    scale = alt.Scale(domain=list(domain), nice=False, zero=False)
    # The room for the numbers has no tick.
    axis = alt.Axis(values=ticks, labelFlush=False, offset=2, domain=False)
    x = alt.X("start:Q", title="mean seconds per step", scale=scale, axis=axis)
    base = alt.Chart()
    rule: dict[str, Any] = {"color": "currentColor", "opacity": 0.45, "strokeWidth": 1}
    zero = base.transform_filter("datum.kind === 'step'").mark_rule(**rule)
    joined = base.transform_filter("isValid(datum.next) && datum.kind !== 'step'").mark_rule(**rule)
    bars = base.mark_bar(strokeWidth=1, height=alt.RelativeBandSize(0.74)).encode(
        x=x,
        x2=alt.X2("end"),
        y=y,
        color=alt.Color("fill:N", scale=None),
        fillOpacity=alt.FillOpacity("strength:Q", scale=None),
        stroke=alt.Stroke("outline:N", scale=None),
    )
    return [
        zero.encode(x=alt.X("start:Q", scale=scale)),
        joined.encode(x=alt.X("end:Q", scale=scale), y=y, y2=alt.Y2("next")),
        bars,
        base.mark_text(align="left", dx=6, fontSize=12).encode(x=alt.X("right:Q"), y=y, text=alt.Text("text:N")),
    ]


def waterfall_figure(waterfall: pd.DataFrame) -> Figure | None:
    """Each arm's mean step from the floor to the residual, arms on one scale; the parts sum to the step."""
    timed = waterfall[np.isfinite(waterfall["seconds"].astype(float))]
    groups = timed.groupby(["factors", "arm"], sort=False)
    if not groups.ngroups:
        return None
    arms = [(panel_name(str(a), str(f)), cascade(rows)) for (f, a), rows in itertools.islice(groups, MAX_LISTED)]
    digits = decimals(min(float(bars["seconds"].iloc[0]) for _, bars in arms))
    texts, frames = [], []
    for n, (name, bars) in enumerate(arms):
        seconds = [seconds_text(r.seconds, digits) for r in rows_of(bars)]
        shares = [f" ({100 * s:.1f} %)".replace("-", MINUS) if math.isfinite(s) else "" for s in bars["share"]]
        frames.append(bars.assign(panel=n, text=[s + share for s, share in zip(seconds, shares, strict=True)]))
        whole, *parts = (f"{label} {s}" for label, s in zip(bars["label"], seconds, strict=True))
        texts.append(f"{name}: {whole} = {', '.join(parts)}")
    drawn = arms[:MAX_PANELS]
    frame = pd.concat(frames[:MAX_PANELS], ignore_index=True)
    ends = frame[["start", "end"]].to_numpy()
    low, high = float(ends.min()), float(ends.max())
    high = high if high > low else low + 1
    # The longest bar's number takes the room on the right.
    domain = (low if low >= 0 else low - 0.02 * (high - low), high + 0.3 * (high - low))
    of_each = panels([name for name, _ in drawn], 1, WIDTH - 100, shared_x=len(drawn) > 1, own_y=True)
    floors = "floor" in set(timed["kind"])
    first = (
        "First the least time that the GPU needs (by its data sheet's bandwidth and arithmetic), then, fainter, the "
        "engine's time above that. "
    )
    caption = (
        "Top: the whole mean step. Below: its parts, each starting where the part before it ended; they sum to the "
        f"step. {first if floors else ''}"
        "Hatched: the residual, which no timer covers; a negative one points left."
    )
    return Figure(
        "waterfall",
        "From the floor to the step" if floors else "What the step is made of",
        caption + left_out(len(drawn), groups.ngroups, "arms and factor combinations", "waterfall"),
        listed(texts, of=groups.ngroups),
        draw(frame, _steps(domain, _ticks(low, high)), WIDTH - 160, {"step": ROW}, of_each),
    )
