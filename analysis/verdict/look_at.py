"""Looks at an experiment with `seeds: {until, most}` after so many pairs of runs, and says what is resolved."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from analysis.compared import Compared, compared
from analysis.counted import wide_steps
from analysis.estimates.comparable import comparable
from analysis.estimates.estimate_table import estimates, samples
from analysis.planned import read_plan
from analysis.quantiles import confidence_at
from analysis.ratio import RunNumbers, reach
from analysis.roofline.floors import with_floors
from analysis.runs import read_runs
from analysis.verdict.arm_verdict import NO_SPAN, Span
from analysis.verdict.claim import claim_from
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
    for each in compared(wide, plan):
        key = (each.factors, each.arm)
        if plan.repeats(each.arm) or key in divisible.refused or each.is_empty:
            continue
        one = sequential_verdict(each, plan.until, max(plan.most, FIRST_LOOK), divisible.throughput_only.get(key, ""))
        # The logs of an imported arm are as many as there are.
        mine = [run.arm for run in runs if run.factors_key == each.factors]
        logs = [mine.count(name) for name in plan.imported(plan.baseline, each.arm)]
        more = min([one.more, *(max(0, of - one.pairs) for of in logs)])
        numbers = [None if math.isnan(number) else number for number in (one.value, *one.interval)]
        found.append(
            {
                "arm": each.arm,
                "factors": each.factors,
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
    """The runs of the arm that has fewer."""
    more: int
    """The further pairs that are likely to resolve it, at most those that are left; 0 where none is to be run."""


def sequential_verdict(one: Compared | None, until: float, most: int, overlap: str = "") -> Resolution:
    """The verdict of one arm at one factor combination after the pairs of runs that are finished, as a pure function.

    Ask after each pair and submit another one while `more` is above 0. All looks together are wrong in at most 5%
    (`confidence_at`): a skipped one costs nothing, and a run that ends after the answer may be added and asked again.

    - `one`: the arm's item of `compared(wide, plan)`; None without finished runs. A run whose partner failed counts;
    - `until`: the ratio from which a difference matters, above 1; `most`: the most pairs, which must not change;
    - `overlap`: `Comparable.throughput_only` of the arm. Do not ask for arms that are refused.

    ValueError where `until` is not above 1 or `most` is below 2.
    """
    if not until > 1 or most < FIRST_LOOK:
        raise ValueError(f"until must be above 1 and most at least {FIRST_LOOK}, got {until} and {most}")
    if one is None or one.is_empty:
        return Resolution("~", "", math.nan, NO_SPAN, 0, FIRST_LOOK)
    runs = one.fewest_runs
    rows = {row["estimate"]: row for row in estimates(one, overlap, confidence_at(runs, most))}
    claim = claim_from("", rows, until=until)
    more = 0
    if claim.verdict == "~":
        sample = samples(one, overlap)[claim.estimate]
        assert isinstance(sample, RunNumbers)
        more = _more(sample, runs, until, most)
    return Resolution(claim.verdict, claim.why, claim.row["value"], claim.interval, runs, more)


def _more(sample: RunNumbers, runs: int, until: float, most: int) -> int:
    """The pairs after which the interval would resolve the ratio, were neither it nor the spread to change."""
    left, value = max(0, most - runs), abs(sample.log_ratio)
    if runs < FIRST_LOOK:
        return min(left, FIRST_LOOK - runs)
    for more in range(1, left):
        half, _ = reach(sample, confidence_at(runs + more, most), more)
        if half < value or half + value < math.log(until):
            return more
    return left
