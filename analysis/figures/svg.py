"""What an SVG must be to stand in a page: light, hatched, of one width, the same every time."""

from __future__ import annotations

import re

# Vega has no hatching: what is filled with this colour, which nothing else has, is hatched here.
HATCHED = "#fe01fd"
HATCH = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path d="M0,0V6" stroke="currentColor" stroke-width="2.4"/></pattern></defs>'
)
LEAST_WIDTH = 700
"""Pixels. The page stretches every figure to one width: a narrow one would get giant letters."""

TAG = re.compile(r"<[^>]+>")  # a text's own < and > are escaped, so that this finds tags alone
FONT = re.compile(r' font-family="[^"]*"')
NO_MARK = re.compile(r'<path class="(?:background|foreground)"(?![^>]* (?:fill|stroke)=)[^>]*/>')
UNSEEN = re.compile(r' (?:class|role|aria-\w+|pointer-events)="[^"]*"| opacity="1"| stroke-width="1"')
DIGITS = re.compile(r"(\d\.\d{2})\d+")
ID = re.compile(r'(?<= id=")[^"]+(?=")|(?<=url\(#)[^)]+(?=\))')


def page_svg(svg: str, font: str) -> str:
    """Vega's SVG in another font, without what draws nothing, its ids numbered in order, `HATCHED` marks hatched."""
    names: dict[str, str] = {}

    def lighter(tag: re.Match[str]) -> str:
        # Seven digits of a pixel draw nothing; without them the page is half the size.
        text = DIGITS.sub(r"\1", UNSEEN.sub("", FONT.sub("", tag[0])))
        # Vega numbers its ids on and on while the program runs.
        text = ID.sub(lambda name: names.setdefault(name[0], f"part{len(names)}"), text)
        return text.replace(f'fill="{HATCHED}"', 'fill="url(#hatch)"')

    light = TAG.sub(lighter, NO_MARK.sub("", svg))
    root = TAG.search(light)
    if root is None:
        return light
    head = root[0].replace("<svg", f'<svg font-family="{font}"', 1)
    hatch = HATCH if "url(#hatch)" in light else ""
    return light[: root.start()] + _with_room(head, light) + hatch + light[root.end() :]


def _with_room(root: str, svg: str) -> str:
    """The root tag with room for a page's font, and for `LEAST_WIDTH`.

    A page's font may be a fifth wider than the one that the labels left of the plot were measured with.
    """
    size = re.search(r' width="([\d.]+)" height="([\d.]+)"', root)
    plot = re.search(r'<g [^>]*transform="translate\(([\d.]+),', svg)
    if size is None:
        return root
    left = round(0.2 * float(plot[1])) if plot else 0
    width = max(float(size[1]) + left, LEAST_WIDTH)
    root = root.replace(size[0], f' width="{width:g}" height="{size[2]}"', 1)
    return re.sub(r'viewBox="[^"]*"', f'viewBox="{-left} 0 {width:g} {size[2]}"', root, count=1)


def with_prefixed_ids(svg: str, prefix: str) -> str:
    """The same with every id, and every reference to one, after `prefix`; what its texts say stays."""
    return TAG.sub(lambda tag: ID.sub(lambda name: prefix + name[0], tag[0]), svg)
