"""Draws layers in panels as SVG and PNG, in the report's colours."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import altair as alt
import vl_convert as vlc
from markupsafe import Markup

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
FONT, LATIN = "'Noto Sans CJK JP', 'Noto Sans CJK SC', 'Noto Sans', sans-serif", "\u2e80"
"""The font of a file with letters above `LATIN`: a search in all fonts takes three times as long as drawing."""
WIDTH, TITLE_SIZE, MOST_LISTED = 640, 12, 24

_TEXT = {"labelColor": PAGE, "titleColor": PAGE, "labelFontSize": 12}
CONFIG: Mapping[str, Any] = {
    # The page sets its own font. vl-convert would search a list of fonts for each letter of a label.
    "font": "sans-serif",
    "background": None,
    "aria": False,
    # The page's font may be a fifth wider than the font that measured the labels beside the plot.
    "padding": {"left": 12, "top": 4, "right": 30, "bottom": 4},
    "view": {"stroke": None},
    "axis": _TEXT
    | {"domainColor": PAGE, "tickColor": PAGE, "gridColor": PAGE, "gridOpacity": 0.12, "titleFontSize": 12}
    | {"titleFontWeight": "normal", "labelLimit": 220, "titleLimit": 440, "titlePadding": 10},
    "legend": _TEXT
    | {"labelLimit": 260, "columnPadding": 20, "symbolOpacity": 1, "orient": "top", "offset": 6, "title": None}
    | {"symbolStrokeWidth": 2},
    "text": {"color": PAGE, "fontSize": 12},
    "header": {"labelColor": PAGE, "labelFontSize": TITLE_SIZE, "labelFontWeight": "bold", "labelAnchor": "start"}
    | {"labelPadding": 6, "title": None, "labelExpr": "split(datum.label, '\\n')", "labelLineHeight": TITLE_SIZE + 3},
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
    def inline_svg(self) -> Markup:
        """The SVG for the page, with its text alternative; the drawing has escaped all its texts."""
        return Markup(self.svg.replace("<svg ", f'<svg role="img" aria-label="{Markup.escape(self.alt)}" ', 1))

    @property
    def standalone_svg(self) -> str:
        """The SVG in ink, for a file."""
        font = FONT if any(letter > LATIN for letter in self.svg) else CONFIG["font"]
        return self.svg.replace(">", f' font-family="{font}">', 1).replace(f'"{PAGE}"', f'"{INK}"')

    def png(self) -> bytes:
        paper = '><rect x="-50%" width="200%" height="100%" fill="white"/>'
        return bytes(vlc.svg_to_png(self.standalone_svg.replace(">", paper, 1), scale=2))


def draw(
    rows: Sequence[Mapping[str, Any]],
    layers: Sequence[Any],
    size: tuple[float, Any],
    own: Mapping[str, str] | None = None,
    columns: int = 1,
) -> str:
    """The SVG of layers that share the rows, with a panel for each value of the rows' `panel`, in their order.

    `own` names the scales that are not shared between panels, such as `{"y": "independent"}`.
    """
    chart: Any = alt.layer(*layers, data=alt.InlineData(values=list(rows))).properties(width=size[0], height=size[1])
    panels = list(dict.fromkeys(str(row.get("panel", "")) for row in rows))
    if panels not in ([], [""]):
        names = alt.Facet("panel", type="nominal", sort=panels, header=alt.Header(labelLimit=size[0]))
        chart = chart.facet(facet=names, columns=columns, spacing={"row": 14, "column": 24}, title=None)
        chart = chart.resolve_scale(**(own or {})).resolve_axis(x="independent", y="independent")
    return light_svg(vlc.vegalite_to_svg({**chart.to_dict(validate=False), "config": CONFIG}))


def once() -> Any:
    """A chart for one mark in each panel, at constant values."""
    return alt.Chart().transform_aggregate(rows="count()")


def light_svg(svg: str) -> str:
    """Vega's SVG without invisible parts and with short numbers."""
    root = ElementTree.fromstring(svg)
    for parent in root.iter():
        for child in list(parent):
            if child.get("class") in ("background", "foreground") and not {"fill", "stroke"} & set(child.attrib):
                parent.remove(child)
        # Two decimals of a pixel are enough, and halve the size of the page.
        kept = {name: _DIGITS.sub(r"\1", value) for name, value in parent.items() if not _UNSEEN.fullmatch(name)}
        parent.attrib.clear()
        parent.attrib.update({k: v for k, v in kept.items() if (k, v) not in (("opacity", "1"), ("stroke-width", "1"))})
    return ElementTree.tostring(root, encoding="unicode")


def arm_scale(arms: Collection[str]) -> alt.Scale:
    return alt.Scale(domain=list(arms), range=list(itertools.islice(itertools.cycle(ARM_COLOURS), len(arms))))


def dash_scale(arms: Collection[str]) -> alt.Scale:
    # An eighth arm has the first one's colour, and another dash.
    n = len(ARM_DASHES)
    return alt.Scale(domain=list(arms), range=[ARM_DASHES[(i + i // n) % n] for i in range(len(arms))])


def wrapped(name: str, letters: int) -> str:
    """A name in lines of at most so many letters: Vega cuts a long line at its end, where names differ."""
    return "\n".join(line for part in name.split("\n") for line in textwrap.wrap(part, letters) or [""])


def listed(parts: Iterable[str]) -> str:
    """The first parts in one sentence, and how many more there are."""
    given = list(parts)
    more = len(given) - MOST_LISTED
    return "; ".join(given[:MOST_LISTED]) + (f"; and {more} more" if more > 0 else "")


def only_first(drawn: int, of: int, what: str, table: str) -> str:
    """A caption's sentence where not all is drawn."""
    return f" The first {drawn} of {of} {what} are drawn; tables/{table} has all." if of > drawn else ""
