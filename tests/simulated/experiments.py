"""Experiments on engines of known speed: what estimates and verdict say of each, and how often they are right."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from analysis.compared import Compared
from analysis.estimates.estimate_table import EQUAL_WORK, disagreement, estimates
from analysis.verdict.claim import Claim, claim_from
from tests.simulated.engines import REGIMES, SHAPES, Regime, Shape, compared_runs, shaped_runs

SEED = 2


@dataclass
class Found:
    """What so many experiments of one kind gave."""

    name: str
    speed: float
    cases: list[Claim] = field(default_factory=list)
    has_lengths: bool = True

    @property
    def told(self) -> list[Claim]:
        """The cases that the promises are about: those at equal work, where lengths are known.

        Without lengths in common the claim is per step, and these steps do differ.
        """
        return [case for case in self.cases if case.estimate == EQUAL_WORK or not self.has_lengths]

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
        ends = np.array([case.interval for case in self.told]).reshape(-1, 2)
        if name:
            ends = np.stack([self.values(name, end) for end in ("low", "high")], axis=1)
        ends = ends[ends[:, 0] > 0]
        return float(np.mean((ends[:, 0] <= self.speed) & (self.speed <= ends[:, 1]))) if len(ends) else math.nan

    def claimed(self, verdicts: str) -> float:
        """The share of experiments in which the verdict is one of these."""
        return float(np.mean([case.verdict in verdicts for case in self.told])) if self.told else math.nan

    @property
    def warnings(self) -> float:
        return float(np.mean([disagreement(case.rows) for case in self.cases]))


def claims_of(make: Callable[[np.random.Generator], Compared], seed: Sequence[int], count: int) -> list[Claim]:
    draw = np.random.default_rng([SEED, *seed])
    sizes = (
        {row["estimate"]: row | {"baseline": "a", "arm": "b"} for row in estimates(make(draw))} for _ in range(count)
    )
    return [claim_from("", rows) for rows in sizes]


def experiments(
    regime: Regime, runs: int, count: int, *, steps: int = 40, speed: float = 1.0, run_sd: float = 0.0
) -> Found:
    """So many experiments of an engine that is `speed` times as fast as the other one at equal work."""
    seed = [REGIMES.index(regime), runs, steps, round(100 * speed), round(1000 * run_sd)]
    make = partial(compared_runs, regime=regime, runs=runs, speed=speed, steps=steps, run_sd=run_sd)
    return Found(regime.name, speed, claims_of(make, seed, count))


def shaped(shape: Shape, count: int) -> Found:
    """So many experiments of identical engines."""
    return Found(
        shape.name,
        1.0,
        has_lengths=False,
        cases=claims_of(partial(shaped_runs, shape=shape), [100 + SHAPES.index(shape)], count),
    )
