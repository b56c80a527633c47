"""How the four estimates of an arm's speed lie beside each other."""

from __future__ import annotations

import itertools
import math
from typing import Any

import altair as alt
import pandas as pd

from analysis.estimates.arm import ONE_PAIR
from analysis.figures.drawing import GREY, WIDTH, Figure, arm_scale, render
from analysis.figures.estimate_rows import (
    NO_INTERVAL,
    RESOLVED,
    SHAPES,
    UNRESOLVED,
    band_words,
    comparable,
    interval_or_none,
    label_of,
    noise_band,
    shape_of,
)
from analysis.figures.panels import (
    interval_text,
    left_out,
    listed,
    panel_name,
    panels,
    ratio_axis,
    ratio_domain,
)
from analysis.rows import rows_of
from analysis.runs import PlanRead

MAX_PANELS = 16
WITHIN_NOISE = "within the noise"
MAX_TOLD = 24
ROW = 22
PLOT_WIDTH = 400


def _rows(rows: pd.DataFrame) -> pd.DataFrame:
    """One panel's estimates: label, value, low, high, shape, text; without a value, text is why."""
    drawable = set(comparable(rows).index)
    found = []
    for row in rows_of(rows):
        if row.Index in drawable:
            low, high = interval_or_none(row)
            sign = " ~" if row.verdict == "~" else ""
            text = interval_text(float(row.value), low, high) + sign
            found.append((label_of(row.estimate), float(row.value), low, high, shape_of(row.verdict, low, high), text))
        else:
            found.append((label_of(row.estimate), math.nan, math.nan, math.nan, "", "× no value"))
    return pd.DataFrame(found, columns=["label", "value", "low", "high", "shape", "text"])


def _reasons(estimates: pd.DataFrame) -> str:
    """Why estimates have no value, each reason once."""
    without = estimates[~estimates.index.isin(comparable(estimates).index)]
    whys = dict.fromkeys(w for w in without.get("why", []) if isinstance(w, str) and w)
    return f" ({listed(whys, 4)})" if whys else ""


def _other_reasons(estimates: pd.DataFrame) -> str:
    """Why an estimate whose interval does not include 1 is not resolved; empty where there is none such."""
    whys = [str(why) for why in comparable(estimates).get("why", [])]
    text = ""
    if ONE_PAIR in whys:
        text += ", or there is one pair of runs only, and the interval is of its steps"
    if any(why.startswith(WITHIN_NOISE) for why in whys):
        text += (
            ", or the value is no farther from 1 than the same estimate of the declared A/A arms, with its interval "
            "(by how much is told under the table; the grey band is another measure)"
        )
    return text


def _chart(plan: PlanRead, labels: list[str], domain: tuple[float, float]) -> Any:
    y = alt.Y("label:N", sort=labels, title=None, axis=alt.Axis(ticks=False, domain=False, labelLimit=170))

    def x(field: str) -> Any:
        return ratio_axis(alt.X, field, domain, f"times as fast as {plan.baseline} (log scale)")

    base = alt.Chart()
    first = base.transform_filter(alt.datum.first)
    colour = alt.Color("arm:N", scale=arm_scale(plan), legend=None)
    shape = alt.Shape("shape:N", scale=alt.Scale(domain=list(SHAPES), range=list(SHAPES.values())), legend=None)
    band = first.transform_filter("isValid(datum.band_low)").mark_rect(color=GREY, opacity=0.28)
    one = first.mark_rule(color="currentColor", strokeWidth=1.2)
    ranges = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2.5)
    layers = [
        band.encode(x=x("band_low:Q"), x2="band_high:Q"),
        one.encode(x=x("one:Q")),
        ranges.encode(x=x("low:Q"), x2="high:Q", y=y, color=colour),
    ]
    # The page shows through: what is not resolved is an outline.
    for filled, those in ((True, alt.datum.shape == RESOLVED), (False, alt.datum.shape != RESOLVED)):
        points = base.transform_filter("isValid(datum.value)").transform_filter(those)
        marks = points.mark_point(filled=filled, size=90, strokeWidth=2, opacity=1)
        layers.append(marks.encode(x=x("value:Q"), y=y, shape=shape, color=colour))
    texts = base.mark_text(align="left", fontSize=12).encode(x=alt.value(PLOT_WIDTH + 8), y=y, text="text:N")
    return alt.layer(*layers, texts).properties(width=PLOT_WIDTH, height=ROW * len(labels))


def estimates_figure(estimates: pd.DataFrame, plan: PlanRead, noise: pd.DataFrame | None = None) -> Figure | None:
    """Every estimate with its interval, by arm; what is not resolved or not comparable has another shape."""
    if estimates.empty:
        return None
    groups = estimates.groupby(["factors", "arm"], sort=False)
    arms = [(str(f), str(a), _rows(rows)) for (f, a), rows in itertools.islice(groups, MAX_TOLD)]
    drawn = arms[:MAX_PANELS]
    bands = {factors: noise_band(noise, factors) for factors, _, _ in drawn}
    parts = []
    for n, (factors, arm, rows) in enumerate(drawn):
        band = bands[factors]
        low, high = (band.low, band.high) if band else (math.nan, math.nan)
        first = [True] + [False] * (len(rows) - 1)
        parts.append(rows.assign(panel=n, arm=arm, one=1.0, first=first, band_low=low, band_high=high))
    frame = pd.concat(parts, ignore_index=True)
    domain = ratio_domain(frame[["value", "low", "high", "band_low", "band_high"]].to_numpy(float).ravel())
    names = [panel_name(arm, factors) for factors, arm, _ in drawn]
    chart = panels(_chart(plan, list(dict.fromkeys(frame["label"])), domain), frame, names, 1, WIDTH - 100)
    if len(drawn) > 1:
        chart = chart.resolve_axis(x="shared")
    words = [
        f"{panel_name(arm, factors)}: " + ", ".join(f"{r.label} {r.text}" for r in rows_of(rows))
        for factors, arm, rows in arms
    ]
    shapes = set(frame["shape"])
    meanings = [
        ("Filled circle: the 95% interval does not touch 1. ", RESOLVED in shapes),
        (
            f"Hollow diamond and ~: not resolved: the interval includes 1{_other_reasons(estimates)}. ",
            UNRESOLVED in shapes,
        ),
        ("Hollow triangle: no interval can be given. ", NO_INTERVAL in shapes),
        (f"×: not comparable, or without a value{_reasons(estimates)}. ", "" in shapes),
        (band_words(bands.values(), "two runs"), True),
    ]
    caption = f"Right of the line at 1 the arm is faster than {plan.baseline}. " + "".join(
        text for text, there in meanings if there
    )
    cut = left_out(len(drawn), groups.ngroups, "arms and factor combinations", "estimates")
    return Figure(
        "estimates",
        "Four estimates of speed",
        caption.strip() + cut,
        f"Speed against {plan.baseline}, with 95% intervals. {listed(words, of=groups.ngroups)}",
        render(chart),
        "estimates",
    )
