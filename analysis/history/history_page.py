"""Renders a history as sentences, as figures and as one offline page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import altair as alt
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis.figures.drawing import GREY, PAGE, WIDTH, Figure, arm_scale, draw_rows, panels
from analysis.history.series import QUANTITIES, Series, number_text, percent_text, sentence
from common.verdicts import count_of

TEMPLATES = Path(__file__).parents[1] / "report" / "templates"
MOST_DRAWN = 12
"""Sections with figures, of the most experiments; further ones have tables alone."""
MOST_PANELS, PANEL_HEIGHT = 8, 150
MANY_POINTS = 100


def history_page(series: Sequence[Series], notes: Sequence[str]) -> str:
    """The page: no network, no script, figures inline, all data escaped."""
    environment = Environment(
        loader=FileSystemLoader([Path(__file__).parent, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    groups = [list(own) for _, own in groupby(series, key=lambda one: one.group)]
    sections = [(own, _figures(own) if i < MOST_DRAWN else []) for i, own in enumerate(groups)]
    experiments = {point.experiment.folder for one in series for point in one.points}
    return environment.get_template("history.html.j2").render(
        css=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        sections=sections,
        notes=notes,
        experiments=count_of(len(experiments), "experiment"),
        quantities=QUANTITIES,
        count_of=count_of,
        number_text=number_text,
        percent_text=percent_text,
        sentence=sentence,
    )


def _figures(series: Sequence[Series]) -> list[Figure]:
    """A figure for each quantity of one section that has several points, with a panel for each arm."""
    found, arms = [], list(dict.fromkeys(one.arm for one in series))
    for quantity, group in groupby(series, key=lambda one: one.quantity):
        own = [one for one in group if len(one.points) > 1]
        if own:
            found.append(_figure(quantity, own[:MOST_PANELS], len(own), arms))
    return found


def _figure(quantity: str, series: Sequence[Series], of: int, arms: Sequence[str]) -> Figure:
    known = QUANTITIES[quantity]
    rows = [{"panel": i, "arm": one.arm, **row} for i, one in enumerate(series) for row in _rows(one)]
    many = max(len(one.points) for one in series) > MANY_POINTS
    times = [point.experiment.time for one in series for point in one.points]
    days = "%Y-%m-%d" if max(times) - min(times) > 3 * 86400 else "%m-%d %H:%M"
    axis = alt.Axis(format=days, tickCount=6, labelOverlap=True)
    x = alt.X("time", type="temporal", title=None, scale=alt.Scale(type="utc", padding=8), axis=axis)
    y = alt.Y("value", type="quantitative", title=known.unit, scale=alt.Scale(zero=False, nice=True))
    colour = alt.Color("arm", type="nominal", legend=None, scale=arm_scale(arms))
    base = alt.Chart()
    layers = [
        _of(base, "changes").mark_rule(color=PAGE, strokeDash=[4, 3], opacity=0.7).encode(x=x),
        _of(base, "levels").mark_rule(color=PAGE, strokeWidth=2, opacity=0.75).encode(x=x, x2=alt.X2("until"), y=y),
        _of(base, "points")
        .mark_rule(strokeWidth=1.5, opacity=0.5)
        .encode(x=x, y=alt.Y("low", type="quantitative"), y2=alt.Y2("high"), color=colour),
        _of(base, "points").mark_circle(size=12 if many else 36, opacity=1).encode(x=x, y=y, color=colour),
        _of(base, "releases")
        .mark_tick(color=GREY, thickness=2, size=8, orient="vertical")
        .encode(x=x, y=alt.value(PANEL_HEIGHT - 4)),
    ]
    names = [f"{one.arm} ({one.side})" for one in series]
    svg = draw_rows(rows, layers, WIDTH, PANEL_HEIGHT, panels(names, 1, WIDTH, own_y=True))
    more = f" The first {MOST_PANELS} of {of} series are drawn." if of > len(series) else ""
    interval = "" if many else ", with its 95% interval over runs, cut at the edge"
    return Figure(
        quantity,
        known.name.capitalize(),
        f"A point is an experiment{interval}. Horizontal lines are levels; dashed lines mark changes; grey ticks are "
        f"new releases or stacks. Times are UTC.{more}",
        f"{known.name.capitalize()} over time. {' '.join(sentence(one) for one in series)}",
        svg,
    )


def _of(base: Any, kind: str) -> Any:
    return base.transform_filter(f"datum.kind == '{kind}'")


def _rows(series: Series) -> list[dict[str, Any]]:
    """The rows of one panel; times are milliseconds since 1970.

    Intervals of few runs are wide: they are cut where they would hide the points' changes, and many are not drawn.
    """
    points, rows = series.points, []
    values = [point.value for point in points]
    room = max(max(values) - min(values), 0.05 * max(values))
    for i, point in enumerate(points):
        time = 1000 * point.experiment.time
        ends = {}
        if len(points) <= MANY_POINTS and not math.isnan(point.low):
            ends = {"low": max(point.low, min(values) - room), "high": min(point.high, max(values) + room)}
        rows.append({"kind": "points", "time": time, "value": point.value, **ends})
        if i and (point.release, point.stack) != (points[i - 1].release, points[i - 1].stack):
            rows.append({"kind": "releases", "time": time})
    for level in series.levels:
        begin, until = (1000 * points[i].experiment.time for i in (level.begin, level.end - 1))
        rows.append({"kind": "levels", "time": begin, "until": until, "value": math.exp(level.mean)})
    return rows + [{"kind": "changes", "time": 1000 * change.at.experiment.time} for change in series.changes]
