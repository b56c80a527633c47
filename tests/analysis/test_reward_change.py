"""The table of single rewards: weights, first and last quarters, and what the seeds leave open, by hand."""

import math
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest
from test_estimates import arm_rows

from analysis.logged_rewards import rewards_table


def rows(seed, rise, name="train/rewards/accuracy/mean", arm="a"):
    values = [0.25, 0.25, 0.5, 0.5, 0.5, 0.5, 0.25 + rise, 0.25 + rise]
    return steps_of(arm, seed, **{"reward": [2 * v for v in values], name: values})


def steps_of(arm, seed, **columns):
    steps = [1.0] * len(next(iter(columns.values())))
    frame = arm_rows(arm, steps, seed=seed, **cast(Any, columns))
    return frame.assign(run_id=f"{arm}-s{seed}")


def run(workload):
    return SimpleNamespace(factors_key="", arm="a", spec={"workload": workload})


def test_by_hand_over_two_runs():
    wide = pd.concat([rows(0, 0.25), rows(1, 0.5)], ignore_index=True)
    wide["train/rewards/mine/mean"] = math.nan
    wide.loc[wide["seed"] == 1, "train/rewards/mine/mean"] = 3.0
    weights = {"rewards": [{"name": "accuracy"}, {"function": "mine", "source": "m.py", "weight": 0.5}]}
    table = rewards_table(wide, [run(weights)]).set_index("reward")
    assert list(table.index) == ["accuracy", "mine", "score"]
    assert table["weight"].tolist()[:2] == [1.0, 0.5] and math.isnan(table.loc["score", "weight"])
    assert table.loc["accuracy", ["first", "last", "change", "runs", "steps"]].tolist() == [0.25, 0.625, 0.375, 2, 2]
    # Of 0.25 and 0.5: the standard error is 0.125, and t of one degree of freedom 12.706.
    assert table.loc["accuracy", "high"] == pytest.approx(0.375 + 12.7062 * 0.125)
    assert table.loc["mine", ["change", "runs"]].tolist() == [0.0, 1] and math.isnan(table.loc["mine", "low"])
    assert table.loc["score", "change"] == 0.75


def test_trainers_that_name_a_reward_differently_are_one_reward():
    wide = pd.concat([rows(0, 0.5), rows(0, 0.75, "rewards/accuracy/mean", "b")], ignore_index=True)
    table = rewards_table(wide, [])
    assert table[["arm", "reward", "change"]].to_numpy().tolist() == [["a", "accuracy", 0.5], ["b", "accuracy", 0.75]]
    assert table["weight"].isna().all(), "no specification tells it"
