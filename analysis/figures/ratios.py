"""Draws ratios to the baseline: the estimates of each arm next to each other, and the paired steps."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from analysis.estimates.arm import ONE_PAIR, WITHIN
from analysis.estimates.estimate_table import legible
from analysis.figures.drawing import (
    GREY,
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
WITHIN_NOISE = "within the noise"
MAX_PANELS, MAX_LISTED = 16, 24
ROW = 22
PLOT_WIDTH = 400
RATIO = "ratio"
_RATIOS = ["value", "low", "high", "band_low", "band_high"]
FOREST = ["panel", "arm", "label", "shape", "text", "first", *_RATIOS]
"""The columns that `forest` draws."""


def drawn_bands(noise: pd.DataFrame) -> pd.DataFrame:
    """Each factor combination's first A/A band of whole runs that has numbers."""
    known = (noise["low"] > 0) & (noise["low"] <= noise["high"]) & (noise["high"] < math.inf)
    return noise[known].drop_duplicates("factors").set_index("factors")[["low", "high", "source"]]


def band_sentence(bands: pd.DataFrame) -> str:
    """A caption's sentence on the grey band; empty without one."""
    found = bands.dropna().drop_duplicates()
    one = "".join(f" ({r.low:.3g} to {r.high:.3g}; {r.source})" for r in rows_of(found)) if len(found) == 1 else ""
    text = f"Grey band: the A/A noise, 95% of the ratios of two runs of equal arms{one}; no verdict follows from it. "
    return text if len(found) else ""


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
    valued = [str(why) for why in every.loc[every["drawable"]].get("why", [])]
    open_ = "the interval includes 1"
    if ONE_PAIR in valued:
        open_ += ", or there is only one run pair, and the interval is over its steps"
    if any(why.startswith(WITHIN_NOISE) for why in valued):
        open_ += (
            ", or the value is no farther from 1 than the same estimate of the declared A/A arms, with its interval "
            "(the note under the table has the numbers; the grey band is another measure)"
        )
    return {
        CIRCLE: "Filled circle: the 95% interval excludes 1. ",
        DIAMOND: f"Hollow diamond and ~: not resolved: {open_}. ",
        TRIANGLE: "Hollow triangle: no interval. ",
        "": (f"~ without a mark: {WIDE}. " if len(none) < len(unmarked) else "")
        + (f"×: not comparable, or without a value{reasons}. " if len(none) else ""),
    }


def estimates_figure(estimates: pd.DataFrame, plan: PlanRead, noise: pd.DataFrame) -> Figure | None:
    """Every estimate with its interval, by arm; the shape shows what is not resolved or not comparable."""
    if estimates.empty:
        return None
    every = points(legible(estimates))
    groups = every.groupby(["factors", "arm"], sort=False)
    arms = [(str(f), str(a), rows) for (f, a), rows in itertools.islice(groups, MAX_LISTED)]
    drawn = arms[:MAX_PANELS]
    bands = drawn_bands(noise).reindex([factors for factors, _, _ in drawn])
    parts = [
        rows.assign(panel=n, first=[True] + [False] * (len(rows) - 1), band_low=band.low, band_high=band.high)
        for n, ((_, _, rows), band) in enumerate(zip(drawn, rows_of(bands), strict=True))
    ]
    frame = pd.concat(parts, ignore_index=True)
    of_each = panels([panel_name(arm, f) for f, arm, _ in drawn], 1, WIDTH - 100, shared_x=len(drawn) > 1)
    texts = []
    for factors, arm, rows in arms:
        values = ", ".join(f"{r.label} {r.text}" for r in rows_of(rows))
        texts.append(f"{panel_name(arm, factors)}: {values}")
    scopes = set(every[every["drawable"]].get("scope", ()))
    of_steps = "; intervals of one run pair's steps" if scopes == {WITHIN} else ""
    layers = forest(frame, plan, f"times as fast as {plan.baseline} (log scale{of_steps})")
    shapes = "".join(text for shape, text in shape_sentences(every).items() if shape in set(frame["shape"]))
    caption = f"Right of the line at 1 the arm is faster than {plan.baseline}. {shapes}"
    caption += band_sentence(bands)
    return Figure(
        "estimates",
        "Four estimates of speed",
        caption.strip() + left_out(len(drawn), groups.ngroups, "arms and factor combinations", "estimates"),
        f"Speed against {plan.baseline}, with 95% intervals. {listed(texts, of=groups.ngroups)}",
        draw(frame[FOREST], layers, PLOT_WIDTH, ROW * frame["label"].nunique(), of_each),
    )


def forest(frame: pd.DataFrame, plan: PlanRead, title: str) -> list[Any]:
    """The noise band, the line at 1, intervals and values of a frame (`FOREST`)."""
    labels = list(dict.fromkeys(frame["label"]))
    x = partial(ratio_axis, alt.X, domain=ratio_domain(frame[_RATIOS].to_numpy(float).ravel()), title=title)
    axis = alt.Axis(ticks=False, domain=False, labelLimit=170)
    rows = alt.Chart().encode(y=alt.Y("label:N", sort=labels, title=None, axis=axis))
    base = rows.encode(color=alt.Color("arm:N", scale=arm_scale(plan.arms), legend=None))
    first = alt.Chart().transform_filter(alt.datum.first)
    band = first.transform_filter("isValid(datum.band_low)").mark_rect(color=GREY, opacity=0.28)
    ranges = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2.5)
    return [
        band.encode(x=x("band_low"), x2=alt.X2("band_high")),
        once().mark_rule(color="currentColor", strokeWidth=1.2).encode(x=alt.XDatum(1.0)),
        ranges.encode(x=x("low"), x2=alt.X2("high")),
        *value_marks(base, 90, x=x("value")),
        rows.mark_text(align="left", fontSize=12).encode(x=alt.value(PLOT_WIDTH + 8), text=alt.Text("text:N")),
    ]


def step_ratios(wide: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """All paired steps as factors, arm, run_id (the arm's), step, counted, and ratio: T_baseline / T_arm.

    Pairs in which a time is not a positive number are left out.
    """
    slot = ["factors", "seed", "step"]
    seconds = pd.to_numeric(wide[PHASE + "step"], errors="coerce").astype(float)
    steps = wide[["arm", "run_id", *slot]].assign(seconds=seconds, counted=wide["counted"].astype(bool))
    steps = steps[np.isfinite(steps["seconds"]) & (steps["seconds"] > 0)]
    base = steps.loc[steps["arm"] == baseline, [*slot, "seconds", "counted"]]
    pairs: pd.DataFrame = steps[steps["arm"] != baseline].merge(base, on=slot, suffixes=("", "_baseline"))
    counted = pairs["counted"] & pairs["counted_baseline"]
    return pairs.assign(counted=counted, **{RATIO: pairs["seconds_baseline"] / pairs["seconds"]})


def paired_figure(wide: pd.DataFrame, plan: PlanRead, estimates: pd.DataFrame) -> Figure | None:
    """T_baseline / T_arm over the paired steps, of the arms that may be divided."""
    if PHASE + "step" not in wide:
        return None
    pairs = step_ratios(wide, plan.baseline)
    raw = points(estimates[estimates["estimate"] == "raw"])
    divided = {(r.factors, r.arm) for r in rows_of(raw[raw["drawable"]])}
    places = list(zip(pairs["factors"], pairs["arm"], strict=True))
    caption = f"Step time of {plan.baseline} over the arm's, for each step that both have: above 1 the arm is faster. "
    if refused := [panel_name(arm, factors) for factors, arm in dict.fromkeys(places) if (factors, arm) not in divided]:
        caption += f"Not comparable, so without a ratio: {listed(refused, 6)}. "
    return over_steps(
        pairs[[place in divided for place in places]],
        plan,
        RATIO,
        "paired-steps",
        "Step by step against the baseline",
        "times as fast as the baseline",
        log_if_wide=True,
        from_zero=False,
        even=1.0,
        caption=caption,
    )
