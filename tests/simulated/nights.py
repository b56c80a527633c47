"""The noise of nightly speeds without a change."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Draw = Callable[[np.random.Generator, int], npt.NDArray[np.float64]]


def _alike(share: float) -> Draw:
    """Noise of which each night keeps a share of the night before."""

    def draw(random: np.random.Generator, nights: int) -> npt.NDArray[np.float64]:
        values = random.normal(size=nights)
        for i in range(1, nights):
            values[i] = share * values[i - 1] + (1 - share**2) ** 0.5 * values[i]
        return values

    return draw


NOISE: dict[str, Draw] = {
    "normal": lambda random, nights: random.normal(size=nights),
    "heavy tails (t, 3 degrees of freedom)": lambda random, nights: random.standard_t(3, size=nights),
    "skewed (log-normal)": lambda random, nights: random.lognormal(size=nights),
    "1 night in 20 is 8 SD slower": lambda random, nights: (
        random.normal(size=nights) + 8 * (random.random(nights) < 0.05)
    ),
    "neighbours alike, 0.2": _alike(0.2),
    "neighbours alike, 0.4": _alike(0.4),
}
