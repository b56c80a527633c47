"""The figures' own text: a number in a picture is a number too."""

from __future__ import annotations

import re

import altair as alt
import pandas as pd
import pytest

from analysis.figures.bars import LINE, phase_bars
from analysis.figures.drawing import Figure, draw


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


@pytest.mark.parametrize("seconds", [0.6876, 0.0123, 878.89, 0.00456])
def test_a_bars_label_is_its_sum_rounded_and_not_cut(seconds: float) -> None:
    frame = pd.DataFrame(
        [
            {"factors": "", "arm": "a", "category": "generation", "own_mean_s": seconds * 0.75},
            {"factors": "", "arm": "a", "category": "residual", "own_mean_s": seconds * 0.25},
        ]
    )
    figure = phase_bars(frame)
    assert figure is not None
    assert f"{seconds:.3g} s" in texts(figure.svg)


def bars_of(**seconds: float) -> Figure:
    rows = [{"factors": "", "arm": arm, "category": "generation", "own_mean_s": s} for arm, s in seconds.items()]
    figure = phase_bars(pd.DataFrame(rows))
    assert figure is not None
    return figure


def test_a_long_name_is_shown_to_its_end() -> None:
    first, second = (f"verl-vllm-h100-tp4-prefix-caching-on-{one}" for one in "ab")
    figure = bars_of(**{first: 1.0, second: 2.0, "short": 3.0})
    shown = "".join(re.findall(r"<tspan[^>]*>([^<]*)</tspan>", figure.svg))
    assert shown == first + second and f"{first}: generation 1 s" in figure.alt
    # Each name's middle is as far from its bar's, whatever its lines.
    names = re.findall(r"translate\(-7,([\d.]+)\)[^>]*>(.*?)</text>", figure.svg)
    middles = [float(top) + LINE / 2 * name.count("dy=") for top, name in names]
    bars = [float(top) for top in re.findall(r'translate\(0,([\d.]+)\)" x2="-5"', figure.svg)]
    assert len({middle - bar for middle, bar in zip(middles, bars, strict=True)}) == 1


def test_small_ticks_keep_their_digits() -> None:
    frame = pd.DataFrame({"x": [0, 1], "y": [0.0, 0.004]})
    svg = draw(frame, [alt.Chart().mark_point().encode(x="x:Q", y="y:Q")], 300, 300)
    assert "0.0020" in texts(svg)
    coordinates = re.findall(r'\bd="([^"]*)"', svg)
    assert not any(re.search(r"\.\d{3}", path) for path in coordinates), "but coordinates are short"
