"""Where an arm's mean step goes, from what the GPU needs at least to what no timer covers."""

from __future__ import annotations

import itertools
import math
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from analysis.figures.drawing import CATEGORY_COLOURS, GREY, WIDTH, Figure, render
from analysis.figures.panels import left_out, listed, panel_name, panels, seconds_digits, seconds_text
from analysis.figures.svg import HATCHED
from analysis.rows import rows_of

MAX_PANELS = 8
MAX_TOLD = 12
STEP = "mean step"
ROW = 21


def _fill(part: str, kind: str) -> str:
    if kind == "residual":
        return HATCHED
    if kind == "step":
        return GREY
    named = part.replace("_", " ")
    if named in CATEGORY_COLOURS:
        return CATEGORY_COLOURS[named]
    return CATEGORY_COLOURS["generation"]


def cascade(rows: pd.DataFrame) -> pd.DataFrame:
    """One arm's parts as bars: the whole step first, then each part from where the one before ended.

    A part below zero goes back to the left. Parts that are no number are left out of the bars.
    """
    parts = [(r.part, r.label, float(r.seconds), r.kind) for r in rows_of(rows) if math.isfinite(r.seconds)]
    step_s = math.fsum(s for _, _, s, _ in parts)
    bars = [("step", STEP, step_s, "step", 0.0, step_s)]
    for n, (part, label, seconds, kind) in enumerate(parts):
        start = math.fsum(s for _, _, s, _ in parts[:n])
        bars.append((part, label, seconds, kind, start, math.fsum(s for _, _, s, _ in parts[: n + 1])))
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
        outline=["currentColor" if r.kind == "residual" else r.fill for r in rows_of(bars)],
        # What the engine spends above the floor has the floor's colour, fainter.
        strength=[0.35 if k in ("gap", "step") else 1.0 for k in bars["kind"]],
    )


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high`, seven steps at most."""
    span = (high - low) / 7
    size = 10.0 ** math.floor(math.log10(span))
    step = next(m * size for m in (1.0, 2.0, 2.5, 5.0, 10.0) if m * size >= span)
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _chart(domain: tuple[float, float], ticks: list[float]) -> Any:
    y = alt.Y(
        "label:N",
        sort=alt.EncodingSortField("order"),
        title=None,
        axis=alt.Axis(labelLimit=200, ticks=False, domain=False),
    )
    scale = alt.Scale(domain=list(domain), nice=False, zero=False)
    # No tick where there is only the room for the numbers.
    axis = alt.Axis(values=ticks, labelFlush=False, offset=2, domain=False)
    x = alt.X("start:Q", title="mean seconds per step", scale=scale, axis=axis)
    base = alt.Chart()
    bars = base.mark_bar(strokeWidth=1, height=alt.RelativeBandSize(0.74)).encode(
        x=x,
        x2="end:Q",
        y=y,
        color=alt.Color("fill:N", scale=None),
        fillOpacity=alt.FillOpacity("strength:Q", scale=None),
        stroke=alt.Stroke("outline:N", scale=None),
    )
    joined = (
        base.transform_filter("isValid(datum.next) && datum.kind !== 'step'")
        .mark_rule(strokeWidth=1, color="currentColor", opacity=0.45)
        .encode(x=alt.X("end:Q", scale=scale), y=y, y2="next:N")
    )
    labels = base.mark_text(align="left", dx=6, fontSize=12).encode(x="right:Q", y=y, text="text:N")
    zero = (
        base.transform_filter("datum.kind === 'step'")
        .mark_rule(color="currentColor", opacity=0.45)
        .encode(x=alt.X("start:Q", scale=scale))
    )
    return alt.layer(zero, joined, bars, labels).properties(width=WIDTH - 160, height=alt.Step(ROW))


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
    arms = [(str(f), str(a), cascade(rows)) for (f, a), rows in itertools.islice(groups, MAX_TOLD)]
    drawn = arms[:MAX_PANELS]
    low = min(float(bars[["start", "end"]].min().min()) for _, _, bars in drawn)
    high = max(float(bars[["start", "end"]].max().max()) for _, _, bars in drawn)
    high = high if high > low else low + 1
    # Room on the right for the number at the longest bar.
    domain = (low if low >= 0 else low - 0.02 * (high - low), high + 0.3 * (high - low))
    digits = seconds_digits(min(float(bars["seconds"].iloc[0]) for _, _, bars in arms))
    frame = pd.concat([_drawn(n, bars, digits) for n, (_, _, bars) in enumerate(drawn)], ignore_index=True)
    names = [panel_name(arm, factors) for factors, arm, _ in drawn]
    chart = panels(_chart(domain, _ticks(low, high)), frame, names, 1, WIDTH - 100).resolve_scale(y="independent")
    if len(drawn) > 1:
        chart = chart.resolve_axis(x="shared")
    words = []
    for factors, arm, bars in arms:
        told = [f"{r.label} {seconds_text(r.seconds, digits)}" for r in rows_of(bars)]
        words.append(f"{panel_name(arm, factors)}: {told[0]} = {', '.join(told[1:])}")
    floors = "floor" in set(timed["kind"])
    caption = (
        "From the top: the whole mean step, then its parts, each starting where the one before ended; they sum to the "
        "step. "
        + (
            "First what the GPU needs at least (its datasheet's bandwidth and arithmetic), then, fainter, what the "
            "engine took above that. "
            if floors
            else ""
        )
        + _floored_in_words(timed)
        + "Hatched: the residual, which no timer covers; below zero it points left."
    )
    return Figure(
        "waterfall",
        "From the floor to the step" if floors else "What the step is made of",
        caption + left_out(len(drawn), groups.ngroups, "arms and factor combinations", "waterfall"),
        listed(words, of=groups.ngroups),
        render(chart),
        "waterfall",
    )
