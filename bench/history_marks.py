"""Simulates how often a history marks a change that is none, or misses one: the tables of docs/history.md."""

from __future__ import annotations

import numpy as np

from analysis.speed_history import FALSE_MARKS, level_begins
from bench.measure import Line
from tests.simulated.nights import NOISE

SERIES, NIGHTS = 200, 300
SEED = 11
UNPROMISED = ("neighbours alike, 0.4",)


def mark_lines(series: int = SERIES) -> list[Line]:
    """The tables of docs/history.md; the lines are what is promised of marks."""
    lines = []
    print(
        "| noise of a night | "
        + " | ".join(f"{n} nights" for n in (10, 30, 100, NIGHTS))
        + " |\n|---|---:|---:|---:|---:|"
    )
    for noise in NOISE:
        shares = [100 * false_marks(noise, series, nights) for nights in (10, 30, 100, NIGHTS)]
        print(f"| {noise} | " + " | ".join(f"{share:.1f}%" for share in shares) + " |", flush=True)
        bound = None if noise in UNPROMISED else 100 * FALSE_MARKS
        lines.append(Line(f"no change, {noise}: series with a mark", max(shares), bound, "%"))
    shifts, nights = (2.0, 3.0, 4.0, 6.0, 10.0), (3, 5, 7, 10, 20)
    print("\n| change | nights before | " + " | ".join(f"within {n}" for n in nights) + " | a second mark |")
    print("|---|---:|" + "---:|" * (len(nights) + 1))
    for shift in shifts:
        for before in (5, 10, 30):
            both = [found(before, after, shift, series) for after in nights]
            cells = [f"{100 * share:.0f}%" for share, _ in both]
            print(f"| {shift:g} SD | {before} | {' | '.join(cells)} | {100 * both[-1][1]:.1f}% |", flush=True)
    detected = 100 * found(10, 5, 4.0, series)[0]
    return [*lines, Line("a change of 4 SD after 10 nights, missed within 5", 100 - detected, 25, "%")]


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
