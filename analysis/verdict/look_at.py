"""Looks at an experiment with `seeds: {until, most}` after so many pairs of runs, and says what is resolved."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from analysis.counted import wide_steps
from analysis.estimates.arm import estimates, needed
from analysis.estimates.bootstrap import confidence_at, students_t
from analysis.estimates.comparable import comparable
from analysis.estimates.noise import repetition_of
from analysis.pairs import compared
from analysis.planned import read_plan
from analysis.roofline.step_floors import with_floors
from analysis.runs import read_runs
from analysis.verdict.arm_verdict import NO_SPAN, Span
from analysis.verdict.claim import Claim, claim_from, equal_within
from common.contracts import LookFile, ResolutionInFile
from common.errors import UserError
from common.verdicts import FIRST_LOOK, first_of_each_code


def look_at(plan_file: Path, results: Path, run_ids: list[str]) -> LookFile:
    """The verdicts of these runs; `UserError` if one of them cannot be read."""
    plan = replace(read_plan(plan_file), runs=tuple(run_ids))
    runs, verdicts = read_runs(plan, results, None)
    if left_out := [one.text for one in first_of_each_code(verdicts) if one.level == "error"]:
        raise UserError("\n".join(left_out))
    wide, _ = wide_steps(runs, plan.warmup_steps)
    wide, _ = with_floors(wide, runs, plan.baseline)
    divisible, _ = comparable(runs, plan, wide)
    found: list[ResolutionInFile] = []
    for factors, arm, pairs in compared(wide, plan, needed()):
        if repetition_of(plan, arm) or (factors, arm) in divisible.refused or pairs.empty:
            continue
        overlap = divisible.throughput_only.get((factors, arm), "")
        one = sequential_verdict(pairs, plan.until, max(plan.most, FIRST_LOOK), overlap)
        # The logs of an imported arm are as many as there are.
        seeds = [{run.seed for run in runs if run.arm == name} for name in plan.imported(plan.baseline, arm)]
        more = min([one.more, *(max(0, len(of) - one.pairs) for of in seeds)])
        numbers = [None if math.isnan(number) else number for number in (one.value, *one.interval)]
        found.append(
            {
                "arm": arm,
                "factors": factors,
                "verdict": one.verdict,
                "value": numbers[0],
                "interval": numbers[1:],
                "more": more,
            }
        )
    return {
        "pairs": len({run.seed for run in runs if not plan.imported(run.arm)}),
        "runs": run_ids,
        "until": plan.until,
        "most": plan.most,
        "more": max((one["more"] for one in found), default=0),
        "verdicts": found,
    }


@dataclass(frozen=True)
class Resolution:
    """What the pairs of runs so far say of one arm at one factor combination."""

    verdict: str
    """`+` faster, `-` slower, `=` equal within `until`, `~` not resolved, `x` not comparable."""
    why: str
    """Why there is no direction or no value, where chance is not the reason."""
    value: float
    """The ratio of the claimed estimate; NaN where none has a value."""
    interval: Span
    """Its interval, valid however often the pairs are looked at; NaN for one pair."""
    pairs: int
    more: int
    """The further pairs that are likely to resolve it, at most those that are left; 0 where none is to be run."""


def sequential_verdict(pairs: pd.DataFrame, until: float, most: int, overlap: str = "") -> Resolution:
    """The verdict of one arm at one factor combination after the pairs of runs that are finished, as a pure function.

    Ask after each pair, from the first one on, and submit another pair while `more` is above 0; with several arms or
    factor combinations, while any has `more` above 0. The answer is `+` or `-` where the interval excludes 1, `=` where
    it lies between 1/`until` and `until`. All looks together are wrong in at most 5% (`confidence_at`): a skipped one
    costs nothing, and a run that ends after the answer may be added and asked again. `most` must not change on the way.

    The caller gives
    - `pairs`: the arm's item of `compared(wide, plan, needed())`, whose `wide` has the runs of both arms of every
      finished seed (each has a done.json); a seed in which an arm failed is no pair. Empty without a finished pair;
    - `until`: the ratio from which a difference matters, above 1 (1.05: differences of 5%);
    - `most`: the most pairs of runs, at least 2;
    - `overlap`: `Comparable.throughput_only` of the arm. Arms that are not comparable (`Comparable.refused`) are not
      resolved by more runs: do not ask for them.

    The report uses the same intervals where `PlanRead.until` and `PlanRead.most` are set.

    ValueError where `until` is not above 1 or `most` is below 2.
    """
    if not until > 1 or most < FIRST_LOOK:
        raise ValueError(f"until must be above 1 and most at least {FIRST_LOOK}, got {until} and {most}")
    if pairs.empty:
        return Resolution("~", "", math.nan, NO_SPAN, 0, FIRST_LOOK)
    runs = int(pairs["seed"].nunique())
    rows = {row["estimate"]: row for row in estimates(pairs, overlap, confidence=confidence_at(runs, most))}
    claim = claim_from("", rows, until=until)
    value = claim.value(claim.estimate) if claim.estimate else math.nan
    more = 0 if claim.verdict in "+-=x" else _more(claim, runs, until, most)
    return Resolution(claim.verdict, claim.why, value, claim.interval if claim.estimate else NO_SPAN, runs, more)


def _more(claim: Claim, runs: int, until: float, most: int) -> int:
    """The pairs after which the interval would resolve the ratio, were neither it nor the spread to change."""
    left, (low, high) = max(0, most - runs), claim.interval
    if not low > 0:
        return min(left, max(1, FIRST_LOOK - runs))
    value = math.log(claim.row["value"])
    below, above = value - math.log(low), math.log(high) - value
    for more in range(1, left):
        # The mean's standard error, with Student's t of both arms' runs.
        narrower = (runs / (runs + more)) ** 0.5 * _quantile(runs + more, most) / _quantile(runs, most)
        ends = (value - below * narrower, value + above * narrower)
        if not ends[0] <= 0 <= ends[1] or equal_within((math.exp(ends[0]), math.exp(ends[1])), until):
            return more
    return left


def _quantile(pairs: int, most: int) -> float:
    return students_t(2 * (pairs - 1), (1 + confidence_at(pairs, most)) / 2)
