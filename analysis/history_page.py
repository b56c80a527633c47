"""Renders a history as one offline page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path

import altair as alt
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from analysis.figures.drawing import PAGE, WIDTH, Figure, arm_scale, draw
from analysis.speed_history import QUANTITIES, sentence
from common.verdicts import SeriesInHistory, count_of

TEMPLATES = Path(__file__).with_name("report") / "templates"
MOST_DRAWN = 48
"""Charts; further series have a sentence alone."""
HEIGHT = 150


def history_page(series: Sequence[SeriesInHistory], notes: Sequence[str]) -> str:
    """The page: no network, no script, figures inline, all data escaped."""
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined)
    arms = list(dict.fromkeys(one["arm"] for one in series))
    several = [one for one in series if len(one["points"]) > 1][:MOST_DRAWN]
    drawn = [(one, _figure(one, arms) if one in several else None) for one in series]
    sections = groupby(drawn, key=lambda each: [each[0][name] for name in ("workload", "hardware", "factors")])
    return environment.get_template("history.html.j2").render(
        css=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        sections=[list(own) for _, own in sections],
        notes=notes,
        experiments=count_of(len({point["folder"] for one in series for point in one["points"]}), "experiment"),
        sentence=sentence,
    )


def _figure(one: SeriesInHistory, arms: Sequence[str]) -> Figure:
    """One quantity of one arm over time; times are milliseconds since 1970."""
    times, values = ([point[name] for point in one["points"]] for name in ("time", "value"))
    rows = [
        {"kind": "point", "time": 1000 * t, "value": v, "arm": one["arm"]} for t, v in zip(times, values, strict=True)
    ]
    ends = [0, *(change["at"] for change in one["changes"]), len(times)]
    for (begin, end), level in zip(pairwise(ends), one["levels"], strict=True):
        rows.append({"kind": "level", "time": 1000 * times[begin], "until": 1000 * times[end - 1], "value": level})
    rows += [{"kind": "change", "time": 1000 * times[change["at"]]} for change in one["changes"]]
    days = "%Y-%m-%d" if max(times) - min(times) > 3 * 86400 else "%m-%d %H:%M"
    x = alt.X("time:T", title=None, scale=alt.Scale(type="utc", padding=8), axis=alt.Axis(format=days, tickCount=6))
    y = alt.Y("value:Q", title=QUANTITIES[one["quantity"]], scale=alt.Scale(zero=False))
    points, levels, changes = (
        alt.Chart().transform_filter(f"datum.kind == '{kind}'") for kind in ("point", "level", "change")
    )
    layers = [
        changes.mark_rule(color=PAGE, strokeDash=[4, 3], opacity=0.7).encode(x=x),
        levels.mark_rule(color=PAGE, strokeWidth=2, opacity=0.75).encode(x=x, x2="until:T", y=y),
        points.mark_circle(size=30, opacity=1).encode(
            x=x, y=y, color=alt.Color("arm:N", legend=None, scale=arm_scale(arms))
        ),
    ]
    title = f"{one['arm']}: {QUANTITIES[one['quantity']]}"
    return Figure(one["quantity"], title, "", sentence(one), draw(rows, layers, (WIDTH, HEIGHT)))
