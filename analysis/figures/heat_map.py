"""Where in a sweep of two or more factors an arm is faster."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import pandas as pd

from analysis.figures.drawing import GREY, INK, WIDTH, Figure, render
from analysis.figures.estimate_rows import UNRESOLVED, label_of
from analysis.figures.factor_grid import combination, not_resolved, place, short_names
from analysis.figures.panels import left_out, listed, panel_name, panels, times_text
from analysis.rows import rows_of
from analysis.runs import PlanRead

MAX_PANELS = 8
MAX_ROWS = 24
MAX_COLUMNS = 14
CELL = 26
FASTER, EVEN, SLOWER = (0x21, 0x66, 0xAC), (0xF4, 0xF4, 0xF2), (0xB3, 0x58, 0x06)


def cell_colour(ratio: float, span: float) -> tuple[str, str]:
    """Fill and text colour of a cell: blue where the arm is faster, orange where slower, pale at 1.

    `span` is the log2 of the ratio that has the full colour.
    """
    strength = max(-1.0, min(1.0, math.log2(ratio) / span))
    end = FASTER if strength > 0 else SLOWER
    mixed = [round(e + (c - e) * abs(strength)) for e, c in zip(EVEN, end, strict=True)]
    linear = [(c / 255) ** 2.2 for c in mixed]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#{:02x}{:02x}{:02x}".format(*mixed), INK if luminance > 0.25 else "#ffffff"


def heat_map(all_points: pd.DataFrame, plan: PlanRead, levels: dict[str, list[str]], shown: list[str]) -> Figure:
    """Ratios as cells over the two factors with the most values, a panel for each combination of the others."""
    names = short_names(list(levels))
    widest = sorted(levels, key=lambda f: -len(levels[f]))[:2]
    down, across = widest
    rest = [f for f in levels if f not in widest]
    frame = all_points.assign(
        x=pd.Series([place(key, across) for key in all_points["factors"]], index=all_points.index, dtype=object),
        y=pd.Series([place(key, down) for key in all_points["factors"]], index=all_points.index, dtype=object),
        rest=[combination(key, rest, names) for key in all_points["factors"]],
    )
    frame = frame[frame["x"].notna() & frame["y"].notna()]
    xs, ys = levels[across][:MAX_COLUMNS], levels[down][:MAX_ROWS]
    valued = frame[frame["comparable"]]
    span = max([math.log2(1.1), *(abs(math.log2(v)) for v in valued["value"])])
    colours = [cell_colour(r.value, span) if r.comparable else ("transparent", "currentColor") for r in rows_of(frame)]
    frame = frame.assign(
        fill=[c[0] for c in colours],
        ink=[c[1] for c in colours],
        text=[
            (times_text(r.value) + ("~" if r.shape == UNRESOLVED else "")) if r.comparable else "×"
            for r in rows_of(frame)
        ],
    )
    arms = [a for a in plan.arms if a in set(frame["arm"])]
    ways = [(a, r, e) for a in arms for r in dict.fromkeys(frame["rest"]) for e in shown]
    drawn = ways[:MAX_PANELS]
    columns = 2 if len(shown) == 2 and len(xs) <= 6 else 1
    width = 280 if columns == 2 else min(WIDTH - 60, 64 * len(xs))
    inside = frame[frame["x"].isin(xs) & frame["y"].isin(ys)]
    frames = [
        inside[(inside["arm"] == a) & (inside["rest"] == r) & (inside["estimate"] == e)].assign(panel=n)
        for n, (a, r, e) in enumerate(drawn)
    ]
    titles = [f"{a}: {label_of(e)}" + (f" · {r}" if r else "") for a, r, e in drawn]
    layered = _cells((names[across], xs), (names[down], ys), width)
    chart = panels(layered, pd.concat(frames, ignore_index=True), titles, columns, max(width, 310))
    cut = left_out(len(drawn), len(ways), "panels", "estimates")
    if len(xs) < len(levels[across]) or len(ys) < len(levels[down]):
        cut += f" The first {len(xs)} values of {names[across]} and {len(ys)} of {names[down]} are drawn."
    words = [f"{panel_name(r.arm, r.factors)}, {label_of(r.estimate)}: {r.text}" for r in rows_of(frame)]
    unresolved = not_resolved(valued)
    caption = (
        f"Times as fast as {plan.baseline}: blue where the arm is faster, orange where it is slower, pale at 1. "
        + (f"~: {unresolved}. " if unresolved else "")
        + ("×: not comparable. " if not frame["comparable"].all() else "")
        + "An empty place: no such runs."
        + (f" A panel for each combination of {', '.join(names[f] for f in rest)}." if rest else "")
    )
    return Figure(
        "sweep-heat-map",
        f"Speed over {names[down]} and {names[across]}",
        caption + cut,
        f"Times as fast as {plan.baseline} over {names[down]} and {names[across]}. {listed(words)}",
        render(chart),
        "estimates",
    )


def _cells(across: tuple[str, list[str]], down: tuple[str, list[str]], width: float) -> Any:
    turned = max(len(v) for v in across[1]) * 7.5 > width / len(across[1])
    x = alt.X(
        "x:N",
        title=across[0],
        scale=alt.Scale(domain=across[1]),
        axis=alt.Axis(
            labelAngle=-40 if turned else 0, labelLimit=110, titleLimit=0.8 * width, ticks=False, domain=False
        ),
    )
    y = alt.Y(
        "y:N",
        title=down[0],
        scale=alt.Scale(domain=down[1]),
        axis=alt.Axis(labelLimit=110, titleLimit=140, ticks=False, domain=False),
    )
    base = alt.Chart().encode(x=x, y=y)
    cells = base.mark_rect(stroke=GREY, strokeWidth=0.5).encode(color=alt.Color("fill:N", scale=None))
    texts = base.mark_text(fontSize=12).encode(text="text:N", color=alt.Color("ink:N", scale=None))
    return alt.layer(cells, texts).properties(width=width, height=max(CELL * len(down[1]), 2 * CELL))
