"""How much faster an arm was, paired step by paired step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from analysis.drawing import GREY, WIDTH, Figure, arm_scale, render
from analysis.figure_data import series
from analysis.figures.estimate_rows import Band, comparable, interval_or_none, noise_band
from analysis.figures.panels import (
    interval_text,
    left_out,
    listed,
    panel_name,
    panel_title,
    ratio_axis,
    ratio_domain,
    stacked,
    times_text,
)
from analysis.rows import rows_of
from analysis.runs import Plan
from analysis.wide import PHASE

MAX_PANELS = 6
RATIO = "ratio"


@dataclass(frozen=True)
class Panel:
    """One arm at one factor combination: `pairs` as of `step_ratios`, `overall` its raw estimate with its interval."""

    arm: str
    factors: str
    pairs: pd.DataFrame
    overall: tuple[float, float, float]
    band: Band | None


def step_ratios(wide: pd.DataFrame, factors: str, baseline: str, arm: str) -> pd.DataFrame:
    """Paired steps as arm, run_id (the seed), step, counted, ratio: T_baseline / T_arm, those that do not count too.

    Pairs in which a time is no positive number have no ratio and are left out.
    """
    here = wide.loc[wide["factors"] == factors, ["arm", "seed", "step", "counted", PHASE + "step"]]
    a, b = here[here["arm"] == baseline], here[here["arm"] == arm]
    pairs = a.merge(b, on=["seed", "step"], suffixes=("_a", "_b"))
    root = PHASE + "step"
    base_s, arm_s = (pd.to_numeric(pairs[f"{root}_{side}"], errors="coerce").to_numpy(float) for side in "ab")
    good = np.isfinite(base_s) & np.isfinite(arm_s) & (base_s > 0) & (arm_s > 0)
    counted = pairs["counted_a"].astype(bool) & pairs["counted_b"].astype(bool)
    found = pd.DataFrame({"arm": arm, "run_id": pairs["seed"], "step": pairs["step"], "counted": counted})
    kept: pd.DataFrame = found[good]
    return kept.assign(ratio=base_s[good] / arm_s[good])


def _overall(estimates: pd.DataFrame | None, factors: str, arm: str) -> tuple[float, float, float]:
    if estimates is not None and len(estimates):
        rows = comparable(estimates)
        rows = rows[(rows["factors"] == factors) & (rows["arm"] == arm) & (rows["estimate"] == "raw")]
        for row in rows_of(rows):
            return (float(row.value), *interval_or_none(row))
    return (math.nan, math.nan, math.nan)


def _chart(
    panel: Panel, plan: Plan, domain: tuple[float, float], width: float, height: float, title: str | None
) -> Any:
    frame = series(panel.pairs, RATIO)
    first, last = float(frame["step"].min()), float(frame["step"].max())
    ends = [first, last] if last > first else [first - 0.5, first + 0.5]
    # The overall estimate stands right of the last step.
    aside = ends[1] + 0.035 * (ends[1] - ends[0])
    scale = alt.Scale(domain=[ends[0] - 0.01 * (ends[1] - ends[0]), ends[1] + 0.07 * (ends[1] - ends[0])], nice=False)
    x = alt.X(
        "step:Q",
        title="training step",
        scale=scale,
        axis=alt.Axis(tickMinStep=1, format=",d", tickCount=max(2, min(10, int(width / 60))), grid=False),
    )

    def y(field: str) -> Any:
        return ratio_axis(alt.Y, field, domain, title, max(4, int(height / 28)))

    colour = alt.Color("arm:N", scale=arm_scale(plan), legend=None)
    layers: list[Any] = []
    if panel.band:
        band = pd.DataFrame({"low": [panel.band.low], "high": [panel.band.high]})
        layers.append(
            alt.Chart(band).mark_rect(color=GREY, opacity=0.28).encode(y=y("low:Q"), y2="high:Q", x=alt.value(0))
        )
        layers[-1] = layers[-1].encode(x2=alt.value(width))
    one = alt.Chart(pd.DataFrame({"one": [1.0]})).mark_rule(color="currentColor", strokeWidth=1.2)
    layers.append(one.encode(y=y("one:Q")))
    frame = frame.assign(kept=frame["value"].where(frame["counted"]))
    lines = frame["line"].nunique()
    each = bool((frame["line"] != frame["arm"]).any())
    if not each:
        range_ = alt.Chart(frame[frame["counted"]]).mark_area(opacity=0.2)
        layers.append(range_.encode(x=x, y=y("low:Q"), y2="high:Q", color=colour))
    grey = frame[~frame["counted"]]
    points = len(frame) <= 400
    faint = 1.0 if lines == 1 else 0.6
    drawn = alt.Chart(frame).mark_line(strokeWidth=1.2, opacity=faint, clip=True)
    layers.append(drawn.encode(x=x, y=y("kept:Q"), color=colour, detail="line:N"))
    if points:
        dots = alt.Chart(frame[frame["counted"]]).mark_point(filled=True, size=22, opacity=max(faint, 0.75))
        layers.append(dots.encode(x=x, y=y("value:Q"), color=colour))
    if len(grey):
        hollow = alt.Chart(grey).mark_point(color=GREY, filled=False, size=20, strokeWidth=1.2, opacity=1)
        layers.append(hollow.encode(x=x, y=y("value:Q")))
    value, low, high = panel.overall
    if math.isfinite(value):
        overall = alt.Chart(
            pd.DataFrame({"arm": [panel.arm], "step": [aside], "value": [value], "low": [low], "high": [high]})
        )
        if math.isfinite(low):
            layers.append(overall.mark_rule(strokeWidth=2.5).encode(x=x, y=y("low:Q"), y2="high:Q", color=colour))
        layers.append(
            overall.mark_point(shape="diamond", filled=True, size=110, opacity=1).encode(
                x=x, y=y("value:Q"), color=colour
            )
        )
    name = panel_name(panel.arm, panel.factors)
    return alt.layer(*layers).properties(width=width, height=height, title=panel_title(name, width))


def paired_figure(
    wide: pd.DataFrame, plan: Plan, estimates: pd.DataFrame | None = None, noise: pd.DataFrame | None = None
) -> Figure | None:
    """T_baseline / T_arm of each paired step on a log axis, with the A/A band and the raw estimate beside."""
    if PHASE + "step" not in wide:
        return None
    keys = wide.loc[wide["arm"] != plan.baseline, ["factors", "arm"]].drop_duplicates()
    panels = []
    for row in rows_of(keys):
        pairs = step_ratios(wide, row.factors, plan.baseline, row.arm)
        if len(pairs):
            overall = _overall(estimates, row.factors, row.arm)
            panels.append(Panel(row.arm, row.factors, pairs, overall, noise_band(noise, row.factors)))
    if not panels:
        return None
    drawn = panels[:MAX_PANELS]
    shown: list[float] = []
    for panel in drawn:
        shown += list(series(panel.pairs, RATIO)[["low", "value", "high"]].to_numpy(float).ravel())
        shown += [v for v in panel.overall if math.isfinite(v)]
        shown += [panel.band.low, panel.band.high] if panel.band else []
    domain = ratio_domain(shown)
    one = len(drawn) == 1
    width, height = (WIDTH, 260) if one else ((WIDTH - 50) / 2, 170)
    title = "times as fast as the baseline"
    charts = [_chart(p, plan, domain, width, height, title if n % 2 == 0 else None) for n, p in enumerate(drawn)]
    words = []
    for panel in panels:
        counted = panel.pairs[panel.pairs["counted"]]["ratio"]
        told = f"{len(counted)} counted pairs"
        if len(counted):
            told += f", ratios {times_text(counted.min())} to {times_text(counted.max())}"
        if math.isfinite(panel.overall[0]):
            told += f", overall {interval_text(*panel.overall)}"
        if panel.band:
            told += f", A/A noise {panel.band.words}"
        words.append(f"{panel_name(panel.arm, panel.factors)}: {told}")
    few = all(p.pairs["run_id"].nunique() <= 1 for p in drawn)
    each = all(p.pairs["run_id"].nunique() <= 8 for p in drawn)
    how = "" if few else "One line per seed. " if each else "Median over the seeds; the band holds 10% to 90% of them. "
    aside = (
        "The diamond at the right is the ratio of the sums, with its 95% interval. "
        if any(math.isfinite(p.overall[0]) for p in drawn)
        else ""
    )
    bands = {p.band.words for p in drawn if p.band}
    band = (
        f"Grey band: the A/A noise, how far two runs of one and the same arm lie apart ({next(iter(bands))}). "
        if len(bands) == 1
        else "Grey band: the A/A noise, how far two runs of one and the same arm lie apart. "
        if bands
        else "No A/A arm was run: how far two runs of one arm lie apart is not known. "
    )
    caption = (
        f"Step time of {plan.baseline} over the arm's, for each step that both have (log scale): above the line at 1 "
        f"the arm was faster. {how}{aside}{band}Hollow grey: steps that do not count."
    )
    return Figure(
        "paired-steps",
        "Step by step against the baseline",
        caption + left_out(len(drawn), len(panels), "arms and factor combinations", "steps"),
        f"Ratio of step times, {plan.baseline} over the arm, per paired step. {listed(words)}",
        render(stacked(charts, columns=2)),
        "steps",
    )
