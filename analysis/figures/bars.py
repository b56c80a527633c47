"""Draws where the mean step goes: its categories as stacked bars, and its parts from the floor up as a waterfall."""

from __future__ import annotations

import itertools
import math
import textwrap
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from analysis.figures.drawing import CATEGORY_COLOURS, GREY, HATCHED, WIDTH, Figure, draw
from analysis.figures.panels import left_out, listed, panel_name, panels, seconds_digits, seconds_text
from analysis.phases import RESIDUAL
from analysis.runs import factors_label, rows_of

MAX_BARS = 40
LINE, LETTERS = 14, 27
"""Of a bar's name: pixels from one line to the next, and what a line has room for."""
UNSEEN_SHARE = 0.002
"""A negative time of less than this share of the longest bar would be no pixel wide, and shift the axis."""
MAX_PANELS = 8
MAX_TOLD = 12
STEP = "mean step"
ROW = 21


def bar_name(arm: str, factors: str) -> str:
    # Arm and factors begin a line each; a long name takes several: Vega cuts a line's end, where names differ.
    parts = (arm, *factors_label(factors).split(", "))
    return "\n".join(line for part in parts for line in textwrap.wrap(part, LETTERS))


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
    bars = list(dict.fromkeys(bar_name(r.arm, r.factors) for r in rows_of(groups)))
    known = [c for c in categories["category"].unique() if c not in CATEGORY_COLOURS and c != RESIDUAL]
    order = [*CATEGORY_COLOURS, *known, RESIDUAL]
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
    # Of a label that is cut, no more is drawn than its limit.
    names = min(190, 8 * max(len(line) for bar in bars for line in bar.split("\n")))
    lines = max(bar.count("\n") + 1 for bar in bars)
    each = max(44 if len(bars) <= 12 else 30, LINE * lines + 6)
    layers = _stacked(bars, [c for c in order if c in set(frame["category"])], legend=4 if names > 70 else 8)
    words = listed(
        f"{panel_name(str(arm), str(factors))}: "
        + ", ".join(f"{r.category} {r.own_mean_s:.3g} s" for r in rows_of(rows))
        for (arm, factors), rows in frame.groupby(["arm", "factors"], sort=False)
    )
    return Figure(
        "phases",
        "Where the step goes",
        "Mean own seconds per counted step. Hatched: the residual, the part of the step that no timer covers; "
        "below zero it is left of the axis." + left_out(len(groups), len(every), "bars", "phases"),
        words,
        draw(frame, layers, WIDTH - 60 - names, max(each * len(bars), 60)),
        "phases",
    )


def _stacked(bars: list[str], present: list[str], legend: int) -> list[Any]:
    """The bars' pieces, and the sum right of each."""
    colours = [HATCHED if c == RESIDUAL else CATEGORY_COLOURS.get(c, CATEGORY_COLOURS["other"]) for c in present]
    # Vega centres the first of a label's lines on the bar.
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


def _fill(part: str, kind: str) -> str:
    if kind == "residual":
        return HATCHED
    return GREY if kind == "step" else CATEGORY_COLOURS.get(part.replace("_", " "), CATEGORY_COLOURS["generation"])


def cascade(rows: pd.DataFrame) -> pd.DataFrame:
    """One arm's parts as bars: the whole step first, then each part from where the one before ended.

    A part below zero goes back to the left. Parts that are no number are left out of the bars.
    """
    parts = [(r.part, r.label, float(r.seconds), r.kind) for r in rows_of(rows) if math.isfinite(r.seconds)]
    ends = [math.fsum(s for _, _, s, _ in parts[:n]) for n in range(len(parts) + 1)]
    step_s = ends[-1]
    bars = [("step", STEP, step_s, "step", 0.0, step_s)]
    bars += [(*part, start, end) for part, start, end in zip(parts, ends, ends[1:], strict=False)]
    frame = pd.DataFrame(bars, columns=["part", "label", "seconds", "kind", "start", "end"])
    # Labels are a bar's place on the axis: two of one name would share it.
    twice = frame["label"].duplicated(keep=False)
    frame["label"] = frame["label"].where(~twice, frame["label"] + " (" + frame["part"] + ")")
    frame["share"] = frame["seconds"] / step_s if step_s > 0 else float("nan")
    frame["fill"] = [_fill(p, k) for p, k in zip(frame["part"], frame["kind"], strict=True)]
    return frame


def _number(seconds: float, share: float, digits: int) -> str:
    of_step = f" ({100 * share:.1f} %)".replace("-", "\N{MINUS SIGN}") if math.isfinite(share) else ""
    return seconds_text(seconds, digits) + of_step


def _drawn(n: int, bars: pd.DataFrame, digits: int) -> pd.DataFrame:
    """An arm's bars with what the chart needs besides."""
    return bars.assign(
        panel=n,
        order=range(len(bars)),
        text=[_number(r.seconds, r.share, digits) for r in rows_of(bars)],
        right=bars[["start", "end"]].max(axis=1),
        next=bars["label"].shift(-1),
        outline=bars["fill"].replace(HATCHED, "currentColor"),
        # What the engine spends above the floor has the floor's colour, fainter.
        strength=[0.35 if k in ("gap", "step") else 1.0 for k in bars["kind"]],
    )


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high`, seven steps at most."""
    span = (high - low) / 7
    size = 10.0 ** math.floor(math.log10(span))
    step = next(m * size for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * size >= span)
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _steps(domain: tuple[float, float], ticks: list[float]) -> list[Any]:
    """The waterfall's layers: zero, what joins a bar to the next, the bars, their numbers."""
    labels = alt.Axis(labelLimit=200, ticks=False, domain=False)
    y = alt.Y("label:N", sort=alt.EncodingSortField("order"), title=None, axis=labels)
    scale = alt.Scale(domain=list(domain), nice=False, zero=False)
    # No tick where there is only the room for the numbers.
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


def _floored_in_words(waterfall: pd.DataFrame) -> str:
    """Sentences on arms of which no step, or only some, has a floor; empty where all have one, or none."""
    floored = waterfall[waterfall["kind"] == "floor"].groupby(["factors", "arm"], sort=False).size()
    if not len(floored):
        return ""
    told = [r for r in rows_of(waterfall[["factors", "arm"]].drop_duplicates()) if (r.factors, r.arm) not in floored]
    none = listed((panel_name(r.arm, r.factors) for r in told), 6)
    found = f"No floor is known for {none}: generation is one part there. " if none else ""
    if "floor_steps" in waterfall:
        some = waterfall[(waterfall["floor_steps"] > 0) & (waterfall["floor_steps"] < waterfall["steps"])]
        each = [f"{panel_name(r.arm, r.factors)}: {r.floor_steps} of {r.steps}" for r in rows_of(some)]
        if each:
            steps = listed(dict.fromkeys(each), 6)
            found += f"Not every step has a floor ({steps}); generation is divided as in those. "
    return found


def waterfall_figure(waterfall: pd.DataFrame) -> Figure | None:
    """Each arm's mean step from the floor to the residual, arms on one scale; the parts sum to the step."""
    timed = waterfall[np.isfinite(waterfall["seconds"].astype(float))]
    groups = timed.groupby(["factors", "arm"], sort=False)
    if not groups.ngroups:
        return None
    arms = [(panel_name(str(a), str(f)), cascade(rows)) for (f, a), rows in itertools.islice(groups, MAX_TOLD)]
    drawn = arms[:MAX_PANELS]
    ends = np.concatenate([bars[["start", "end"]].to_numpy() for _, bars in drawn])
    low, high = float(ends.min()), float(ends.max())
    high = high if high > low else low + 1
    # Room on the right for the number at the longest bar.
    domain = (low if low >= 0 else low - 0.02 * (high - low), high + 0.3 * (high - low))
    digits = seconds_digits(min(float(bars["seconds"].iloc[0]) for _, bars in arms))
    frame = pd.concat([_drawn(n, bars, digits) for n, (_, bars) in enumerate(drawn)], ignore_index=True)
    of_each = panels([name for name, _ in drawn], 1, WIDTH - 100, shared_x=len(drawn) > 1, own_y=True)
    words = []
    for name, bars in arms:
        told = [f"{r.label} {seconds_text(r.seconds, digits)}" for r in rows_of(bars)]
        words.append(f"{name}: {told[0]} = {', '.join(told[1:])}")
    floors = "floor" in set(timed["kind"])
    first = (
        "First what the GPU needs at least (its datasheet's bandwidth and arithmetic), then, fainter, what the engine "
        "took above that. "
    )
    caption = (
        "From the top: the whole mean step, then its parts, each starting where the one before ended; they sum to the "
        f"step. {first if floors else ''}{_floored_in_words(timed)}"
        "Hatched: the residual, which no timer covers; below zero it points left."
    )
    return Figure(
        "waterfall",
        "From the floor to the step" if floors else "What the step is made of",
        caption + left_out(len(drawn), groups.ngroups, "arms and factor combinations", "waterfall"),
        listed(words, of=groups.ngroups),
        draw(frame, _steps(domain, _ticks(low, high)), WIDTH - 160, {"step": ROW}, of_each),
        "waterfall",
    )
