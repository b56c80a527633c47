"""Measures how often a claimed direction is right, an interval holds the truth, and how far off each estimate is.

`python -m bench coverage` simulates engines of known speed (bench/engines.py) and prints the tables that
docs/estimates.md sums up; the seed is fixed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis.estimates.arm import disagreement, estimates
from analysis.estimates.equal_work import ESTIMATES
from analysis.verdict.claim import Claim, claim_from, direction
from bench.engines import REGIMES, Regime, paired_runs
from bench.measure import Line

SEED = 2
RESAMPLES = 300
RUN_SD = 0.02
RUNS, STEPS = (3, 5), (20, 60)
MORE_RUNS = (2, *RUNS, 10)
# Two-sided, 95%, of a normal distribution.
NORMAL = 1.96
MOST_WRONG, LEAST_COVERED, LEAST_CLAIMED = 0.025, 0.95, 0.80
# So few experiments may exceed a bound by chance: it is broken beyond what a rate at the bound gives in 95% of benches.
CHANCE = 0.95


Place = tuple[int, int]
"""Numbers of runs and of their steps."""


@dataclass
class Found:
    """What so many experiments of one kind gave."""

    regime: Regime
    speed: float
    cases: list[Claim] = field(default_factory=list)

    def values(self, name: str, column: str = "value") -> np.ndarray:
        """One column of an estimate over the experiments, NaN where there is none."""
        return np.array([case.rows[name][column] for case in self.cases], dtype=np.float64)

    def bias(self, name: str) -> float:
        """The mean of estimate / truth - 1."""
        return float(np.nanmean(self.values(name) / self.speed - 1))

    def spread(self, name: str) -> float:
        return float(np.nanstd(self.values(name) / self.speed - 1))

    def coverage(self, name: str = "") -> float:
        """The share of an estimate's intervals, or of the verdict's, that hold the truth, of those that there are."""
        ends = np.array([case.interval for case in self.cases])
        if name:
            ends = np.stack([self.values(name, end) for end in ("low", "high")], axis=1)
        ends = ends[ends[:, 0] > 0]
        return float(np.mean((ends[:, 0] <= self.speed) & (self.speed <= ends[:, 1]))) if len(ends) else math.nan

    def claimed(self, verdicts: str) -> float:
        """The share of experiments in which the verdict is one of these."""
        return float(np.mean([case.verdict in verdicts for case in self.cases]))

    @property
    def width(self) -> float:
        """The median width of the verdict's interval, in widths of one that knows the spread of the ratio."""
        ratios = np.log([case.row["value"] for case in self.cases])
        low, high = np.log([case.interval for case in self.cases]).T
        return float(np.nanmedian(high - low) / (2 * NORMAL * np.nanstd(ratios)))

    @property
    def warnings(self) -> float:
        return float(np.mean([bool(disagreement(case.rows)) for case in self.cases]))


def experiments(
    regime: Regime,
    runs: int,
    count: int,
    *,
    steps: int = 40,
    speed: float = 1.0,
    run_sd: float = 0.0,
    resamples: int = RESAMPLES,
) -> Found:
    """So many experiments of an engine that is `speed` times as fast as the other one at equal work."""
    draw = np.random.default_rng([SEED, REGIMES.index(regime), runs, steps, round(100 * speed), round(1000 * run_sd)])
    made = [paired_runs(draw, regime, runs, speed=speed, steps=steps, run_sd=run_sd) for _ in range(count)]
    found = [{row["estimate"]: row for row in estimates(pairs, "", resamples)} for pairs in made]
    return Found(regime, speed, [claim_from("", rows) for rows in found])


def pooled(found: Sequence[Found]) -> Found:
    """Experiments of several numbers of runs and steps, of one regime and speed, as one."""
    return Found(found[0].regime, found[0].speed, [case for one in found for case in one.cases])


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def with_error(share: float, count: int) -> str:
    """A share with its standard error; of none or of all, that of one experiment."""
    least = min(max(share, 1 / count), 1 - 1 / count)
    return f"{100 * share:.1f} ± {100 * (least * (1 - least) / count) ** 0.5:.1f}%"


def bias_table(alike: Sequence[Found]) -> list[list[str]]:
    """Mean of estimate / truth - 1, with the standard deviation of one experiment."""
    rows = [["regime, drift in B", *(name.replace("_", " ") for name in ESTIMATES)]]
    return rows + [
        [one.regime.name, *(f"{100 * one.bias(n):+.1f} ± {100 * one.spread(n):.1f}%" for n in ESTIMATES)]
        for one in alike
    ]


def claims_table(equal: Sequence[Found], faster: Sequence[dict[str, Found]]) -> list[list[str]]:
    """By regime: identical engines called different, a true 1.1 claimed and reversed, the verdict's coverage."""
    places = list(faster[0])
    rows = [["regime, drift in B", "called different at 1.0", *(f"1.1 claimed, {p}" for p in places), "reversed"]]
    rows[0] += ["coverage", "warned"]
    for same, by_place in zip(equal, faster, strict=True):
        every = pooled([same, *by_place.values()])
        held = sum(one.coverage() * len(one.cases) for one in (same, *by_place.values())) / len(every.cases)
        rows.append(
            [
                same.regime.name,
                with_error(same.claimed("+-"), len(same.cases)),
                *(percent(one.claimed("+")) for one in by_place.values()),
                percent(pooled(list(by_place.values())).claimed("-")),
                with_error(held, len(every.cases)),
                percent(same.warnings),
            ]
        )
    return rows


def runs_table(equal: Sequence[dict[Place, Found]], faster: Sequence[dict[Place, Found]]) -> list[list[str]]:
    """By the number of runs, over all regimes: the verdict's coverage and width, and its claims.

    Beside it the median width that Student's t alone has, where both arms' runs spread equally.
    """
    rows = [["runs", "coverage", "lowest of a regime", "width", "largest", "Student's t", "different at 1.0", "1.1"]]
    for runs in MORE_RUNS:
        at = [[found for (r, _), found in by_place.items() if r == runs] for by_place in equal]
        held = [float(np.mean([found.coverage() for found in cells])) for cells in at]
        widths = [float(np.mean([found.width for found in cells])) for cells in at]
        fast = [found for by_place in faster for (r, _), found in by_place.items() if r == runs]
        different = float(np.mean([found.claimed("+-") for cells in at for found in cells]))
        claimed = float(np.mean([found.claimed("+") for found in fast]))
        shares = [percent(float(np.mean(held))), percent(min(held))]
        ratios = [f"{one:.2f}" for one in (float(np.mean(widths)), max(widths), students_width(runs))]
        rows.append([str(runs), *shares, *ratios, percent(different), percent(claimed)])
    return rows


def students_width(runs: int) -> float:
    """The median width of Student's interval for the difference of two means of so many runs, of a known spread's."""
    from scipy.stats import chi2, t

    freedom = 2 * (runs - 1)
    return float(t.ppf(0.975, freedom) * (chi2.ppf(0.5, freedom) / freedom) ** 0.5 / NORMAL)


VETOES: dict[str, Callable[[list[bool]], bool]] = {"no other": lambda _: False, "any other": any}
"""Rules for a veto that are not the verdict's, of whether each other estimate points the other way."""


def _by_rule(case: Claim, rule: str) -> str:
    """The verdict of a case, had other estimates the right to veto it."""
    side = direction(case.row["value"])
    against = [direction(row["value"]) == -side for row in case.rows.values()]
    verdict: str = case.row["verdict"]
    return "~" if not side or VETOES[rule](against) else verdict


def veto_table(equal: Sequence[Found], faster: Sequence[dict[str, Found]]) -> list[list[str]]:
    """Equal engines called different and a true 1.1 claimed, by which other estimates may veto a direction."""
    rows = [
        ["regime, drift in B", *(f"{rule}: {at}" for rule in ("raw with roofline", *VETOES) for at in ("1.0", "1.1"))]
    ]
    for same, by_place in zip(equal, faster, strict=True):
        fast = pooled(list(by_place.values()))
        shares = [percent(same.claimed("+-")), percent(fast.claimed("+"))]
        for rule in VETOES:
            shares.append(percent(float(np.mean([_by_rule(case, rule) in "+-" for case in same.cases]))))
            shares.append(percent(float(np.mean([_by_rule(case, rule) == "+" for case in fast.cases]))))
        rows.append([same.regime.name, *shares])
    return rows


def coverage_table(found: Sequence[Found]) -> list[list[str]]:
    """Share of 95% intervals that hold the truth, by estimate and for the verdict."""
    rows = [["regime, drift in B", *(name.replace("_", " ") for name in ESTIMATES), "verdict", "directions"]]
    for one in found:
        verdict = one.coverage()
        shares = [
            *(percent(one.coverage(name)) for name in ESTIMATES),
            "none" if math.isnan(verdict) else percent(verdict),
        ]
        rows.append([one.regime.name, *shares, percent(one.claimed("+-"))])
    return rows


def markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body))


def show(what: str, rows: Sequence[Sequence[str]]) -> None:
    print(f"{what}\n\n{markdown(rows)}\n", flush=True)


def share_line(what: str, share: float, most: float, count: int) -> Line:
    """A share of so many experiments, and the most that chance gives where the true share is at its bound."""
    from scipy.stats import binom  # type: ignore[import-untyped]

    limit = float(binom.ppf(CHANCE, count, most)) / count
    return Line(f"{what} (at most {most:.1%}, of {count})", 100 * share, 100 * limit, "%")


def coverage_lines(count: int = 200) -> list[Line]:
    """Prints the tables that docs/estimates.md sums up; the lines are what is promised of claims and intervals.

    `count` experiments of equal engines for each regime, number of runs and number of steps; of others a quarter.
    """
    places = [(runs, steps) for runs in RUNS for steps in STEPS]
    fewer = max(1, count // 4)
    equal_at, faster_at = [], []
    for regime in REGIMES:
        of: dict[float, dict[Place, Found]] = {1.0: {}, 1.1: {}}
        for speed, at in of.items():
            for r, s in itertools.product(MORE_RUNS, STEPS):
                many = count if speed == 1.0 and r in RUNS else fewer
                at[r, s] = experiments(regime, r, many, steps=s, run_sd=RUN_SD, speed=speed)
        equal_at.append(of[1.0])
        faster_at.append(of[1.1])
    equal = [pooled([at[place] for place in places]) for at in equal_at]
    faster = [{f"{r} × {s}": at[r, s] for r, s in places} for at in faster_at]
    show(f"Bias, {len(places)} × {count} experiments each (3 and 5 runs of 20 and 60 steps):", bias_table(equal))
    show("By the number of runs, which differ by 2% (SD):", runs_table(equal_at, faster_at))
    title = f"Claims, runs differ by 2% (SD), {len(places)} × {count} experiments at 1.0 and {fewer} a cell at 1.1:"
    show(title, claims_table(equal, faster))
    show("Which other estimates may veto a direction, the same experiments:", veto_table(equal, faster))
    show("Coverage by estimate, the same experiments at 1.0:", coverage_table(equal))
    alike = [experiments(regime, 5, fewer, steps=60) for regime in REGIMES]
    show(f"Runs that differ in nothing but their samples, 5 × 60, {fewer} experiments each:", coverage_table(alike))
    single = [experiments(regime, 1, fewer, run_sd=RUN_SD) for regime in REGIMES]
    show(f"One pair of runs of 40 steps that differ by 2%, {fewer} experiments each:", coverage_table(single))
    lines = []
    for same, by_place in zip(equal, faster, strict=True):
        name, most = same.regime.name, by_place[f"{RUNS[-1]} × {STEPS[-1]}"]
        lines += [
            share_line(f"{name}: equal engines called different", same.claimed("+-"), MOST_WRONG, len(same.cases)),
            share_line(f"{name}: verdict's interval misses", 1 - same.coverage(), 1 - LEAST_COVERED, len(same.cases)),
            share_line(f"{name}: 1.1 not claimed, 5 × 60", 1 - most.claimed("+"), 1 - LEAST_CLAIMED, len(most.cases)),
        ]
    return lines
