"""How every figure of the report is drawn: its colours, its text, its SVG and PNG."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import altair as alt
import vl_convert as vlc

from analysis.figures.svg import TAG, page_svg
from analysis.runs import PlanRead

# Okabe and Ito (2008) for categories, Tol's "bright" for arms: each is told apart with any colour vision,
# and the two are not mistaken for one another. Tol's yellow, cyan and grey are darker and browner here: his do not
# stand off white paper, and grey is what does not count.
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
GREY = "#8a8f98"
INK = "#1b1f24"
FONT = "system-ui, 'Noto Sans CJK JP', 'Noto Sans CJK SC', 'Noto Sans', sans-serif"
# What texts are measured in: it comes with the renderer, so that a figure is laid out alike everywhere, and a hundred
# labels take no seconds, as they do where each letter's font is searched for.
MEASURED = "sans-serif"
WIDTH, HEIGHT = 640, 260


@dataclass(frozen=True)
class Figure:
    """A figure: `svg` takes its text colour from the page; `alt` is what it shows, in words and numbers.

    `table` is the name of the tables/*.parquet whose numbers it draws, empty where they are in no table.
    """

    name: str
    title: str
    caption: str
    alt: str
    svg: str
    table: str = ""

    @property
    def standalone_svg(self) -> str:
        """The same on white paper, for a file."""
        return TAG.sub(lambda tag: tag[0].replace("currentColor", INK), self.svg)

    def png(self) -> bytes:
        paper = re.sub(
            r"(<svg[^>]*>)",
            r'\1<rect x="-50%" width="200%" height="100%" fill="white"/>',
            self.standalone_svg,
            count=1,
        )
        return bytes(vlc.svg_to_png(paper, scale=2))


_AXIS = {
    **{key: "currentColor" for key in ("labelColor", "titleColor", "domainColor", "tickColor", "gridColor")},
    "gridOpacity": 0.12,
    "labelFontSize": 12,
    "titleFontSize": 12,
    "titleFontWeight": "normal",
    "labelLimit": 220,
    "titleLimit": 440,
    "titlePadding": 12,  # the page's font may be wider than the one that this was measured with
}
_LEGEND = {
    "labelColor": "currentColor",
    "titleColor": "currentColor",
    "labelFontSize": 12,
    "labelLimit": 260,
    "columnPadding": 28,
    "symbolOpacity": 1,
    "orient": "top",
    "offset": 6,
    "title": None,
    "symbolStrokeWidth": 2,
}
_HEADER = {
    "labelColor": "currentColor",
    "labelFontSize": 12,
    "labelFontWeight": "bold",
    "labelAnchor": "start",
    "labelPadding": 6,
    "title": None,
}
# Vega-Lite's own words, put into the drawn figure: each of Altair's `configure_` methods copies the whole chart.
_CONFIG = {
    "font": MEASURED,
    "background": "transparent",
    "aria": False,
    "padding": 4,
    "axis": _AXIS,
    "legend": _LEGEND,
    "text": {"color": "currentColor"},
    "header": _HEADER,
}


def render(chart: Any) -> str:
    with alt.data_transformers.enable("default", max_rows=None):
        # Its parts were validated when they were made; once more as a whole would take longer than drawing it.
        spec = chart.to_dict(validate=False)
    spec["config"] = _CONFIG | {"view": spec["config"]["view"] | {"stroke": None}}
    version = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
    return page_svg(vlc.vegalite_to_svg(spec, vl_version=version), FONT)


def arm_scale(plan: PlanRead) -> alt.Scale:
    arms = list(plan.arms)
    return alt.Scale(domain=arms, range=[ARM_COLOURS[i % len(ARM_COLOURS)] for i in range(len(arms))])


def dash_scale(plan: PlanRead) -> alt.Scale:
    # An eighth arm has the first one's colour, and another dash.
    arms, n = list(plan.arms), len(ARM_DASHES)
    return alt.Scale(domain=arms, range=[ARM_DASHES[(i + i // n) % n] for i in range(len(arms))])
