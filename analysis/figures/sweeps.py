"""Draws a sweep: speed over its options as lines with intervals, or its settings ranked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import altair as alt
import pandas as pd

from analysis.estimates.equal_work import EQUAL_WORK
from analysis.estimates.ranking import FIRST, UNKNOWN, UNRESOLVED
from analysis.factors import factors_key, factors_label, factors_of, short_names
from analysis.figures.drawing import (
    ARM_COLOURS,
    ARM_DASHES,
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
from analysis.figures.ratios import (
    CIRCLE,
    DIAMOND,
    FOREST,
    PLOT_WIDTH,
    ROW,
    TRIANGLE,
    forest,
    points,
    value_marks,
)
from analysis.planned import PlanRead
from analysis.runs import rows_of
from common.verdicts import count_of

MAX_PANELS, MAX_SETTINGS, MAX_LINES = 8, 40, 6
MAX_VALUES = 24
NAMES, LETTER = 380, 7
"""Pixels for the names of ranked settings at most, and for a letter: a page's font is wider than Vega assumes."""


def _texts(key: str) -> dict[str, str]:
    """A factor combination's values in one line each."""
    return {path: " ".join(str(value).split()) for path, value in factors_of(key).items()}


def swept(keys: Sequence[str]) -> dict[str, list[str]]:
    """The factors with more than one value, each with its values in order: numbers by size, texts as they come."""
    values: dict[str, dict[str, Any]] = {}
    for key in keys:
        texts = _texts(key)
        for name, value in factors_of(key).items():
            values.setdefault(name, {}).setdefault(texts[name], value)
    levels = {}
    for name, texts in values.items():
        if len(texts) > 1:
            numbers = all(isinstance(v, int | float) for v in texts.values())
            levels[name] = sorted(texts, key=texts.__getitem__) if numbers else list(texts)
    return levels


def shown_estimates(estimates: pd.DataFrame) -> list[str]:
    """The raw estimate, and the estimate at equal work with the most values; without any, the one per token."""
    counts = estimates.loc[estimates["drawable"], "estimate"].value_counts()
    # Of equal counts the less biased comes first.
    best = max(EQUAL_WORK, key=lambda name: int(counts.get(name, 0)))
    return [name for name in ("raw", best if best in counts else "per_token") if name in counts]


def sweep_figures(estimates: pd.DataFrame, plan: PlanRead) -> list[Figure]:
    """Ratios over the swept option with the most values, a line for each combination of the others; none without."""
    if estimates.empty:
        return []
    levels, every = swept(list(dict.fromkeys(estimates["factors"]))), points(estimates)
    shown = shown_estimates(every)
    if not levels or not shown:
        return []
    across = max(levels, key=lambda path: len(levels[path]))
    names, rest = short_names(list(levels)), [path for path in levels if path != across]
    frame = every[every["estimate"].isin(shown)]
    values = [_texts(key) for key in frame["factors"]]
    frame = frame.assign(
        x=pd.Series([v.get(across) for v in values], index=frame.index, dtype=object),
        rest=[", ".join(f"{names[path]} = {v[path]}" for path in rest if path in v) for v in values],
    )
    others = ", ".join(names[path] for path in rest)
    return [_line_figure(frame[frame["x"].notna()], plan, shown, names[across], levels[across], others)]


def _not_resolved(points_: pd.DataFrame) -> str:
    """Why some of these points are not resolved; empty where all are."""
    hollow = points_[points_["shape"] == DIAMOND]
    apart = (hollow["low"] > 1) | (hollow["high"] < 1)
    also = ", the value is within the noise, or there is one run pair" if apart.any() else ""
    return f"not resolved, the interval includes 1{also}" if len(hollow) else ""


def _alt_text(plan: PlanRead, over: str, rows: pd.DataFrame) -> str:
    values = (f"{panel_name(r.arm, r.factors)}, {r.label}: {r.text}" for r in rows_of(rows))
    return f"Times as fast as {plan.baseline} over {over}. {listed(values)}"


def _line_figure(
    frame: pd.DataFrame, plan: PlanRead, shown: list[str], name: str, levels: list[str], others: str
) -> Figure:
    """`frame` are the points of the shown estimates, with their value of the option `name` as `x`."""
    valued = frame[frame["drawable"]]
    order, lines = levels[:MAX_VALUES], list(dict.fromkeys(valued["rest"]))
    drawn = valued[valued["x"].isin(order) & valued["rest"].isin(lines[:MAX_LINES])]
    arms = [arm for arm in plan.arms if arm in set(valued["arm"])]
    ways = [(arm, estimate) for arm in arms for estimate in shown][:MAX_PANELS]
    parts = [
        drawn[(drawn["arm"] == arm) & (drawn["estimate"] == estimate)].assign(panel=n)
        for n, (arm, estimate) in enumerate(ways)
    ]
    titles = [f"{arm}: {estimate.replace('_', ' ')}" for arm, estimate in ways]
    width = 300 if len(shown) == 2 else WIDTH
    domain = ratio_domain(drawn[["value", "low", "high"]].to_numpy(float).ravel())
    layers = _lines(plan, name, order, lines[:MAX_LINES], domain, width)
    missing, shapes, unresolved = int((~frame["drawable"]).sum()), set(drawn["shape"]), _not_resolved(drawn)
    sentences = {
        f"Speed against {plan.baseline} over {name} (log scale; 1: as fast), with 95% intervals.": True,
        f"One line for each combination of {others}.": len(lines) > 1,
        "Filled circle: the interval excludes 1.": CIRCLE in shapes,
        f"Hollow diamond: {unresolved}.": bool(unresolved),
        "Hollow triangle: no interval.": TRIANGLE in shapes,
        f"Not comparable and not drawn: {count_of(missing, 'estimate')}.": missing > 0,
        f"The first {MAX_VALUES} of {len(levels)} values are drawn.": len(levels) > MAX_VALUES,
    }
    columns = ["panel", "arm", "x", "rest", "value", "low", "high", "shape"]
    return Figure(
        "sweep",
        f"Speed over {name}",
        " ".join(text for text, applies in sentences.items() if applies)
        + left_out(min(len(lines), MAX_LINES), len(lines), "lines", "estimates")
        + left_out(len(ways), len(arms) * len(shown), "panels", "estimates"),
        _alt_text(plan, name, valued),
        draw(pd.concat(parts, ignore_index=True)[columns], layers, width, 190, panels(titles, len(shown), width)),
    )


def _angle(values: list[str], width: float) -> int:
    """The angle of an axis' labels: they turn where they would overlap."""
    return -40 if max(len(v) for v in values) * 7.5 > width / len(values) else 0


def _lines(
    plan: PlanRead, name: str, order: list[str], lines: list[str], domain: tuple[float, float], width: float
) -> list[Any]:
    axis = alt.Axis(labelAngle=_angle(order, width), labelLimit=110, titleLimit=0.8 * width, grid=False)
    x = alt.X("x:N", sort=order, title=name, scale=alt.Scale(domain=order), axis=axis)
    y = partial(ratio_axis, alt.Y, domain=domain, title="times as fast as the baseline", at_most=6)
    apart: dict[str, Any] = {"color": alt.Color("arm:N", scale=arm_scale(plan.arms), legend=None)}
    dash: dict[str, Any] = {}
    if len(lines) > 1:
        scale = alt.Scale(domain=lines, range=list(ARM_COLOURS[: len(lines)]))
        legend = alt.Legend(symbolType="stroke", symbolSize=300, columns=2, labelLimit=230)
        # The intervals of one value are next to each other.
        beside = alt.XOffset("rest:N", scale=alt.Scale(domain=lines, paddingOuter=1))
        apart = {"color": alt.Color("rest:N", scale=scale, legend=legend), "xOffset": beside}
        dashes = alt.Scale(domain=lines, range=list(ARM_DASHES[: len(lines)]))
        dash = {"strokeDash": alt.StrokeDash("rest:N", scale=dashes)}
    base = alt.Chart().encode(x=x, **apart)
    joined = base.mark_line(strokeWidth=1.5, opacity=0.8).encode(y=y("value"), detail=alt.Detail("rest:N"), **dash)
    ranged = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2)
    one = once().mark_rule(color="currentColor", strokeWidth=1.2).encode(y=alt.YDatum(1.0))
    return [one, joined, ranged.encode(y=y("low"), y2=alt.Y2("high")), *value_marks(base, 60, y=y("value"))]


def ranking_figure(ranking: pd.DataFrame, plan: PlanRead) -> Figure | None:
    """Each setting's seconds over the first one's (`ranking_table`), with intervals; a panel for each workload."""
    if ranking.empty:
        return None
    one_arm = ranking["arm"].nunique() == 1
    names = [_setting_name(row, one_arm) for row in rows_of(ranking)]
    text = [_ranked_text(row) for row in rows_of(ranking)]
    workloads = list(dict.fromkeys(ranking["workload"]))[:MAX_PANELS]
    frame = ranking.assign(
        label=[f"{rank}. {name}" for rank, name in zip(ranking["rank"], names, strict=True)],
        text=text,
        value=ranking["ratio"],
        shape=ranking["verdict"].map({UNRESOLVED: DIAMOND, UNKNOWN: ""}).fillna(CIRCLE),
        **{"first": False, "band_low": math.nan, "band_high": math.nan},
    )
    frame = frame[frame["workload"].isin(workloads) & (frame["rank"] <= MAX_SETTINGS)]
    frame = frame.assign(panel=frame["workload"].map(workloads.index)).sort_values(["rank", "panel"])
    names_width = min(NAMES, LETTER * max(map(len, frame["label"])))
    # Room on the right for numbers in a page's font.
    room = once().mark_point(opacity=0).encode(x=alt.value(PLOT_WIDTH + 170), y=alt.value(0))
    layers = [*forest(frame, plan, "times the first's seconds (log scale)", names_width), room]
    of_each = panels([factors_label(workload) for workload in workloads], 1, PLOT_WIDTH, own_y=True)
    return Figure(
        "ranking",
        "Settings, the fastest first",
        "Step time over the first setting's, with 95% intervals over runs. Right of the line at 1 a setting is slower. "
        "Hollow diamond and ~: not resolved from the first."
        + left_out(len(frame), len(ranking), "settings", "ranking"),
        "Settings by seconds of a step. " + listed(f"{name}: {t}" for name, t in zip(names, text, strict=True)),
        draw(frame[FOREST], layers, PLOT_WIDTH, {"step": ROW}, of_each),
    )


def _setting_name(row: Any, one_arm: bool) -> str:
    """An arm and its own options, or with one arm only the options; the panel's name has the workload's."""
    own = {path: value for path, value in _texts(row.factors).items() if not path.startswith("workload.")}
    key = factors_key(own)
    return factors_label(key) if one_arm and own else panel_name(row.arm, key)


def _ranked_text(row: Any) -> str:
    if row.verdict == FIRST:
        return f"{row.step_s:.3g} s a step"
    if row.verdict == UNKNOWN:
        return "× not comparable"
    return interval_text(row.ratio, row.low, row.high) + (" ~" if row.verdict == UNRESOLVED else "")
