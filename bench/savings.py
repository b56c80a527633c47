"""Measures the runs until a verdict is resolved, and how often a slow node makes equal engines different.

Runs differ by 2% (SD), their steps by 2%; the lengths are equal, so nothing is fitted. The seed is fixed.
"""

from __future__ import annotations

import numpy as np

from analysis.compared import Compared, common_of
from analysis.estimates.estimate_table import estimates
from analysis.verdict.claim import claim_from
from analysis.verdict.look_at import sequential_verdict
from bench.coverage import share_line
from bench.measure import Line
from common.verdicts import FIRST_LOOK
from tests.simulated.engines import SECONDS, STEP_SD, side_of

SEED, STEPS, RUN_SD = 3, 20, 0.02
UNTIL, MOST, FIXED = 1.05, 8, 5
# So many fixed runs answer about as often as runs until the verdict is resolved.
SAME_POWER = 6
RATIOS = (1.0, 1.05, 1.1, 1.5)
NODES, SLOW = 4, 1.1
MOST_WRONG = 0.05


def seconds_of(draw: np.random.Generator, ratio: float, slow: np.ndarray) -> np.ndarray:
    """Seconds by run, arm and step of an arm that is `ratio` times as fast; `slow` multiplies them by run and arm."""
    of_run = draw.normal(0, RUN_SD, (len(slow), 2, 1)) + draw.normal(0, STEP_SD, (len(slow), 2, STEPS))
    found: np.ndarray = 100 / np.array([1.0, ratio])[:, None] * slow[..., None] * np.exp(of_run)
    return found


def compared_runs(seconds: np.ndarray) -> Compared:
    """The first so many runs of both arms."""
    sides = [side_of(name, [{SECONDS: run} for run in seconds[:, at]]) for at, name in enumerate("ab")]
    return Compared("", "a", "b", common_of(*sides))


def fixed_verdict(seconds: np.ndarray) -> str:
    rows = {row["estimate"]: row for row in estimates(compared_runs(seconds))}
    return claim_from("", rows, until=UNTIL).verdict


def until_resolved(seconds: np.ndarray) -> tuple[str, int]:
    """The verdict where a look after each pair of runs stops, and the pairs that it took."""
    for runs in range(FIRST_LOOK, MOST + 1):
        verdict = sequential_verdict(compared_runs(seconds[:runs]), UNTIL, MOST).verdict
        if verdict in "+-=":
            break
    return verdict, runs


def saving_lines(count: int = 200) -> list[Line]:
    """Prints verdicts and pairs for each true ratio, fixed and until resolved; the lines are what is promised."""
    draw, lines = np.random.default_rng(SEED), []
    for ratio in RATIOS:
        made = [seconds_of(draw, ratio, np.ones((MOST, 2))) for _ in range(count)]
        found = [until_resolved(seconds) for seconds in made]
        right = "+" if ratio > 1 else "="
        allowed = "+=~" if ratio == UNTIL else right + "~"
        fixed = {n: [fixed_verdict(seconds[:n]) for seconds in made] for n in (FIXED, SAME_POWER)}
        shares = {n: np.mean([verdict == right for verdict in verdicts]) for n, verdicts in fixed.items()}
        answered = np.mean([verdict == right for verdict, _ in found])
        print(
            f"true {ratio}: until {UNTIL}: {np.mean([runs for _, runs in found]):.1f} pairs, right {answered:.0%}; "
            + "; ".join(f"{n} fixed: right {share:.0%}" for n, share in shares.items()),
            flush=True,
        )
        wrong = np.mean([verdict not in allowed for verdict, _ in found])
        lines.append(share_line(f"true {ratio}: wrong until resolved", float(wrong), MOST_WRONG, count))
    for how in ("by pair", "at random"):
        nodes = draw.integers(NODES, size=(count, MOST, 2))
        if how == "by pair":
            nodes[..., 1] = nodes[..., 0]
        slow = np.where(nodes == 0, SLOW, 1.0)
        made = [seconds_of(draw, 1.0, one) for one in slow]
        called = {
            f"{FIXED} fixed": [fixed_verdict(seconds[:FIXED]) for seconds in made],
            "until": [until_resolved(seconds)[0] for seconds in made],
        }
        shown = ", ".join(f"{np.mean([one in '+-' for one in each]):.1%} ({by})" for by, each in called.items())
        print(f"one slow node of {NODES}, nodes {how}: equal engines called different in {shown}", flush=True)
    return lines
