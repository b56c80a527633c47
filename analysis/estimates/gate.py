"""Checks that a faster arm trains equally well: reward and truncated responses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from analysis.compared import Compared, column_of
from analysis.ratio import RunNumbers, means_of_runs, reach
from analysis.runs import rows_of
from analysis.wide import REWARD, first_of
from common.verdicts import Verdict, count_of
from trainers.registry import single_rewards

# Quantity: the sign of a worse value. Where one arm is worse in these, the two are not comparable.
WORSE = {"reward": -1, "truncated_share": 1}
LABELS = {"reward": "reward", "truncated_share": "share of truncated responses"}
# Two quantities decide, of either arm, and equal arms must seldom fail.
CONFIDENCE = 0.99
ALIKE, WORSE_ARM, BETTER_ARM, UNKNOWN = "alike", "worse", "better", "unknown"
COLUMNS = [
    *("factors", "arm", "quantity"),
    *("baseline", "arm_value", "difference", "low", "high", "verdict"),
    *("baseline_runs", "arm_runs", "steps", "baseline_missing", "arm_missing"),
]
# Every trainer logs these, so they are never replaced by another measure.
ALWAYS = ("reward",)
# One run an arm shows its steps' spread alone: so many standard deviations of them, of so many steps, are no chance.
FAR_APART, LEAST_STEPS_ALONE = 3.0, 10


def gate_table(wide: pd.DataFrame, every: Sequence[Compared]) -> pd.DataFrame:
    """One row per factor combination, arm and quantity that both arms log (columns: `COLUMNS`).

    Means of the runs' means over the compared steps that have a number in all runs; `difference` is arm minus baseline,
    with its 99% interval (Welch's t). The verdict is `alike` where the interval includes 0, otherwise `worse` or
    `better`. One run an arm has no interval: it is `worse` or `better` where the means of ten steps or more are three
    standard deviations of single steps apart. It is `unknown` otherwise, and where one side misses numbers that the
    other has (`baseline_missing`, `arm_missing`), because the missing steps may differ. The reward has a row even where
    one side never has a number.
    """
    rows = []
    for one in every:
        for quantity in WORSE:
            if one.is_empty or quantity not in wide:
                continue
            row = _row(one, [column_of(wide, side, quantity) for side in one.sides], quantity)
            if row is not None:
                rows.append({"factors": one.factors, "arm": one.arm, "quantity": quantity} | row)
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(one: Compared, values: list[pd.Series], quantity: str) -> dict[str, object] | None:
    """A quantity's row; None where no step has it in both arms, and it need not be there."""
    has = [v.notna() & np.isfinite(v) for v in values]
    if not (all(h.any() for h in has) or (quantity in ALWAYS and any(h.any() for h in has))):
        return None
    # What both arms lack in the same steps, no arm lacks.
    every = [h.groupby(side["step"]).transform("all") for h, side in zip(has, one.sides, strict=True)]
    known = [set(side["step"][e]) for e, side in zip(every, one.sides, strict=True)]
    if one.steps.by_number:
        missing = [len(known[1] - known[0]), len(known[0] - known[1])]
        used = [h & side["step"].isin(known[0] & known[1]) for h, side in zip(has, one.sides, strict=True)]
    else:
        missing, used = [int((~h).sum()) if all(h.any() for h in has) else 0 for h in has], has
    values = [v[u] for v, u in zip(values, used, strict=True)]
    sides = [side.loc[v.index] for v, side in zip(values, one.sides, strict=True)]
    counts = {"baseline_missing": missing[0], "arm_missing": missing[1]}
    if any(side.empty for side in sides):
        nothing = dict.fromkeys(("baseline", "arm_value", "difference", "low", "high"), math.nan)
        return {**nothing, "verdict": UNKNOWN, "baseline_runs": 0, "arm_runs": 0, "steps": 0, **counts}
    runs = [means_of_runs(side, v) for v, side in zip(values, sides, strict=True)]
    sample = RunNumbers(runs[0], runs[1])
    baseline, arm = float(sample.baseline.mean()), float(sample.arm.mean())
    difference, (half, _) = arm - baseline, reach(sample, CONFIDENCE)
    verdict, sign = UNKNOWN, WORSE_ARM if difference * WORSE[quantity] > 0 else BETTER_ARM
    if not math.isnan(half):
        verdict = (UNKNOWN if any(missing) else ALIKE) if abs(difference) <= half else sign
    elif min(len(v) for v in values) >= LEAST_STEPS_ALONE:
        spread = max(float(v.std()) for v in values)
        verdict = sign if abs(difference) > FAR_APART * spread else UNKNOWN
    return {
        "baseline": baseline,
        "arm_value": arm,
        "difference": difference,
        "low": difference - half,
        "high": difference + half,
        "verdict": verdict,
        "baseline_runs": len(sample.baseline),
        "arm_runs": len(sample.arm),
        "steps": int(min(side["n"].sum() for side in sides)),
        **counts,
    }


def worse_arms(gate: pd.DataFrame, baseline: str, arm: str) -> Iterator[tuple[str, str, str]]:
    """Each quantity of a factor combination in which an arm is worse: the arm, the quantity, both values in words."""
    for row in rows_of(gate):
        if row.verdict in (WORSE_ARM, BETTER_ARM):
            share = row.quantity == "truncated_share"
            own, other = (f"{100 * one:.3g}%" if share else f"{one:.3g}" for one in (row.arm_value, row.baseline))
            yield arm if row.verdict == WORSE_ARM else baseline, row.quantity, f"{arm} {own}, {baseline} {other}"


def reward_verdicts(wide: pd.DataFrame) -> Iterator[Verdict]:
    """Warns where a user's reward failed on completions, which have no value then, and where a score is no number."""
    for reward, columns in single_rewards(map(str, wide.columns), "failed").items():
        failed = first_of(wide, columns)
        for run_id, steps in wide.loc[failed > 0, ["run_id", "step"]].groupby("run_id", sort=False)["step"]:
            text = (
                f"run {run_id}: reward {reward} failed on {count_of(int(failed[steps.index].sum()), 'completion')} in "
                f"{count_of(len(steps), 'step')} (first: step {int(steps.min())}), which have no value of it. "
                "attempts/*/reward_failures.jsonl has each with its reason"
            )
            yield Verdict("warning", "reward-failed", text)
    # Of these columns alone: the groups of a table are a copy of it.
    known = wide[["run_id", "step", REWARD]] if REWARD in wide else wide[["run_id"]][:0]
    for run_id, of_run in known.groupby("run_id", sort=False):
        bad = of_run.loc[~np.isfinite(of_run[REWARD].astype(float)), "step"]
        if 0 < len(bad) < len(of_run):
            text = f"run {run_id}: the reward is no number at {count_of(len(bad), 'step')} (first: step {bad.min()})"
            yield Verdict("warning", "bad-reward", f"{text}; the curve has a gap there")
