"""Measures the pairs of runs until a verdict is resolved, and how often a slow node makes equal engines different.

Runs differ by 2% (SD), their steps by 2%; the lengths are equal, so nothing is fitted. The seed is fixed. The intervals
before the present ones are computed here, with the 2% that they added for a fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from analysis.estimates.arm import estimates
from analysis.estimates.bootstrap import students_t
from analysis.estimates.equal_work import LONGEST, STEP
from analysis.pairs import TOKENS
from analysis.verdict.claim import claim_from, direction, equal_within
from analysis.verdict.look_at import sequential_verdict
from bench.coverage import share_line
from bench.engines import STEP_SD
from bench.measure import Line
from common.verdicts import FIRST_LOOK

SEED, STEPS, RUN_SD, RESAMPLES = 3, 20, 0.02, 300
UNTIL, MOST, FIXED = 1.05, 8, 5
# So many fixed pairs answer about as often as pairs until the verdict is resolved.
SAME_POWER = 6
RATIOS = (1.0, 1.05, 1.1, 1.5)
NODES, SLOW = 4, 1.1
MOST_WRONG = 0.05
FIT_BIAS_BEFORE = 0.02


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


def verdict_before(pairs: pd.DataFrame) -> str:
    """The verdict by the intervals before the present ones.

    Student's t of Welch's degrees of freedom times the runs' standard error, or that of the steps within them where it
    is larger, and 2% at each end.
    """
    logs = np.log(pairs[[f"{STEP}_a", f"{STEP}_b"]])
    groups = logs.groupby(pairs["seed"])
    by_run, apart = groups.mean(), logs - groups.transform("mean")
    runs, variances = len(by_run), by_run.var().to_numpy() / len(by_run)
    between = variances.sum() ** 0.5 * students_t((runs - 1) * variances.sum() ** 2 / (variances**2).sum())
    within = (apart.var().sum() / len(pairs)) ** 0.5 * students_t(len(pairs) - runs)
    half, value = max(between, within) + FIT_BIAS_BEFORE, float((by_run.iloc[:, 0] - by_run.iloc[:, 1]).mean())
    if abs(value) > half and (side := direction(math.exp(value))):
        return "+" if side > 0 else "-"
    return "=" if equal_within((math.exp(value - half), math.exp(value + half)), UNTIL) else "~"


def look_verdict(pairs: pd.DataFrame) -> str:
    return sequential_verdict(pairs, UNTIL, MOST).verdict


def until_resolved(pairs: pd.DataFrame, verdict_of: Callable[[pd.DataFrame], str] = look_verdict) -> tuple[str, int]:
    """The verdict where a look after each pair stops, and the pairs that it took."""
    for runs in range(FIRST_LOOK, MOST + 1):
        if (verdict := verdict_of(pairs[pairs["seed"] < runs])) in "+-=":
            break
    return verdict, runs


def saving_lines(count: int = 60) -> list[Line]:
    """Prints verdicts and pairs for each true ratio, fixed and until resolved; the lines are what is promised."""
    draw, lines = np.random.default_rng(SEED), []
    for ratio in RATIOS:
        made = [pairs_of(draw, ratio, np.ones((MOST, 2))) for _ in range(count)]
        found = [until_resolved(pairs) for pairs in made]
        right = "+" if ratio > 1 else "="
        allowed = "+=~" if ratio == UNTIL else right + "~"
        fixed = {n: [fixed_verdict(pairs[pairs["seed"] < n]) for pairs in made] for n in (FIXED, SAME_POWER)}
        shares = {n: np.mean([verdict == right for verdict in verdicts]) for n, verdicts in fixed.items()}
        before = [until_resolved(pairs, verdict_before) for pairs in made]
        print(
            f"true {ratio}: until {UNTIL}: {_pairs_and_right(found, right)}; "
            + "".join(f"{n} fixed: right {share:.0%}; " for n, share in shares.items())
            + f"intervals before: {_pairs_and_right(before, right)}",
            flush=True,
        )
        wrong = np.mean([verdict not in allowed for verdict, _ in found])
        lines.append(share_line(f"true {ratio}: wrong until resolved", float(wrong), MOST_WRONG, count))
    for how in ("by pair", "at random"):
        nodes = draw.integers(NODES, size=(count * 2, MOST, 2))
        if how == "by pair":
            nodes[..., 1] = nodes[..., 0]
        slow = np.where(nodes == 0, SLOW, 1.0)
        made = [pairs_of(draw, 1.0, one) for one in slow]
        first = [pairs[pairs["seed"] < FIXED] for pairs in made]
        called = {
            f"{FIXED} fixed": map(fixed_verdict, first),
            "until": (until_resolved(pairs)[0] for pairs in made),
            f"intervals before, {FIXED} fixed": map(verdict_before, first),
        }
        shares = ", ".join(f"{np.mean([one in '+-' for one in each]):.1%} ({by})" for by, each in called.items())
        print(f"one slow node of {NODES}, nodes {how}: equal engines called different in {shares}", flush=True)
    return lines


def _pairs_and_right(found: list[tuple[str, int]], right: str) -> str:
    answered = np.mean([verdict == right for verdict, _ in found])
    return f"{np.mean([runs for _, runs in found]):.1f} pairs, right {answered:.0%}"
