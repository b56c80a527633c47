"""Gives the quantiles that intervals are made of; scipy is loaded with the first one.

A verdict of one run an arm needs none, and scipy takes as long to load as that verdict takes to make.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from common.verdicts import FIRST_LOOK

CONFIDENCE = 0.95
FAR_FROM_0 = 6.0


def students_t(freedom: float, probability: float = (1 + CONFIDENCE) / 2) -> float:
    """A quantile of Student's t."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return float(stdtrit(freedom, probability))


def normal(probability: float) -> float:
    """A quantile of the normal distribution."""
    from scipy.special import ndtri

    return float(ndtri(probability))


def folded(mean: float, probability: float) -> float:
    """A quantile of the absolute value of a normal number with this mean and a standard deviation of 1."""
    from scipy.special import chndtrix

    # Far from 0 the other side has no part in it.
    return mean + normal(probability) if mean > FAR_FROM_0 else float(chndtrix(probability, 1, mean**2)) ** 0.5


# Where the standardised mean's probability is computed.
_GRID = np.linspace(-8.0, 8.0, 401)


def confidence_at(pairs: int, most: int) -> float:
    """The confidence of the interval after so many of `most` runs of each arm, where each is looked at.

    Group-sequential bounds with alpha spending (Lan and DeMets 1983; Kim and DeMets 1987, the linear function): of the
    5% that all looks together may be wrong, a look spends as much as its runs' share of all runs. The bounds are
    those of a normal mean (Armitage, McPherson and Rowe 1969); each look takes Student's t of the same probability
    (Jennison and Turnbull 2000, section 4.4).
    """
    return _confidences(max(most, FIRST_LOOK))[min(max(pairs, FIRST_LOOK), max(most, FIRST_LOOK)) - FIRST_LOOK]


@lru_cache
def _confidences(most: int) -> tuple[float, ...]:
    """The two-sided confidence of each look, from `FIRST_LOOK` pairs to `most`."""
    from scipy.special import ndtr

    width, found = _GRID[1] - _GRID[0], []
    # The standardised mean's probabilities on the grid, of the experiments that are still open.
    open_at = np.exp(-(_GRID**2) / 2) / (2 * np.pi) ** 0.5 * width
    for pairs in range(FIRST_LOOK, most + 1):
        if pairs > FIRST_LOOK:
            moved = _GRID[:, None] * pairs**0.5 - _GRID[None, :] * (pairs - 1) ** 0.5
            open_at = np.exp(-(moved**2) / 2) @ open_at * (pairs / (2 * np.pi)) ** 0.5 * width
        spent = (1 - CONFIDENCE) * (FIRST_LOOK if pairs == FIRST_LOOK else 1) / most
        above = np.cumsum(open_at[::-1])[::-1]
        positive = _GRID >= 0
        # A point's probability lies around it, so half of it is above it.
        bound = np.interp(spent / 2, (above - open_at / 2)[positive][::-1], _GRID[positive][::-1])
        found.append(float(1 - 2 * ndtr(-bound)))
        open_at = np.where(np.abs(_GRID) <= bound, open_at, 0.0)
    return tuple(found)
