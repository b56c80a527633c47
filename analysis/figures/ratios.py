"""Draws ratios to the baseline: the estimates of each arm beside each other, and the paired steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from analysis.estimates.arm import ONE_PAIR, WITHIN
from analysis.figures.drawing import GREY, WIDTH, Figure, arm_scale, draw, once
from analysis.figures.panels import (
    cut_titles,
    interval_text,
    left_out,
    listed,
    panel_name,
    panels,
    ratio_axis,
    ratio_domain,
    times_text,
)
from analysis.figures.thinning import series
from analysis.runs import PlanRead, rows_of
from analysis.wide import PHASE

RESOLVED, UNRESOLVED, NO_INTERVAL = "resolved", "not resolved (~)", "no interval"
SHAPES = {RESOLVED: "circle", UNRESOLVED: "diamond", NO_INTERVAL: "triangle-up"}
WITHIN_NOISE = "within the noise"
MAX_PANELS = 16
MAX_STEP_PANELS = 6
MAX_TOLD = 24
ROW = 22
PLOT_WIDTH = 400
_RATIOS = ["value", "low", "high", "band_low", "band_high"]
FOREST = ["panel", "arm", "label", "shape", "text", "first", *_RATIOS]
"""What `forest` draws of a frame."""
RATIO = "ratio"


@dataclass(frozen=True)
class Band:
    """Between which ratios an arm lies that is the same as the other."""

    low: float
    high: float
    source: str = ""
    """What was run twice."""

    @property
    def words(self) -> str:
        return f"{self.low:.3g} to {self.high:.3g}"


def noise_band(noise: pd.DataFrame | None, factors: str, of: str = "") -> Band | None:
    """A factor combination's A/A band: of whole runs, or with `of="step_"` of single steps."""
    if noise is None or f"{of}low" not in noise:
        return None
    for row in rows_of(noise[noise["factors"] == factors]):
        low, high = float(getattr(row, f"{of}low")), float(getattr(row, f"{of}high"))
        if math.isfinite(low) and math.isfinite(high) and 0 < low <= high:
            return Band(low, high, str(getattr(row, "source", "")))
    return None


def band_words(bands: Iterable[Band | None], what: str) -> str:
    """A caption's sentence on the grey band; empty without one."""
    found = list(dict.fromkeys(b for b in bands if b))
    if not found:
        return ""
    one = f" ({found[0].words}; {found[0].source})" if len(found) == 1 and found[0].source else ""
    return (
        f"Grey band: the A/A noise, between which 95% of the ratios of {what} lie that should not differ{one}; "
        "no verdict follows from it. "
    )


def points(estimates: pd.DataFrame) -> pd.DataFrame:
    """The estimates with numbers that a log axis can show, and `label`, `shape`, `text` and `drawable`.

    `low` and `high` are NaN without an interval; not by its colour alone does one see that a value is not resolved.
    """
    numbers = {name: pd.to_numeric(estimates[name], errors="coerce").astype(float) for name in ("value", "low", "high")}
    drawable = (numbers["value"] > 0) & (numbers["value"] < math.inf) & (estimates["verdict"] != "x")
    value = numbers["value"].where(drawable)
    ranged = drawable & (numbers["low"] > 0) & (numbers["high"] >= numbers["low"]) & (numbers["high"] < math.inf)
    low, high = numbers["low"].where(ranged), numbers["high"].where(ranged)
    shape = np.where(~ranged, NO_INTERVAL, np.where(estimates["verdict"].isin(["+", "-"]), RESOLVED, UNRESOLVED))
    text = [
        interval_text(a, b, c) + (" ~" if verdict == "~" else "") if a > 0 else "× no value"
        for a, b, c, verdict in zip(value, low, high, estimates["verdict"], strict=True)
    ]
    found = estimates.assign(value=value, low=low, high=high, shape=np.where(drawable, shape, ""), text=text)
    return found.assign(drawable=drawable, label=estimates["estimate"].str.replace("_", " "))


def value_marks(base: Any, size: int, **channels: Any) -> list[Any]:
    """The values of `points` by shape; the page shows through: what is not resolved is an outline."""
    shape = alt.Shape("shape:N", scale=alt.Scale(domain=list(SHAPES), range=list(SHAPES.values())), legend=None)
    marks = []
    for filled, those in ((True, alt.datum.shape == RESOLVED), (False, alt.datum.shape != RESOLVED)):
        valued = base.transform_filter("isValid(datum.value)").transform_filter(those)
        drawn = valued.mark_point(filled=filled, size=size, strokeWidth=size / 45, opacity=1)
        marks.append(drawn.encode(shape=shape, **channels))
    return marks


def _reasons(estimates: pd.DataFrame) -> str:
    """Why estimates have no value, each reason once."""
    whys = dict.fromkeys(w for w in estimates.get("why", []) if isinstance(w, str) and w)
    return f" ({listed(whys, 4)})" if whys else ""


def _other_reasons(estimates: pd.DataFrame) -> str:
    """Why an estimate whose interval does not include 1 is not resolved; empty where there is none such."""
    whys = [str(why) for why in estimates.get("why", [])]
    text = ""
    if ONE_PAIR in whys:
        text += ", or there is one pair of runs only, and the interval is of its steps"
    if any(why.startswith(WITHIN_NOISE) for why in whys):
        text += (
            ", or the value is no farther from 1 than the same estimate of the declared A/A arms, with its interval "
            "(by how much is told under the table; the grey band is another measure)"
        )
    return text


def estimates_figure(estimates: pd.DataFrame, plan: PlanRead, noise: pd.DataFrame | None = None) -> Figure | None:
    """Every estimate with its interval, by arm; what is not resolved or not comparable has another shape."""
    if estimates.empty:
        return None
    every = points(estimates)
    groups = every.groupby(["factors", "arm"], sort=False)
    arms = [(str(f), str(a), rows) for (f, a), rows in itertools.islice(groups, MAX_TOLD)]
    drawn, parts = arms[:MAX_PANELS], []
    bands = [noise_band(noise, factors) for factors, _, _ in drawn]
    for n, ((_, _, rows), band) in enumerate(zip(drawn, bands, strict=True)):
        ends = {"band_low": band.low if band else math.nan, "band_high": band.high if band else math.nan}
        parts.append(rows.assign(panel=n, first=[True] + [False] * (len(rows) - 1), **ends))
    frame = pd.concat(parts, ignore_index=True)
    names = [panel_name(arm, factors) for factors, arm, _ in drawn]
    of_each = panels(names, 1, WIDTH - 100, shared_x=len(drawn) > 1)
    words = [
        f"{panel_name(arm, factors)}: " + ", ".join(f"{r.label} {r.text}" for r in rows_of(rows))
        for factors, arm, rows in arms
    ]
    shapes, valued = set(frame["shape"]), every[every["drawable"]]
    of_steps = "; intervals of one run pair's steps" if set(valued.get("scope", ())) == {WITHIN} else ""
    layers = forest(frame, plan, f"times as fast as {plan.baseline} (log scale{of_steps})")
    open_ = f"Hollow diamond and ~: not resolved: the interval includes 1{_other_reasons(valued)}. "
    meanings = [
        ("Filled circle: the 95% interval does not touch 1. ", RESOLVED in shapes),
        (open_, UNRESOLVED in shapes),
        ("Hollow triangle: no interval can be given. ", NO_INTERVAL in shapes),
        (f"×: not comparable, or without a value{_reasons(every[~every['drawable']])}. ", "" in shapes),
        (band_words(bands, "two runs"), True),
    ]
    caption = f"Right of the line at 1 the arm is faster than {plan.baseline}. "
    caption += "".join(text for text, there in meanings if there)
    return Figure(
        "estimates",
        "Four estimates of speed",
        caption.strip() + left_out(len(drawn), groups.ngroups, "arms and factor combinations", "estimates"),
        f"Speed against {plan.baseline}, with 95% intervals. {listed(words, of=groups.ngroups)}",
        draw(frame[FOREST], layers, PLOT_WIDTH, ROW * frame["label"].nunique(), of_each),
        "estimates",
    )


def forest(frame: pd.DataFrame, plan: PlanRead, title: str, names: float = 0) -> list[Any]:
    """The noise band, the line at 1, intervals and values of a frame (`FOREST`); labels are at least `names` pixels."""
    labels = list(dict.fromkeys(frame["label"]))
    domain = ratio_domain(frame[_RATIOS].to_numpy(float).ravel())

    def x(field: str) -> Any:
        return ratio_axis(alt.X, field, domain, title)

    axis = alt.Axis(ticks=False, domain=False, labelLimit=max(170, 0.87 * names), minExtent=names)
    rows = alt.Chart().encode(y=alt.Y("label:N", sort=labels, title=None, axis=axis))
    base = rows.encode(color=alt.Color("arm:N", scale=arm_scale(plan), legend=None))
    band = (
        alt.Chart()
        .transform_filter(alt.datum.first)
        .transform_filter("isValid(datum.band_low)")
        .mark_rect(color=GREY, opacity=0.28)
    )
    ranges = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2.5)
    return [
        band.encode(x=x("band_low"), x2=alt.X2("band_high")),
        once().mark_rule(color="currentColor", strokeWidth=1.2).encode(x=alt.XDatum(1.0)),
        ranges.encode(x=x("low"), x2=alt.X2("high")),
        *value_marks(base, 90, x=x("value")),
        rows.mark_text(align="left", fontSize=12).encode(x=alt.value(PLOT_WIDTH + 8), text=alt.Text("text:N")),
    ]


@dataclass(frozen=True)
class StepPanel:
    """One arm at one factor combination: `pairs` as of `step_ratios`, `overall` its raw estimate with its interval."""

    name: str
    arm: str
    pairs: pd.DataFrame
    overall: tuple[float, float, float]
    band: Band | None

    @property
    def words(self) -> str:
        counted = self.pairs.loc[self.pairs["counted"], RATIO]
        told = f"{len(counted)} counted pairs"
        if len(counted):
            told += f", ratios {times_text(counted.min())} to {times_text(counted.max())}"
        if math.isfinite(self.overall[0]):
            told += f", overall {interval_text(*self.overall)}"
        return f"{self.name}: {told}" + (f", A/A noise {self.band.words}" if self.band else "")


def step_ratios(wide: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """All paired steps as factors, arm, run_id (the seed), step, counted, and ratio: T_baseline / T_arm.

    Pairs in which a time is no positive number have no ratio and are left out.
    """
    slot = ["factors", "seed", "step"]
    seconds = pd.to_numeric(wide[PHASE + "step"], errors="coerce").astype(float)
    steps = wide[["arm", *slot]].assign(seconds=seconds, counted=wide["counted"].astype(bool))
    steps = steps[np.isfinite(steps["seconds"]) & (steps["seconds"] > 0)]
    others, base = steps[steps["arm"] != baseline], steps[steps["arm"] == baseline].drop(columns="arm")
    pairs: pd.DataFrame = others.merge(base, on=slot, suffixes=("", "_baseline"))
    counted = pairs["counted"] & pairs["counted_baseline"]
    found = pairs.assign(counted=counted, ratio=pairs["seconds_baseline"] / pairs["seconds"], run_id=pairs["seed"])
    return found[["factors", "arm", "run_id", "step", "counted", RATIO]]


def _overall(estimates: pd.DataFrame | None, factors: str, arm: str) -> tuple[float, float, float] | None:
    """The raw estimate with its interval, NaN without a table; None where the two must not be divided."""
    if estimates is None or not len(estimates):
        return (math.nan, math.nan, math.nan)
    here = (estimates["factors"] == factors) & (estimates["arm"] == arm) & (estimates["estimate"] == "raw")
    rows = points(estimates[here])
    return next(((r.value, r.low, r.high) for r in rows_of(rows[rows["drawable"]])), None)


def _step_rows(them: list[StepPanel]) -> pd.DataFrame:
    """What the chart needs of all panels: their steps (kind `step`), bands and overall estimates."""
    frames = []
    last, first = (float(f(f(p.pairs["step"]) for p in them)) for f in (max, min))
    # The overall estimate stands right of the last step.
    aside = last + 0.035 * max(last - first, 1)
    for n, panel in enumerate(them):
        band = panel.band or Band(math.nan, math.nan)
        more = [("band", math.nan, 1.0, band.low, band.high), ("overall", aside, *panel.overall)]
        both = pd.DataFrame(more, columns=["kind", "step", "value", "low", "high"]).assign(counted=True, line="")
        steps = series(panel.pairs, RATIO).assign(kind="step")
        frames.append(pd.concat([steps, both], ignore_index=True).assign(panel=n, arm=panel.arm))
    found = pd.concat(frames, ignore_index=True)
    return found.assign(kept=found["value"].where(found["counted"] & (found["kind"] == "step")))


def _step_layers(frame: pd.DataFrame, plan: PlanRead, width: float, height: float) -> list[Any]:
    steps = frame[frame["kind"] == "step"]
    first, last = float(steps["step"].min()), float(steps["step"].max())
    room = max(last - first, 1)
    domain = ratio_domain(frame[["low", "value", "high"]].to_numpy(float).ravel())
    x = alt.X(
        "step:Q",
        title="training step",
        scale=alt.Scale(domain=[first - 0.02 * room, last + 0.07 * room], nice=False),
        axis=alt.Axis(
            # Only a whole step has a name: one step alone, or none between two ticks.
            values=[first] if first == last else alt.Undefined,
            tickMinStep=1,
            format=",d",
            tickCount=max(2, min(10, int(width / 60))),
            grid=False,
        ),
    )

    def y(field: str) -> Any:
        return ratio_axis(alt.Y, field, domain, "times as fast as the baseline", max(4, int(height / 28)))

    colour = alt.Color("arm:N", scale=arm_scale(plan), legend=None)
    kinds = {kind: alt.Chart().transform_filter(alt.datum.kind == kind) for kind in ("step", "band", "overall")}
    band = kinds["band"].transform_filter("isValid(datum.low)").mark_rect(color=GREY, opacity=0.28)
    one = kinds["band"].mark_rule(color="currentColor", strokeWidth=1.2)
    base = kinds["step"].encode(x=x)
    counted = base.transform_filter(alt.datum.counted)
    faint = 1.0 if steps.groupby("panel")["line"].nunique().max() == 1 else 0.6
    lines = base.mark_line(strokeWidth=1.2, opacity=faint)
    dots = counted.mark_point(filled=True, size=22, opacity=max(faint, 0.75)).encode(y=y("value"), color=colour)
    spread = counted.mark_area(opacity=0.2).encode(y=y("low"), y2=alt.Y2("high"), color=colour)
    hollow = base.transform_filter("!datum.counted").mark_point(color=GREY, filled=False, size=20, strokeWidth=1.2)
    overall = kinds["overall"].encode(x=x, color=colour)
    ranged = overall.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2.5)
    diamond = overall.transform_filter("isValid(datum.value)").mark_point(
        shape="diamond", filled=True, size=110, opacity=1
    )
    return [
        band.encode(y=y("low"), y2=alt.Y2("high")),
        one.encode(y=y("value")),
        *([spread] if (steps["line"] == steps["arm"]).all() else []),
        lines.encode(y=y("kept"), color=colour, detail=alt.Detail("line:N")),
        *([dots] if len(steps) <= 800 else []),
        hollow.encode(y=y("value")),
        ranged.encode(y=y("low"), y2=alt.Y2("high")),
        diamond.encode(y=y("value")),
    ]


def paired_figure(
    wide: pd.DataFrame, plan: PlanRead, estimates: pd.DataFrame | None = None, noise: pd.DataFrame | None = None
) -> Figure | None:
    """T_baseline / T_arm of each paired step on a log axis, with the A/A band and the raw estimate beside."""
    if PHASE + "step" not in wide:
        return None
    found: list[StepPanel] = []
    refused = []
    for (factors, arm), pairs in step_ratios(wide, plan.baseline).groupby(["factors", "arm"], sort=False):
        name, overall = panel_name(str(arm), str(factors)), _overall(estimates, str(factors), str(arm))
        if overall is None:
            refused.append(name)
        else:
            found.append(StepPanel(name, str(arm), pairs, overall, noise_band(noise, str(factors), "step_")))
    if not found:
        return None
    drawn = found[:MAX_STEP_PANELS]
    frame = _step_rows(drawn)
    width, height = (WIDTH, 260) if len(drawn) == 1 else ((WIDTH - 60) / 2, 170)
    names = [p.name for p in drawn]
    seeds = max(p.pairs["run_id"].nunique() for p in drawn)
    several = "One line per seed. " if seeds <= 8 else "Median over the seeds; the band holds 10% to 90% of them. "
    aside = "The diamond at the right is the ratio of the sums, with its 95% interval. "
    return Figure(
        "paired-steps",
        "Step by step against the baseline",
        f"Step time of {plan.baseline} over the arm's, for each step that both have (log scale): above the line at 1 "
        f"the arm was faster. {several if seeds > 1 else ''}"
        f"{aside if any(math.isfinite(p.overall[0]) for p in drawn) else ''}"
        f"{band_words([p.band for p in drawn], 'two steps')}Hollow grey: steps that do not count."
        + (f" Not comparable, and not divided: {listed(refused, 6)}." if refused else "")
        + left_out(len(drawn), len(found), "arms and factor combinations", "steps")
        + cut_titles(names, width),
        f"Ratio of step times, {plan.baseline} over the arm, per paired step. {listed(p.words for p in found)}",
        draw(frame, _step_layers(frame, plan, width, height), width, height, panels(names, 2, width)),
        "steps",
    )
