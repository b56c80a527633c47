"""How the speed changes with the swept factors."""

from __future__ import annotations

import itertools
import re
from typing import Any

import altair as alt
import pandas as pd

from analysis.figures.drawing import ARM_COLOURS, ARM_DASHES, GREY, WIDTH, Figure, arm_scale, render
from analysis.figures.estimate_rows import NO_INTERVAL, RESOLVED, SHAPES, UNRESOLVED, label_of
from analysis.figures.factor_grid import (
    combination,
    not_resolved,
    place,
    points,
    short_names,
    shown_estimates,
    swept,
)
from analysis.figures.heat_map import heat_map
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
from common.verdicts import count_of

MAX_FACTORS = 4
MAX_PANELS = 8
MAX_LINES = 6
MAX_VALUES = 24


def sweep_figures(estimates: pd.DataFrame, plan: PlanRead) -> list[Figure]:
    """A figure for each swept factor, and with two or more of them a heat map; none without a sweep."""
    if estimates.empty:
        return []
    levels = swept(list(dict.fromkeys(estimates["factors"])))
    shown = shown_estimates(estimates)
    if not levels or not shown:
        return []
    all_points = points(estimates[estimates["estimate"].isin(shown)])
    found: list[Figure] = []
    for n, factor in enumerate(list(levels)[:MAX_FACTORS]):
        found.append(_factor_figure(all_points, plan, levels, factor, shown, n))
    if len(levels) > 1:
        found.append(heat_map(all_points, plan, levels, shown))
    return found


def _name(factor: str, n: int) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", factor.rsplit(".", 1)[-1].lower()).strip("-")
    return f"sweep-{n + 1}-{slug[:40]}".rstrip("-")


def _ways(arms: list[str], shown: list[str]) -> list[tuple[str, str]]:
    return list(itertools.product(arms, shown))


def _factor_figure(
    all_points: pd.DataFrame,
    plan: PlanRead,
    levels: dict[str, list[str]],
    factor: str,
    shown: list[str],
    n: int,
) -> Figure:
    names = short_names(list(levels))
    others = [f for f in levels if f != factor]
    frame = all_points.assign(
        at=pd.Series([place(key, factor) for key in all_points["factors"]], index=all_points.index, dtype=object),
        other=[combination(key, others, names) for key in all_points["factors"]],
    )
    valued = frame[frame["comparable"] & frame["at"].notna()]
    order = levels[factor][:MAX_VALUES]
    arms = [a for a in plan.arms if a in set(valued["arm"])]
    ways = _ways(arms, shown)
    drawn = ways[:MAX_PANELS]
    lines = list(dict.fromkeys(valued["other"]))
    seen = valued[valued["at"].isin(order)]
    ends = list(seen[["value", "low", "high"]].to_numpy(float).ravel())
    domain = ratio_domain(ends)
    columns = len(shown)
    width = 300 if columns == 2 else WIDTH
    frames = [
        seen[(seen["arm"] == arm) & (seen["estimate"] == estimate)].assign(panel=n)
        for n, (arm, estimate) in enumerate(drawn)
    ]
    titles = [f"{arm}: {label_of(estimate)}" for arm, estimate in drawn]
    everything = pd.concat(frames, ignore_index=True)
    first = ~everything["panel"].duplicated()
    layered = _lines(plan, (names[factor], order), lines, domain, width)
    chart = panels(layered, everything.assign(one=1.0, first=first), titles, columns, width)
    words = [
        f"{panel_name(r.arm, r.factors)}, {label_of(r.estimate)}: {interval_text(r.value, r.low, r.high)}"
        + (" ~" if r.shape == UNRESOLVED else "")
        for r in rows_of(valued)
    ]
    without = int((~frame["comparable"]).sum())
    told = [
        f"Speed against {plan.baseline} over {names[factor]} (log scale; 1: as fast)"
        + (", with 95% intervals. " if len(lines) <= MAX_LINES else ". "),
        ("One line for each combination of the other factors. " if len(lines) > 1 else ""),
        (
            "Their names do not fit here; tables/estimates.csv has them, and the intervals. "
            if len(lines) > MAX_LINES
            else ""
        ),
        _meanings(seen),
        (f"{count_of(without, 'estimate')} not comparable, and not drawn. " if without else ""),
        (
            f"The first {MAX_VALUES} of {len(levels[factor])} values are drawn. "
            if len(levels[factor]) > MAX_VALUES
            else ""
        ),
        (f"The first {MAX_FACTORS} of {len(levels)} factors have a figure. " if len(levels) > MAX_FACTORS else ""),
    ]
    return Figure(
        _name(factor, n),
        f"Speed over {names[factor]}",
        "".join(told).strip() + left_out(len(drawn), len(ways), "panels", "estimates"),
        f"Speed against {plan.baseline} over {names[factor]}. {listed(words)}",
        render(chart),
        "estimates",
    )


def _meanings(seen: pd.DataFrame) -> str:
    shapes, unresolved = set(seen["shape"]), not_resolved(seen)
    filled = "Filled circle: the interval does not touch 1. " if RESOLVED in shapes else ""
    hollow = f"Hollow diamond: {unresolved}. " if unresolved else ""
    return filled + hollow + ("Hollow triangle: no interval can be given. " if NO_INTERVAL in shapes else "")


def _lines(
    plan: PlanRead, x_of: tuple[str, list[str]], lines: list[str], domain: tuple[float, float], width: float
) -> Any:
    name, order = x_of
    turned = max(len(v) for v in order) * 7.5 > width / len(order)
    x = alt.X(
        "at:N",
        sort=order,
        title=name,
        scale=alt.Scale(domain=order),
        axis=alt.Axis(labelAngle=-40 if turned else 0, labelLimit=110, titleLimit=0.8 * width, grid=False),
    )

    def y(field: str) -> Any:
        return ratio_axis(alt.Y, field, domain, "times as fast as the baseline", 6)

    one_line = len(lines) <= 1
    colour: Any
    if one_line:
        colour = alt.Color("arm:N", scale=arm_scale(plan), legend=None)
    elif len(lines) <= MAX_LINES:
        scale = alt.Scale(domain=lines, range=list(ARM_COLOURS[: len(lines)]))
        legend = alt.Legend(symbolType="stroke", symbolSize=300, columns=2, labelLimit=230)
        colour = alt.Color("other:N", scale=scale, legend=legend)
    else:
        colour = alt.value(GREY)
    labelled = not one_line and len(lines) <= MAX_LINES
    # Intervals of one value stand side by side.
    apart: Any = {"xOffset": alt.XOffset("other:N", scale=alt.Scale(domain=lines, paddingOuter=1))} if labelled else {}
    layers: list[Any] = []
    one = alt.Chart().transform_filter(alt.datum.first).mark_rule(color="currentColor", strokeWidth=1.2)
    layers.append(one.encode(y=y("one:Q")))
    base = alt.Chart().encode(x=x, **apart)
    dash: Any = (
        {"strokeDash": alt.StrokeDash("other:N", scale=alt.Scale(domain=lines, range=list(ARM_DASHES[: len(lines)])))}
        if labelled
        else {}
    )
    layers.append(
        base.mark_line(strokeWidth=1.5, opacity=0.8).encode(y=y("value:Q"), color=colour, detail="other:N", **dash)
    )
    if len(lines) <= MAX_LINES:
        ranged = base.transform_filter("isValid(datum.low)")
        layers.append(ranged.mark_rule(strokeWidth=2).encode(y=y("low:Q"), y2="high:Q", color=colour))
    kinds = list(SHAPES)
    shape = alt.Shape("shape:N", scale=alt.Scale(domain=kinds, range=[SHAPES[k] for k in kinds]), legend=None)
    for filled, rows in ((True, alt.datum.shape == RESOLVED), (False, alt.datum.shape != RESOLVED)):
        marks = base.transform_filter(rows).mark_point(
            filled=filled, size=60 if len(lines) <= MAX_LINES else 28, strokeWidth=1.6, opacity=1
        )
        layers.append(marks.encode(y=y("value:Q"), shape=shape, color=colour))
    return alt.layer(*layers).properties(width=width, height=190)
