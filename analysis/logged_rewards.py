"""Tabulates each reward of a score, its weight and its change over a run, and reports the missing values of rewards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.quantiles import students_t
from analysis.runs import Run
from analysis.wide import REWARD
from analysis.windows import steps_per_row
from common.dotted import as_mapping
from common.verdicts import Verdict, count_of
from node.built_in_rewards import reward_name
from trainers.logs.record import STEPS_LOGGED
from trainers.registry import logged_as, scalars_of, single_rewards

COLUMNS = ["factors", "arm", "reward", "weight", "first", "last", "change", "low", "high", "runs", "steps"]
PARTS = 4
"""A run's steps are divided into this many parts; the first and the last are compared."""


def rewards_table(wide: pd.DataFrame, runs: Sequence[Run]) -> pd.DataFrame:
    """One row per factor combination, arm and reward, and where there are several rewards one of the score.

    Means over the first and the last quarter of each run's steps, warm-up included, before the weight. `change` is
    their mean difference over the runs, `low` and `high` its 95% interval (Student's t, with two runs or more), `steps`
    the steps of a quarter. `weight` is NaN where runs do not record it. Empty without logged single rewards.
    """
    columns = single_rewards(map(str, wide.columns))
    if not columns:
        return pd.DataFrame(columns=COLUMNS)
    values = {name: first_of(wide, names) for name, names in columns.items()}
    if len(values) > 1 and REWARD in wide:
        values["score"] = pd.to_numeric(wide[REWARD], errors="coerce")
    weights = {(run.factors_key, run.arm): weights_of(run.spec) for run in runs}
    rows = []
    used = wide[[name for name in ("run_id", "factors", "arm", STEPS_LOGGED) if name in wide]]
    for key, mine in used.groupby(["factors", "arm"], sort=False):
        factors, arm = map(str, key)
        for name, of_all in values.items():
            by_run = of_all[mine.index].groupby(mine["run_id"], sort=False)
            ends = [_ends(rows, steps_per_row(mine)[rows.index]) for _, rows in by_run]
            known = [end for end in ends if end is not None]
            if known:
                weight = weights.get((factors, arm), {}).get(name, math.nan)
                rows.append({"factors": factors, "arm": arm, "reward": name, "weight": weight} | _change(known))
    return pd.DataFrame(rows, columns=COLUMNS)


def first_of(wide: pd.DataFrame, names: Iterable[str]) -> pd.Series:
    """Row by row the first value of these columns: trainers name a reward differently."""
    values: pd.Series = wide[list(names)].apply(pd.to_numeric, errors="coerce").bfill(axis=1).iloc[:, 0]
    return values


def weights_of(spec: Mapping[str, Any]) -> dict[str, float]:
    """Each reward's weight in the score; {} where a run's specification has none."""
    rewards = as_mapping(spec.get("workload")).get("rewards")
    known = [reward for reward in rewards if isinstance(reward, Mapping)] if isinstance(rewards, list) else []
    return {reward_name(reward): float(reward.get("weight", 1.0)) for reward in known}


def _ends(values: pd.Series, weights: pd.Series) -> tuple[float, float, int] | None:
    """The means of a run's first and last quarter, and the steps of each; None with fewer than two numbers."""
    finite = np.isfinite(values)
    if finite.sum() < 2:
        return None
    # A row that is the mean of several steps counts for all of them.
    known = np.repeat(values[finite].to_numpy(dtype=float), weights[finite])
    steps = max(1, len(known) // PARTS)
    return float(known[:steps].mean()), float(known[-steps:].mean()), steps


def _change(ends: Sequence[tuple[float, float, int]]) -> dict[str, float | int]:
    """The means over runs, and the change with its 95% interval (Student's t), NaN with fewer than two runs."""
    first, last, steps = map(np.array, zip(*ends, strict=True))
    count, changes = len(ends), last - first
    change = float(np.mean(changes))
    half = students_t(count - 1) * float(np.std(changes, ddof=1)) / math.sqrt(count) if count > 1 else math.nan
    return {
        "first": float(first.mean()),
        "last": float(last.mean()),
        "change": change,
        "low": change - half,
        "high": change + half,
        "runs": count,
        "steps": int(steps.min()),
    }


def failed_reward_verdicts(wide: pd.DataFrame) -> Iterator[Verdict]:
    """Runs in which a user's reward function failed on completions, which then have no value."""
    for reward, columns in single_rewards(map(str, wide.columns), "failed").items():
        failed = first_of(wide, columns)
        for run_id, steps in wide.loc[failed > 0, ["run_id", "step"]].groupby("run_id", sort=False)["step"]:
            text = (
                f"run {run_id}: reward {reward} failed on {count_of(int(failed[steps.index].sum()), 'completion')} in "
                f"{count_of(len(steps), 'step')} (first: step {int(steps.min())}), which have no value of it. "
                "attempts/*/reward_failures.jsonl has each with its reason"
            )
            yield Verdict("warning", "reward-failed", text)


def reward_verdicts(wide: pd.DataFrame, runs: Sequence[Run]) -> Iterator[Verdict]:
    """Runs that log no reward, and those whose reward is not a finite number at some steps."""
    if not len(wide):
        return
    yield from failed_reward_verdicts(wide)
    if REWARD not in wide:
        yield Verdict("warning", "no-reward", f"no run logs {' or '.join(scalars_of(REWARD))}: no reward curve")
        return
    of_run, bad = {run.run_id: run for run in runs}, ~np.isfinite(wide[REWARD].astype(float))
    size = wide.groupby("run_id").size()
    for key, steps in wide.loc[bad, ["run_id", "step"]].groupby("run_id", sort=False)["step"]:
        run_id = str(key)
        if len(steps) == size[run_id] and logged_as(REWARD, of_run[run_id].steps["name"].unique()) is None:
            yield Verdict("note", "run-without-reward", f"run {run_id} logs no reward: it has no reward curve")
        else:
            first = int(steps.min())
            text = f"run {run_id}: the reward is no number at {count_of(len(steps), 'step')} (first: step {first})"
            yield Verdict("warning", "bad-reward", f"{text}; the curve has a gap there")
