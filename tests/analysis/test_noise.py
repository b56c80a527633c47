"""The A/A band from repetitions and from seeds."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_estimates import arm_rows, plan

from analysis.estimates.comparable import Comparable
from analysis.estimates.noise import noise_bands, noise_table


def test_a_declared_repetition_gives_the_band():
    wide = pd.concat([arm_rows("a", [10.0, 10.0]), arm_rows("b", [5.0, 5.0]), arm_rows("a2", [10.0, 12.0])])
    (row,) = noise_table(wide, plan("a", "b", "a2", a2="a")).to_dict("records")
    # One pair: |log(20 / 22)| and Student's t of one degree of freedom, 12.706.
    assert row["high"] == pytest.approx((22 / 20) ** 12.7062, rel=1e-3) and row["low"] == pytest.approx(1 / row["high"])
    assert row["runs"] == 2 and row["source"] == "a2, the repetition of a"
    assert row["step_high"] == pytest.approx(1.2, rel=0.05) and row["factors"] == ""


def test_seeds_of_one_arm_give_a_band():
    draw = np.random.default_rng(1)
    logs = draw.normal(0, 0.05, (2, 10))
    frames = [arm_rows(a, np.full(6, 10 * math.exp(logs[i, s])), seed=s) for i, a in enumerate("ab") for s in range(10)]
    (row,) = noise_table(pd.concat(frames), plan("a", "b")).to_dict("records")
    assert row["source"] == "pairs of seeds of a, b" and row["runs"] == 20
    # Two runs differ by √2 times the spread of one; t of 18 degrees of freedom is 2.1009.
    spread = float(np.mean(logs.var(axis=1, ddof=1))) ** 0.5
    assert math.log(row["high"]) == pytest.approx(2.1009 * 2**0.5 * spread, rel=1e-4)


def test_no_band_without_equals():
    wide = pd.concat([arm_rows("a", [10.0]), arm_rows("b", [5.0])])
    assert noise_table(wide, plan("a", "b")).empty and noise_bands(wide, plan("a", "b"), "") == {}


def test_the_band_of_an_estimate_reaches_to_the_far_end_of_the_repetitions_interval():
    draw = np.random.default_rng(2)
    frames = [arm_rows(a, 10 * np.exp(draw.normal(0, 0.02, 40)), equal_floor_s=[1.0] * 40) for a in ("a", "a2")]
    bands = noise_bands(pd.concat(frames), plan("a", "a2", a2="a"), "")
    assert set(bands) == {"raw", "roofline"} and 0.002 < bands["raw"] < 0.03


def test_a_repetition_that_ran_on_something_else_is_none():
    wide = pd.concat([arm_rows(a, [10.0, 10.1] * 10, seed=s) for a in ("a", "b", "a2") for s in (0, 1)])
    wide.loc[wide["arm"] == "a2", "timing_s/step"] *= 2
    of = plan("a", "b", "a2", a2="a")
    other = Comparable(refused={("", "a2"): "other GPUs"}, not_repeated={("", "a2"): "other GPUs"})
    assert noise_bands(wide, of, "", 100)["raw"] > 0.6 and noise_bands(wide, of, "", 100, other) == {}
    assert noise_table(wide, of)["source"].tolist() == ["a2, the repetition of a", "pairs of seeds of a, b, a2"]
    assert noise_table(wide, of, other)["source"].tolist() == ["pairs of seeds of a, b"]
    # What it is not compared with, for any one reason, is nothing that it could be told apart from.
    for one in (replace(other, refused={}), replace(other, not_repeated={})):
        assert "a2" not in " ".join(noise_table(wide, of, one)["source"].tail(1))
