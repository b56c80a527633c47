"""Draws the report's figures: their colours, panels, axes of ratios and texts, as SVG and PNG."""

from __future__ import annotations

import itertools
import json
import math
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import altair as alt
import vl_convert as vlc
from markupsafe import Markup

from analysis.factors import factors_label
from analysis.report.cells import fixed

if TYPE_CHECKING:
    import pandas as pd

# Okabe and Ito (2008) for categories, Tol's "bright" for arms: every colour vision can distinguish them. Tol's yellow
# and cyan are darker here, for white paper, and his grey is brown: grey marks what does not count.
CATEGORY_COLOURS = {
    "generation": "#E69F00",
    "weight sync": "#56B4E9",
    "log-probs": "#009E73",
    "rewards": "#F0E442",
    "loss+backward": "#0072B2",
    "optimizer": "#CC79A7",
    "other": "#999999",
}
ARM_COLOURS = ("#4477AA", "#EE6677", "#228833", "#AA3377", "#9C8A1B", "#2A97BD", "#A0622D")
ARM_DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4], [4, 4], [1, 3])
GREY, INK = "#8a8f98", "#1b1f24"
PAGE = "currentColor"
"""The page's text colour, light or dark."""
HATCHED = "url(#hatch)"
HATCH = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path d="M0,0V6" stroke="currentColor" stroke-width="2.4"/></pattern></defs>'
)
"""The pattern of `HATCHED`: the page has it once, and each file that uses it."""
FONT, LATIN = "'Noto Sans CJK JP', 'Noto Sans CJK SC', 'Noto Sans', sans-serif", "\u2e80"
"""The font of a file with letters above `LATIN`: a search in all fonts takes three times as long as drawing."""
WIDTH, HEIGHT = 640, 260
LEAST_WIDTH = 700
"""Pixels. The page scales every figure to one width: a narrow one would get giant letters."""
TITLE_SIZE = 12
# Pixels of a letter of a panel's name: the page's font may be wider than the measured one.
LETTER = 0.8 * TITLE_SIZE

_TEXT = {"labelColor": PAGE, "titleColor": PAGE, "labelFontSize": 12}
CONFIG: Mapping[str, Any] = {
    # The page sets its own font. vl-convert would search a list of fonts for each letter of a label.
    "font": "sans-serif",
    "background": None,
    "aria": False,
    # The page's font may be a fifth wider than the font that measured the labels left of the plot.
    "padding": {"left": 20, "top": 4, "right": 4, "bottom": 4},
    "view": {"stroke": None},
    "axis": _TEXT
    | {"domainColor": PAGE, "tickColor": PAGE, "gridColor": PAGE, "gridOpacity": 0.12, "titleFontSize": 12}
    | {"titleFontWeight": "normal", "labelLimit": 220, "titleLimit": 440, "titlePadding": 12},
    "legend": _TEXT
    | {"labelLimit": 260, "columnPadding": 28, "symbolOpacity": 1, "orient": "top", "offset": 6, "title": None}
    | {"symbolStrokeWidth": 2},
    "text": {"color": PAGE},
    "header": {"labelColor": PAGE, "labelFontSize": TITLE_SIZE, "labelFontWeight": "bold", "labelAnchor": "start"}
    | {"labelPadding": 6, "title": None},
}
_SVG = "http://www.w3.org/2000/svg"
_UNSEEN = re.compile(r"class|role|pointer-events|font-family|aria-.*")
_DIGITS = re.compile(r"(\d\.\d{2})\d+")
ElementTree.register_namespace("", _SVG)


@dataclass(frozen=True)
class Figure:
    """A figure: `svg` takes its text colour from the page; `alt` is the text alternative, with the numbers."""

    name: str
    title: str
    caption: str
    alt: str
    svg: str

    @property
    def height(self) -> float:
        """In the pixels of its SVG."""
        return float(ElementTree.fromstring(self.svg).get("height", 0))

    @property
    def inline_svg(self) -> Markup:
        """The SVG for the page, with its text alternative; the drawing has escaped all its texts."""
        return Markup(self.svg.replace("<svg ", f'<svg role="img" aria-label="{Markup.escape(self.alt)}" ', 1))

    @property
    def standalone_svg(self) -> str:
        """The SVG in ink, for a file."""
        font = FONT if any(letter > LATIN for letter in self.svg) else CONFIG["font"]
        svg = self.svg.replace(">", f' font-family="{font}">{HATCH if HATCHED in self.svg else ""}', 1)
        return svg.replace(f'"{PAGE}"', f'"{INK}"')

    def png(self) -> bytes:
        paper = '><rect x="-50%" width="200%" height="100%" fill="white"/>'
        return bytes(vlc.svg_to_png(self.standalone_svg.replace(">", paper, 1), scale=2))


Facets = Mapping[str, Any]
"""The part of a specification that divides it into panels."""


def draw(frame: pd.DataFrame, layers: Sequence[Any], width: float, height: Any, facets: Facets | None = None) -> str:
    """`draw_rows` of a table."""
    rows = json.loads(frame.to_json(orient="records", double_precision=15))
    return draw_rows(rows, layers, width, height, facets)


def draw_rows(
    rows: Sequence[Mapping[str, Any]],
    layers: Sequence[Any],
    width: float,
    height: Any,
    facets: Facets | None = None,
) -> str:
    """The SVG of layers that share the rows; all panels are one specification, which takes as long as one panel.

    Layers become dictionaries here: Altair copies a chart for each layer, facet and setting, which takes longer than
    drawing it. Altair has already validated their parts.
    """
    view = {"layer": [_as_dict(layer) for layer in layers], "width": width, "height": height}
    spec: dict[str, Any] = {"data": {"values": rows}, "datasets": {"once": [{}]}, "config": CONFIG}
    spec |= view if facets is None else {**facets, "spec": view}
    version = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
    return light_svg(vlc.vegalite_to_svg(spec, vl_version=version))


def once() -> Any:
    """A chart for one mark in each panel, at constant values."""
    return alt.Chart(alt.NamedData("once"))


def _as_dict(layer: Any) -> dict[str, Any]:
    found: dict[str, Any] = layer.to_dict(validate=False, context={"top_level": False})
    if layer.data is alt.Undefined:
        del found["data"]  # Altair's default would hide the frame
    return found


def light_svg(svg: str) -> str:
    """Vega's SVG without invisible parts, with short numbers, and at least `LEAST_WIDTH` wide."""
    root = ElementTree.fromstring(svg)
    for parent in root.iter():
        for child in list(parent):
            if child.get("class") in ("background", "foreground") and not {"fill", "stroke"} & set(child.attrib):
                parent.remove(child)
        # Two decimals of a pixel are enough, and halve the size of the page.
        kept = {name: _DIGITS.sub(r"\1", value) for name, value in parent.items() if not _UNSEEN.fullmatch(name)}
        parent.attrib.clear()
        parent.attrib.update({k: v for k, v in kept.items() if (k, v) not in (("opacity", "1"), ("stroke-width", "1"))})
    width, height = max(float(root.get("width", 0)), LEAST_WIDTH), root.get("height", "0")
    root.attrib.clear()
    root.attrib.update({"width": f"{width:g}", "height": height, "viewBox": f"0 0 {width:g} {height}"})
    return ElementTree.tostring(root, encoding="unicode")


def arm_scale(arms: Collection[str]) -> alt.Scale:
    return alt.Scale(domain=list(arms), range=[ARM_COLOURS[i % len(ARM_COLOURS)] for i in range(len(arms))])


def dash_scale(arms: Collection[str]) -> alt.Scale:
    # An eighth arm has the first one's colour, and another dash.
    n = len(ARM_DASHES)
    return alt.Scale(domain=list(arms), range=[ARM_DASHES[(i + i // n) % n] for i in range(len(arms))])


def panel_name(arm: str, factors: str) -> str:
    """An arm, and with a sweep its factor combination."""
    return f"{arm} · {factors_label(factors)}" if factors else arm


def panels(names: Sequence[str], columns: int, width: float, shared_x: bool = False, own_y: bool = False) -> Facets:
    """A panel for each value 0, 1, ... of the frame's column `panel`; names in lines, the widest of `width` pixels."""
    lines = [textwrap.wrap(name, max(1, int(width / LETTER))) or [""] for name in names]
    header = {"labelExpr": f"{json.dumps(lines)}[datum.value]", "labelLimit": width}
    return {
        "facet": {"field": "panel", "type": "ordinal", "header": header | {"labelLineHeight": TITLE_SIZE + 3}},
        "columns": columns,
        "spacing": {"row": 16, "column": 24},
        "resolve": {"axis": {"x": "shared" if shared_x else "independent", "y": "independent"}}
        | ({"scale": {"y": "independent"}} if own_y else {}),
    }


def seconds_text(value: float, digits: int) -> str:
    return f"{fixed(value, digits)} s"


def times_text(value: float) -> str:
    """A ratio as `2.15`: two decimals, or three digits of a small one."""
    if not math.isfinite(value):
        return "—"
    return f"{value:,.2f}" if abs(value) >= 0.095 else f"{value:.3g}"


def interval_text(value: float, low: float, high: float) -> str:
    """A ratio and its interval as `2.15 [2.02, 2.31]`; without an interval only the ratio."""
    if math.isfinite(low) and math.isfinite(high):
        return f"{times_text(value)} [{times_text(low)}, {times_text(high)}]"
    return times_text(value)


def listed(parts: Iterable[str], at_most: int = 24, of: int = 0) -> str:
    """The first parts in one sentence, and how many more there are; `of` is their number where not all are given."""
    given = list(parts)
    shown = given[:at_most]
    more = max(of, len(given)) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def left_out(drawn: int, of: int, what: str, table: str) -> str:
    """A caption's sentence on panels that are not drawn; empty when all are."""
    return f" The first {drawn} of {of} {what} are drawn; tables/{table}.csv has all." if drawn < of else ""


def ratio_domain(values: Iterable[float]) -> tuple[float, float]:
    """The range of an axis of ratios: the values and 1, with a little room."""
    shown = [1.0, *(v for v in values if math.isfinite(v) and v > 0)]
    low, high = min(shown), max(shown)
    room = max((high / low) ** 0.06, 1.01)
    return low / room, high * room


def log_ticks(low: float, high: float, at_most: int = 8, needs: float | None = None) -> list[float]:
    """Round ticks of a log axis, as many as fit, with `needs` among them.

    `at_most` evenly spaced ticks fit; two ticks are at least two thirds of that space apart.
    """
    room = 2 / 3 * math.log(high / low) / at_most
    found = [] if needs is None else [needs]
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    apart = max(1, math.ceil(len(decades) / at_most))
    grids = [[10.0**d for d in decades if d % apart == 0]]
    for mantissas in ((1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        grids.append([m * 10.0**d for d in decades for m in mantissas])
    unit = 1.0 if needs is not None else 10.0 ** decades[-1]
    for step in (unit * s for s in (0.5, 0.25, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)):
        if (high - low) / step <= 2 * at_most:
            grids.append([k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)])
    for grid in grids:
        inside = [float(f"{t:.6g}") for t in grid if low <= t <= high]
        if any(math.log(b / a) < room for a, b in itertools.pairwise(inside)):
            continue
        if (needs is None or needs in inside) and len(found) < len(inside) <= at_most:
            found = inside
    return found


def ratio_axis(channel: Any, field: str, domain: tuple[float, float], title: str | None) -> Any:
    """A log axis of ratios over the domain."""
    return channel(
        field,
        type="quantitative",
        title=title,
        scale=alt.Scale(type="log", domain=list(domain), nice=False),
        axis=alt.Axis(values=log_ticks(*domain, needs=1.0), format="~g", labelOverlap="greedy"),
    )
