"""How often does a 95% interval hold the truth, and how far off is each estimate? `python -m bench coverage`

Simulated engines of known speed (bench/engines.py): every number in docs/estimates.md is printed by this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis.estimates.arm import estimates
from analysis.estimates.disagreement import disagreement
from analysis.estimates.equal_work import EQUAL_WORK, ESTIMATES
from bench.engines import REGIMES, Regime, paired_runs
from bench.measure import Line

RUNS = (1, 3, 5)
SEED = 2
HULL = "equal work"
"""The headline's claim: from the lowest end to the highest of the intervals at equal work."""


@dataclass
class Found:
    """What so many experiments of one kind gave."""

    regime: Regime
    runs: int
    log_errors: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in ESTIMATES})
    held: dict[str, list[bool]] = field(default_factory=lambda: {name: [] for name in (*ESTIMATES, HULL)})
    widths: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in ESTIMATES})
    warned: list[bool] = field(default_factory=list)

    def bias(self, name: str) -> float:
        """The mean of estimate / truth - 1."""
        return float(np.mean(np.expm1(self.log_errors[name])))

    def spread(self, name: str) -> float:
        return float(np.std(np.expm1(self.log_errors[name])))

    def coverage(self, name: str) -> float:
        """The share of intervals that hold the truth, of those experiments that gave one."""
        return float(np.mean(self.held[name])) if self.held[name] else math.nan

    def width(self, name: str) -> float:
        """The median of high / low - 1."""
        return float(np.median(self.widths[name])) if self.widths[name] else math.nan

    @property
    def warnings(self) -> float:
        return float(np.mean(self.warned))


def experiments(
    regime: Regime, runs: int, count: int, *, speed: float = 1.0, run_sd: float = 0.0, resamples: int = 1000
) -> Found:
    """So many experiments with known speed: errors, intervals that held the truth, warnings given."""
    draw = np.random.default_rng([SEED, REGIMES.index(regime), runs])
    found, truth = Found(regime, runs), math.log(speed)
    for _ in range(count):
        rows = {
            r["estimate"]: r
            for r in estimates(paired_runs(draw, regime, runs, speed=speed, run_sd=run_sd), "", resamples)
        }
        ends = []
        for name, row in rows.items():
            if row["value"] > 0:
                found.log_errors[name].append(math.log(row["value"]) - truth)
            if row["low"] > 0:
                found.held[name].append(row["low"] <= speed <= row["high"])
                found.widths[name].append(row["high"] / row["low"] - 1)
                ends += [row["low"], row["high"]] if name in EQUAL_WORK else []
        if ends:
            found.held[HULL].append(min(ends) <= speed <= max(ends))
        found.warned.append(bool(disagreement(rows)))
    return found


def bias_table(count: int) -> list[list[str]]:
    """One run of 40 steps per arm: bias ± standard deviation of one experiment."""
    rows = [["regime, drift in B", *(name.replace("_", " ") for name in ESTIMATES)]]
    for regime in REGIMES:
        one = experiments(regime, 1, count, resamples=2)
        rows.append([regime.name, *(f"{100 * one.bias(n):+.1f} ± {100 * one.spread(n):.1f}%" for n in ESTIMATES)])
    return rows


def coverage_table(count: int, run_sd: float) -> list[list[str]]:
    """Share of 95% intervals that hold the true speed, by regime and runs per arm."""
    rows = [["regime, drift in B", "runs", *(n.replace("_", " ") for n in ESTIMATES), HULL, "banner"]]
    for regime in REGIMES:
        for runs in RUNS:
            one = experiments(regime, runs, count, run_sd=run_sd)
            shares = [f"{100 * one.coverage(name):.0f}%" for name in (*ESTIMATES, HULL)]
            rows.append([regime.name, str(runs), *shares, f"{100 * one.warnings:.0f}%"])
    return rows


def markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *body))


def coverage_lines(count: int = 200) -> list[Line]:
    """Prints the tables of docs/estimates.md; the lines are what is promised of the intervals."""
    print(f"Bias, one run per arm, {count} experiments each:\n\n{markdown(bias_table(count))}\n", flush=True)
    for run_sd in (0.0, 0.02):
        table = markdown(coverage_table(count, run_sd))
        print(f"Engines of equal speed, runs differ by {100 * run_sd:g}% (SD):\n\n{table}\n", flush=True)
    lines = []
    for regime in REGIMES:
        one = experiments(regime, 3, count, run_sd=0.02)
        missed = 100 * (1 - one.coverage(HULL))
        lines.append(Line(f"{regime.name}, 3 runs: equal-work range misses the truth", missed, 15, "%"))
    return lines
