"""Draws ratios to the baseline: both estimates of each arm next to each other, and the arm step by step."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from analysis.estimates.estimate_table import PER_STEP, legible
from analysis.figures.drawing import (
    WIDTH,
    Figure,
    arm_scale,
    draw,
    interval_text,
    left_out,
    listed,
    once,
    panel_name,
    panels,
    ratio_axis,
    ratio_domain,
)
from analysis.figures.over_steps import over_steps
from analysis.planned import PlanRead
from analysis.runs import rows_of
from analysis.verdict.arm_verdict import WIDE
from analysis.wide import PHASE

NO_TEXT = {"~": "~ not resolved", "x": "× no value"}
# The shapes of a value that is resolved, of one that is not, and of one without an interval, by Vega's names.
CIRCLE, DIAMOND, TRIANGLE = "circle", "diamond", "triangle-up"
MAX_PANELS, MAX_LISTED = 16, 24
ROW = 22
PLOT_WIDTH = 400
RATIO = "ratio"
_RATIOS = ["value", "low", "high"]
FOREST = ["panel", "arm", "label", "shape", "text", *_RATIOS]
"""The columns that `forest` draws."""


def points(estimates: pd.DataFrame) -> pd.DataFrame:
    """The estimates with numbers that a log axis can show, and `label`, `shape`, `text` and `drawable`.

    `low` and `high` are NaN without an interval. The shape shows what is not resolved, as colour alone does not.
    """
    numbers = {name: pd.to_numeric(estimates[name], errors="coerce").astype(float) for name in ("value", "low", "high")}
    drawable = (numbers["value"] > 0) & (numbers["value"] < math.inf) & (estimates["verdict"] != "x")
    value = numbers["value"].where(drawable)
    ranged = drawable & (numbers["low"] > 0) & (numbers["high"] >= numbers["low"]) & (numbers["high"] < math.inf)
    low, high = numbers["low"].where(ranged), numbers["high"].where(ranged)
    shape = np.where(~ranged, TRIANGLE, np.where(estimates["verdict"].isin(["+", "-"]), CIRCLE, DIAMOND))
    text = [
        interval_text(a, b, c) + (" ~" if verdict == "~" else "") if a > 0 else NO_TEXT.get(verdict, NO_TEXT["x"])
        for a, b, c, verdict in zip(value, low, high, estimates["verdict"], strict=True)
    ]
    found = estimates.assign(value=value, low=low, high=high, shape=np.where(drawable, shape, ""), text=text)
    return found.assign(drawable=drawable, label=estimates["estimate"].str.replace("_", " "))


def value_marks(base: Any, size: int, **channels: Any) -> list[Any]:
    """The values of `points` by shape: filled where resolved, else an outline."""
    shape = alt.Shape("shape:N", scale=None)
    marks = []
    for filled, those in ((True, alt.datum.shape == CIRCLE), (False, alt.datum.shape != CIRCLE)):
        valued = base.transform_filter("isValid(datum.value)").transform_filter(those)
        drawn = valued.mark_point(filled=filled, size=size, strokeWidth=size / 45, opacity=1)
        marks.append(drawn.encode(shape=shape, **channels))
    return marks


def shape_sentences(every: pd.DataFrame) -> dict[str, str]:
    """By shape, a caption's sentence on the estimates that have it."""
    unmarked = every[~every["drawable"]]
    none = unmarked[unmarked["verdict"] != "~"]
    whys = dict.fromkeys(w for w in none.get("why", []) if isinstance(w, str) and w)
    reasons = f" ({listed(whys, 4)})" if whys else ""
    return {
        CIRCLE: "Filled circle: the 95% interval excludes 1. ",
        DIAMOND: "Hollow diamond and ~: not resolved: the interval includes 1. ",
        TRIANGLE: "Hollow triangle: no interval, as an arm has one run. ",
        "": (f"~ without a mark: {WIDE}. " if len(none) < len(unmarked) else "")
        + (f"×: not comparable, or without a value{reasons}. " if len(none) else ""),
    }


def estimates_figure(estimates: pd.DataFrame, plan: PlanRead) -> Figure | None:
    """Every estimate with its interval, by arm; the shape shows what is not resolved or not comparable."""
    if estimates.empty:
        return None
    every = points(legible(estimates))
    groups = every.groupby(["factors", "arm"], sort=False)
    arms = [(str(f), str(a), rows) for (f, a), rows in itertools.islice(groups, MAX_LISTED)]
    drawn = arms[:MAX_PANELS]
    frame = pd.concat([rows.assign(panel=n) for n, (_, _, rows) in enumerate(drawn)], ignore_index=True)
    of_each = panels([panel_name(arm, f) for f, arm, _ in drawn], 1, WIDTH - 100, shared_x=len(drawn) > 1)
    texts = []
    for factors, arm, rows in arms:
        values = ", ".join(f"{r.label} {r.text}" for r in rows_of(rows))
        texts.append(f"{panel_name(arm, factors)}: {values}")
    layers = forest(frame, plan, f"times as fast as {plan.baseline} (log scale)")
    shapes = "".join(text for shape, text in shape_sentences(every).items() if shape in set(frame["shape"]))
    caption = f"Right of the line at 1 the arm is faster than {plan.baseline}. {shapes}"
    return Figure(
        "estimates",
        "Speed against the baseline",
        caption.strip() + left_out(len(drawn), groups.ngroups, "arms and factor combinations", "estimates"),
        f"Speed against {plan.baseline}, with 95% intervals. {listed(texts, of=groups.ngroups)}",
        draw(frame[FOREST], layers, PLOT_WIDTH, ROW * frame["label"].nunique(), of_each),
    )


def forest(frame: pd.DataFrame, plan: PlanRead, title: str) -> list[Any]:
    """The line at 1, intervals and values of a frame (`FOREST`)."""
    labels = list(dict.fromkeys(frame["label"]))
    x = partial(ratio_axis, alt.X, domain=ratio_domain(frame[_RATIOS].to_numpy(float).ravel()), title=title)
    axis = alt.Axis(ticks=False, domain=False, labelLimit=170)
    rows = alt.Chart().encode(y=alt.Y("label:N", sort=labels, title=None, axis=axis))
    base = rows.encode(color=alt.Color("arm:N", scale=arm_scale(plan.arms), legend=None))
    ranges = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2.5)
    return [
        once().mark_rule(color="currentColor", strokeWidth=1.2).encode(x=alt.XDatum(1.0)),
        ranges.encode(x=x("low"), x2=alt.X2("high")),
        *value_marks(base, 90, x=x("value")),
        rows.mark_text(align="left", fontSize=12).encode(x=alt.value(PLOT_WIDTH + 8), text=alt.Text("text:N")),
    ]


def step_ratios(wide: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Each run's steps as factors, arm, run_id, step, counted, and ratio to the baseline's runs at the same step.

    The ratio is that of the baseline's mean seconds there. Times that are not a positive number are left out.
    """
    slot = ["factors", "step"]
    seconds = pd.to_numeric(wide[PHASE + "step"], errors="coerce").astype(float)
    steps = wide[["arm", "run_id", *slot]].assign(seconds=seconds, counted=wide["counted"].astype(bool))
    steps = steps[np.isfinite(steps["seconds"]) & (steps["seconds"] > 0)]
    base = steps[steps["arm"] == baseline].groupby(slot).agg({"seconds": "mean", "counted": "all"}).reset_index()
    found: pd.DataFrame = steps[steps["arm"] != baseline].merge(base, on=slot, suffixes=("", "_baseline"))
    counted = found["counted"] & found["counted_baseline"]
    return found.assign(counted=counted, **{RATIO: found["seconds_baseline"] / found["seconds"]})


def step_ratio_figure(wide: pd.DataFrame, plan: PlanRead, estimates: pd.DataFrame) -> Figure | None:
    """The baseline's mean seconds over each run's, step by step, of the arms that may be divided."""
    if PHASE + "step" not in wide:
        return None
    ratios = step_ratios(wide, plan.baseline)
    raw = points(estimates[estimates["estimate"] == PER_STEP])
    divided = {(r.factors, r.arm) for r in rows_of(raw[raw["drawable"]])}
    places = list(zip(ratios["factors"], ratios["arm"], strict=True))
    caption = f"Mean time of {plan.baseline}'s runs over the run's, for each step: above 1 the arm is faster. "
    if refused := [panel_name(arm, factors) for factors, arm in dict.fromkeys(places) if (factors, arm) not in divided]:
        caption += f"Not comparable, so without a ratio: {listed(refused, 6)}. "
    return over_steps(
        ratios[[place in divided for place in places]],
        plan,
        RATIO,
        "step-ratios",
        "Step by step against the baseline",
        "times as fast as the baseline",
        log_if_wide=True,
        from_zero=False,
        even=1.0,
        caption=caption,
    )
