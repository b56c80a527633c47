"""Measures the pairs of runs until a verdict is resolved, and how often a slow node makes equal engines different.

Runs differ by 2% (SD), their steps by 2%; the lengths are equal, so nothing is fitted. The seed is fixed.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.estimates.arm import estimates
from analysis.estimates.equal_work import LONGEST, STEP
from analysis.speedup import TOKENS
from analysis.verdict.claim import claim_from
from analysis.verdict.sequential import sequential_verdict
from bench.engines import STEP_SD
from bench.measure import Line
from common.verdicts import FIRST_LOOK

SEED, STEPS, RUN_SD, RESAMPLES = 3, 20, 0.02, 300
UNTIL, MOST, FIXED = 1.05, 8, 5
RATIOS = (1.0, 1.05, 1.1, 1.5)
NODES, SLOW = 4, 1.1
MOST_WRONG = 0.05


def pairs_of(draw: np.random.Generator, ratio: float, slow: np.ndarray) -> pd.DataFrame:
    """Paired steps of an arm that is `ratio` times as fast; `slow` multiplies each run's seconds (pairs, arms)."""
    runs = len(slow)
    columns: dict[str, object] = {
        "seed": np.repeat(np.arange(runs), STEPS),
        "step": np.tile(np.arange(STEPS) + 1, runs),
        **{f"{name}_{s}": 1000.0 for name in (TOKENS, LONGEST) for s in "ab"},
    }
    for at, s in enumerate("ab"):
        of_run = draw.normal(0, RUN_SD, (runs, 1)) + draw.normal(0, STEP_SD, (runs, STEPS))
        columns[f"{STEP}_{s}"] = (100 / ratio**at * slow[:, [at]] * np.exp(of_run)).ravel()
    return pd.DataFrame(columns)


def fixed_verdict(pairs: pd.DataFrame) -> str:
    rows = {row["estimate"]: row for row in estimates(pairs, "", RESAMPLES)}
    return claim_from("", rows, until=UNTIL).verdict


def until_resolved(pairs: pd.DataFrame) -> tuple[str, int]:
    """The verdict where a look after each pair stops, and the pairs that it took."""
    for runs in range(FIRST_LOOK, MOST + 1):
        found = sequential_verdict(pairs[pairs["seed"] < runs], UNTIL, MOST)
        if found.resolved:
            break
    return found.verdict, runs


def saving_lines(count: int = 60) -> list[Line]:
    """Prints verdicts and pairs for each true ratio, fixed and until resolved; the lines are what is promised."""
    draw, lines = np.random.default_rng(SEED), []
    for ratio in RATIOS:
        made = [pairs_of(draw, ratio, np.ones((MOST, 2))) for _ in range(count)]
        found = [until_resolved(pairs) for pairs in made]
        right = "+" if ratio > 1 else "="
        allowed = "+=~" if ratio == UNTIL else right + "~"
        fixed = [fixed_verdict(pairs[pairs["seed"] < FIXED]) for pairs in made]
        answered = np.mean([verdict == right for verdict, _ in found])
        print(
            f"true {ratio}: until {UNTIL}: {np.mean([runs for _, runs in found]):.1f} pairs, right {answered:.0%}; "
            f"{FIXED} fixed: right {np.mean([verdict == right for verdict in fixed]):.0%}",
            flush=True,
        )
        wrong = np.mean([verdict not in allowed for verdict, _ in found])
        lines.append(Line(f"true {ratio}: wrong until resolved", 100 * float(wrong), 100 * MOST_WRONG, "%"))
    for how in ("by pair", "at random"):
        nodes = draw.integers(NODES, size=(count * 2, FIXED, 2))
        if how == "by pair":
            nodes[..., 1] = nodes[..., 0]
        slow = np.where(nodes == 0, SLOW, 1.0)
        different = np.mean([fixed_verdict(pairs_of(draw, 1.0, one)) in "+-" for one in slow])
        print(f"one slow node of {NODES}, nodes {how}: equal engines called different in {different:.1%}", flush=True)
    return lines
