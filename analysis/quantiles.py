"""Gives the quantiles that intervals are made of; scipy is loaded with the first one.

A verdict of one run an arm needs none, and scipy takes as long to load as that verdict takes to make.
"""

from __future__ import annotations

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
