"""Draws each setting's seconds as a bar, stacked by phase; with a sweep also its ratio."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from analysis.estimates.estimate_table import EQUAL_WORK, legible
from analysis.figures.drawing import (
    CATEGORY_COLOURS,
    PAGE,
    Figure,
    draw,
    listed,
    only_first,
    wrapped,
)
from analysis.phases import RESIDUAL, category_table
from analysis.planned import PlanRead, factors_key, factors_label, factors_of
from analysis.runs import rows_of
from analysis.verdict.arm_verdict import equal_within, ratio_text, seconds_text, span_text
from analysis.verdict.claim import UNITS

MAX_BARS, BAR_WIDTH, LINE = 24, 270, 15
NAME_LETTERS = 40
NO_TIMER = "no timer"
UNSEEN_SHARE = 0.004
"""A time below this share of each bar, about a pixel, takes no place in the legend."""


def setting_name(plan: PlanRead, arm: str, factors: str) -> tuple[str, str]:
    """The factors that change the work, and the setting: the arm (of several) and its other factors."""
    parts: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for path, value in factors_of(factors).items():
        parts[path.startswith("workload.")][path] = value
    others, work = (factors_label(factors_key(part)) for part in parts)
    setting = others if others and len(plan.arms) == 1 else f"{arm} · {others}" if others else arm
    return wrapped(work, NAME_LETTERS), wrapped(setting, NAME_LETTERS)


def claims(estimates: pd.DataFrame) -> dict[tuple[str, str], Any]:
    """By (factors, arm): the first estimate that has a value, as it may be shown; else one without."""
    found: dict[tuple[str, str], Any] = {}
    for row in rows_of(legible(estimates)):
        key = (row.factors, row.arm)
        if key not in found or not found[key].value > 0:
            found[key] = row
    return found


def claim_text(row: Any, plan: PlanRead, unit: str = "") -> str:
    """`2.15x (2.02 to 2.31)`, with `~` if it is not resolved, `=` if it is equal; without a ratio why, in two words."""
    if not 0 < row.value < math.inf:
        return "not resolved" if row.verdict == "~" else "not comparable"
    ends = f" ({span_text((row.low, row.high))})" if 0 < row.low <= row.high < math.inf else ""
    sign = " =" if equal_within((row.low, row.high), plan.until) else " ~"
    return f"{ratio_text(row.value)}{unit}{ends}" + (sign if row.verdict == "~" else "")


def phase_bars(plan: PlanRead, tables: Mapping[str, pd.DataFrame]) -> Figure | None:
    """A bar for each arm and factor combination: its mean step, stacked by category.

    The end of a bar has its seconds. With several combinations it has the ratio too: the verdict then has only a range.
    """
    categories = category_table(tables["phases"], "step")
    categories = categories[np.isfinite(categories["own_mean_s"].astype(float))]
    if categories.empty:
        return None
    every = categories[["factors", "arm"]].drop_duplicates()
    claimed = claims(tables["estimates"])
    of = claimed if every["factors"].nunique() > 1 else {}
    if plan.engines_only or len(plan.arms) == 1:
        # Settings, the fastest first; of several arms that train, each stands by its baseline.
        every = pd.concat([tables["ranking"][["factors", "arm"]], every]).drop_duplicates()
    units = {f" {UNITS[row.estimate]}" for row in of.values() if row.value > 0}
    rows, texts = [], []
    for one in rows_of(every.head(MAX_BARS)):
        mine = categories[(categories["factors"] == one.factors) & (categories["arm"] == one.arm)]
        claim = of.get((one.factors, one.arm))
        end = "baseline" if one.arm == plan.baseline and of else ""
        if claim is not None:
            end = claim_text(claim, plan, f" {UNITS[claim.estimate]}" if len(units) > 1 else "")
        step_s = mine["own_mean_s"].sum()
        seconds = seconds_text(step_s) if step_s > 0 else f"{step_s:.3g} s"
        rows += _pieces(setting_name(plan, one.arm, one.factors), mine, f"{seconds}\n{end}".strip())
        parts = ", ".join(f"{r.category} {r.own_mean_s:.3g} s" for r in rows_of(mine))
        name = ", ".join(filter(None, (one.arm, factors_label(one.factors))))
        texts.append(f"{name} {', '.join(filter(None, (seconds, end)))} ({parts})")
    is_empty = len(rows) > len(texts) and any(row["category"] == NO_TIMER for row in rows)
    caption = "Mean seconds of the counted steps" + (f" (empty: {NO_TIMER})" if is_empty else "")
    if len(units) == 1:
        interval = " (95% interval)" if any(row.low > 0 for row in of.values()) else ""
        caption += f"; under the seconds: times as fast as {plan.baseline}{units.pop()}{interval}"
    elif not of and any(row.estimate == EQUAL_WORK and row.value > 0 for row in claimed.values()):
        caption += ", as measured; the verdict has them at equal response lengths"
    size = (BAR_WIDTH, alt.Step(34 + LINE * _name_lines(rows)))
    return Figure(
        "phases",
        "Seconds of a step",
        f"{caption}." + only_first(MAX_BARS, len(every), "bars", "phases"),
        f"Mean seconds of a step. {listed(texts)}",
        draw(rows, _bar_layers(rows, plan.step_of), size, {"y": "independent"}),
    )


def _pieces(name: tuple[str, str], mine: pd.DataFrame, end: str) -> list[dict[str, Any]]:
    """The pieces of one bar; the last has the text at its end."""
    seconds: dict[str, float] = {}
    for row in rows_of(mine):
        category = row.category if row.category in CATEGORY_COLOURS else "other"
        category = NO_TIMER if row.category == RESIDUAL else category
        seconds[category] = seconds.get(category, 0.0) + row.own_mean_s
    order, least = [*CATEGORY_COLOURS, NO_TIMER], UNSEEN_SHARE * sum(map(abs, seconds.values()))
    # What is empty has an outline, which would be all that is seen of it; a negative time would shift the axis.
    drawn = [one for one, taken in seconds.items() if abs(taken) > least or (taken > 0 and one != NO_TIMER)]
    rows: list[dict[str, Any]] = [
        {"panel": name[0], "setting": name[1], "category": category, "rank": order.index(category)}
        | {"seconds": seconds[category], "seen": abs(seconds[category]) > least}
        for category in sorted(drawn or seconds, key=order.index)
    ]
    rows[-1] |= {"end": end, "right": sum(max(0.0, row["seconds"]) for row in rows)}
    return rows


def _name_lines(rows: Sequence[Mapping[str, Any]]) -> int:
    return max(str(row["setting"]).count("\n") + 1 for row in rows)


def _bar_layers(rows: Sequence[Mapping[str, Any]], step_of: str) -> list[Any]:
    """The bars, their seconds and ratios at the end, their names above."""
    present = [name for name in (*CATEGORY_COLOURS, NO_TIMER) if any(row["category"] == name for row in rows)]
    # Without any timer the bar is the step.
    untimed = CATEGORY_COLOURS["other"] if present == [NO_TIMER] else "transparent"
    colours = alt.Scale(domain=present, range=[CATEGORY_COLOURS.get(name, untimed) for name in present])
    seen = [name for name in present if any(row["category"] == name and row["seen"] for row in rows)]
    legend = alt.Legend(symbolStrokeColor=PAGE, symbolStrokeWidth=1, columns=3, values=seen or present)
    base = alt.Chart().encode(y=alt.Y("setting:N", sort=None, title=None, axis=None))
    lines = _name_lines(rows)
    down, up = LINE / 2 * lines, 7 if any("\n" in row.get("end", "") for row in rows) else 0
    axis = alt.Axis(tickCount=6, labelFlush=False)
    pieces = base.mark_bar(size=24, yOffset=down).encode(
        x=alt.X("seconds:Q", stack="zero", title=f"seconds per {step_of}", axis=axis),
        order=alt.Order("rank:Q"),
        color=alt.Color("category:N", scale=colours, legend=legend),
        stroke=alt.condition(f"datum.category == '{NO_TIMER}'", alt.value(PAGE), alt.value("transparent")),
    )
    last = base.transform_filter("isValid(datum.end)")
    look: dict[str, Any] = {"align": "left", "lineBreak": "\n", "lineHeight": LINE}
    text = last.mark_text(baseline="middle", dx=6, dy=down - up, **look)
    # Names begin at the top of their band.
    name = last.mark_text(baseline="top", dy=5 - (34 + LINE * lines) / 2, fontWeight=600, **look)
    return [
        pieces,
        text.encode(x=alt.X("right:Q"), text=alt.Text("end:N")),
        name.encode(x=alt.XDatum(0), text=alt.Text("setting:N")),
    ]
