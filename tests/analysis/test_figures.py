"""The figures' own text: a number in a picture is a number too."""

from __future__ import annotations

import re

import altair as alt
import pandas as pd
import pytest

from analysis.figures.bars import phase_bars
from analysis.figures.drawing import draw


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


def test_bars_of_two_factors_are_told_apart() -> None:
    keys = [f'{{"workload.num_generations": 8, "workload.temperature": {t}}}' for t in (0.7, 1.0)]
    frame = pd.DataFrame(
        [{"factors": key, "arm": "vllm", "category": "generation", "own_mean_s": 9.0 + n} for n, key in enumerate(keys)]
    )
    figure = phase_bars(frame)
    assert figure is not None
    assert all(f">{line}</tspan>" in figure.svg for line in ("num_generations = 8", "temperature = 0.7"))


def test_small_ticks_keep_their_digits() -> None:
    frame = pd.DataFrame({"x": [0, 1], "y": [0.0, 0.004]})
    svg = draw(frame, [alt.Chart().mark_point().encode(x="x:Q", y="y:Q")], 300, 300)
    assert "0.0020" in texts(svg)
    coordinates = re.findall(r'\bd="([^"]*)"', svg)
    assert not any(re.search(r"\.\d{3}", path) for path in coordinates), "but coordinates are short"
