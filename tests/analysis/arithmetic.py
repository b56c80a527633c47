"""Plain arithmetic for tests of what reports say: Welch's interval, and how far two arms' numbers are apart."""

import math
from statistics import mean, stdev

from scipy.stats import t


def welch(one, other, confidence=0.95):
    """Half of Welch's interval of the difference of two means."""
    parts = [stdev(of) ** 2 / len(of) for of in (one, other)]
    freedom = sum(parts) ** 2 / sum(part**2 / (len(of) - 1) for part, of in zip(parts, (one, other), strict=True))
    return math.sqrt(sum(parts)) * t.ppf((1 + confidence) / 2, min(freedom, 2 * (min(len(one), len(other)) - 1)))


def times_as_fast(one, other):
    """The ratio of two arms' seconds, a number a run, and its interval."""
    logs = [[math.log(seconds) for seconds in of] for of in (one, other)]
    value, half = mean(logs[0]) - mean(logs[1]), welch(*logs)
    return math.exp(value), math.exp(value - half), math.exp(value + half)
