"""Series of nightly speeds, with and without a change: how often the history marks one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from analysis.speed_history import level_begins

SEED = 11

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
UNPROMISED = ("neighbours alike, 0.4",)


def false_marks(noise: str, series: int, nights: int) -> float:
    """The share of series without a change that have any mark after so many nights, each of which was looked at."""
    random = np.random.default_rng([SEED, list(NOISE).index(noise), nights])
    # 2% of a night's speed: the size matters only against the least spread.
    return float(np.mean([len(level_begins(0.02 * NOISE[noise](random, nights))) > 1 for _ in range(series)]))


def found(before: int, after: int, shift: float, series: int) -> tuple[float, float]:
    """The shares of series whose change of so many SD is marked within `after` nights, and that have a second mark."""
    random = np.random.default_rng([SEED, before, after, round(10 * shift)])
    counts = []
    for _ in range(series):
        values = random.normal(size=before + after)
        values[before:] += shift
        counts.append(len(level_begins(0.02 * values)))
    return float(np.mean(np.array(counts) > 1)), float(np.mean(np.array(counts) > 2))
