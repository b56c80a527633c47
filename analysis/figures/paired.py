"""How much faster an arm was, paired step by paired step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from analysis.figures.drawing import GREY, WIDTH, Figure, arm_scale, render
from analysis.figures.estimate_rows import Band, band_words, comparable, interval_or_none, noise_band
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
from analysis.rows import rows_of
from analysis.runs import PlanRead
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


def step_ratios(wide: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """All paired steps as factors, arm, run_id (the seed), step, counted, and ratio: T_baseline / T_arm.

    Pairs in which a time is no positive number have no ratio and are left out.
    """
    root = PHASE + "step"
    slot = ["factors", "seed", "step"]
    steps = wide[["arm", *slot, "counted"]].assign(seconds=pd.to_numeric(wide[root], errors="coerce").astype(float))
    steps = steps[np.isfinite(steps["seconds"]) & (steps["seconds"] > 0)]
    others, base = steps[steps["arm"] != baseline], steps[steps["arm"] == baseline].drop(columns="arm")
    pairs = others.merge(base, on=slot, suffixes=("", "_baseline"))
    counted = pairs["counted"].astype(bool) & pairs["counted_baseline"].astype(bool)
    ratio = pairs["seconds_baseline"] / pairs["seconds"]
    found: pd.DataFrame = pairs.assign(counted=counted, ratio=ratio, run_id=pairs["seed"])
    return found[["factors", "arm", "run_id", "step", "counted", RATIO]]


def _overall(estimates: pd.DataFrame | None, factors: str, arm: str) -> tuple[float, float, float] | None:
    """The raw estimate with its interval, NaN without a table; None where the two must not be divided."""
    if estimates is None or not len(estimates):
        return (math.nan, math.nan, math.nan)
    rows = comparable(estimates)
    rows = rows[(rows["factors"] == factors) & (rows["arm"] == arm) & (rows["estimate"] == "raw")]
    return next(((float(row.value), *interval_or_none(row)) for row in rows_of(rows)), None)


def _drawn(them: list[Panel]) -> pd.DataFrame:
    """What the chart needs of all panels: their steps (kind `step`), bands and overall estimates."""
    frames = []
    last = max(float(p.pairs["step"].max()) for p in them)
    first = min(float(p.pairs["step"].min()) for p in them)
    for n, panel in enumerate(them):
        steps = series(panel.pairs, RATIO)
        value, low, high = panel.overall
        band = panel.band or Band(math.nan, math.nan)
        # The overall estimate stands right of the last step.
        aside = last + 0.035 * max(last - first, 1)
        more = pd.DataFrame(
            {
                "kind": ["band", "overall"],
                "arm": panel.arm,
                "line": "",
                "step": [math.nan, aside],
                "value": [1.0, value],
                "low": [band.low, low],
                "high": [band.high, high],
                "counted": True,
            }
        )
        frames.append(pd.concat([steps.assign(kind="step"), more], ignore_index=True).assign(panel=n))
    found = pd.concat(frames, ignore_index=True)
    return found.assign(kept=found["value"].where(found["counted"] & (found["kind"] == "step")))


def _chart(frame: pd.DataFrame, plan: PlanRead, domain: tuple[float, float], width: float, height: float) -> Any:
    steps = frame[frame["kind"] == "step"]
    first, last = float(steps["step"].min()), float(steps["step"].max())
    room = max(last - first, 1)
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
        title = "times as fast as the baseline"
        return ratio_axis(alt.Y, field, domain, title, max(4, int(height / 28)))

    colour = alt.Color("arm:N", scale=arm_scale(plan), legend=None)
    kinds = {kind: alt.Chart().transform_filter(alt.datum.kind == kind) for kind in ("step", "band", "overall")}
    band = kinds["band"].transform_filter("isValid(datum.low)").mark_rect(color=GREY, opacity=0.28)
    one = kinds["band"].mark_rule(color="currentColor", strokeWidth=1.2)
    layers: list[Any] = [band.encode(y=y("low:Q"), y2="high:Q"), one.encode(y=y("value:Q"))]
    base = kinds["step"].encode(x=x)
    counted = base.transform_filter(alt.datum.counted)
    if (steps["line"] == steps["arm"]).all():
        layers.append(counted.mark_area(opacity=0.2).encode(y=y("low:Q"), y2="high:Q", color=colour))
    faint = 1.0 if steps.groupby("panel")["line"].nunique().max() == 1 else 0.6
    lines = base.mark_line(strokeWidth=1.2, opacity=faint)
    layers.append(lines.encode(y=y("kept:Q"), color=colour, detail="line:N"))
    if len(steps) <= 800:
        dots = counted.mark_point(filled=True, size=22, opacity=max(faint, 0.75))
        layers.append(dots.encode(y=y("value:Q"), color=colour))
    hollow = base.transform_filter("!datum.counted").mark_point(color=GREY, filled=False, size=20, strokeWidth=1.2)
    layers.append(hollow.encode(y=y("value:Q")))
    overall = kinds["overall"].encode(x=x)
    ranged = overall.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2.5)
    layers.append(ranged.encode(y=y("low:Q"), y2="high:Q", color=colour))
    valued = overall.transform_filter("isValid(datum.value)")
    diamond = valued.mark_point(shape="diamond", filled=True, size=110, opacity=1)
    layers.append(diamond.encode(y=y("value:Q"), color=colour))
    return alt.layer(*layers).properties(width=width, height=height)


def paired_figure(
    wide: pd.DataFrame, plan: PlanRead, estimates: pd.DataFrame | None = None, noise: pd.DataFrame | None = None
) -> Figure | None:
    """T_baseline / T_arm of each paired step on a log axis, with the A/A band and the raw estimate beside."""
    if PHASE + "step" not in wide:
        return None
    found: list[Panel] = []
    refused_names = []
    for (factors, arm), pairs in step_ratios(wide, plan.baseline).groupby(["factors", "arm"], sort=False):
        overall = _overall(estimates, str(factors), str(arm))
        if overall is None:
            refused_names.append(panel_name(str(arm), str(factors)))
            continue
        band = noise_band(noise, str(factors), "step_")
        found.append(Panel(str(arm), str(factors), pairs.drop(columns="factors"), overall, band))
    if not found:
        return None
    drawn = found[:MAX_PANELS]
    frame = _drawn(drawn)
    domain = ratio_domain(frame[["low", "value", "high"]].to_numpy(float).ravel())
    width, height = (WIDTH, 260) if len(drawn) == 1 else ((WIDTH - 60) / 2, 170)
    names = [panel_name(p.arm, p.factors) for p in drawn]
    chart = panels(_chart(frame, plan, domain, width, height), frame, names, 2, width)
    words = []
    for panel in found:
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
    grey = band_words([p.band for p in drawn], "two steps")
    refused = f" Not comparable, and not divided: {listed(refused_names, 6)}." if refused_names else ""
    caption = (
        f"Step time of {plan.baseline} over the arm's, for each step that both have (log scale): above the line at 1 "
        f"the arm was faster. {how}{aside}{grey}Hollow grey: steps that do not count.{refused}"
    )
    return Figure(
        "paired-steps",
        "Step by step against the baseline",
        caption + left_out(len(drawn), len(found), "arms and factor combinations", "steps") + cut_titles(names, width),
        f"Ratio of step times, {plan.baseline} over the arm, per paired step. {listed(words)}",
        render(chart),
        "steps",
    )
