"""Both estimates on tables that were worked out by hand, every reason for none, and what changes nothing."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis.compared import compared
from analysis.estimates.comparable import ALL_COMPARABLE
from analysis.estimates.estimate_table import estimate_table
from analysis.planned import PlanRead
from analysis.ratio import FIT_BIAS, FIT_BIAS_WITH_ALL_LENGTHS, LEAST_STEPS

STEP = "timing_s/step"


def plan(*arms, **same_as):
    made = {
        "experiment": "e",
        "description": "",
        "baseline": arms[0],
        "warmup_steps": 0,
        "runs": (),
        "fingerprints": {},
    }
    return PlanRead(arms={arm: {} for arm in arms}, same_as=same_as, **made)


def arm_rows(arm, step_s, seed=0, factors="", **columns):
    count = len(step_s)
    steps = {"run_id": f"{arm}{factors}-s{seed}", "arm": arm, "factors": factors, "seed": seed}
    steps |= {"step": range(1, count + 1), "counted": True, "left_out": "", STEP: step_s}
    if "response_tokens" in columns:
        columns = {"mean_response_length": np.nan_to_num(columns["response_tokens"], nan=64) / 64} | columns
    return pd.DataFrame(steps | columns)


def found(*frames, arms=("a", "b"), comparable=ALL_COMPARABLE, **same_as):
    wide, of = pd.concat(frames, ignore_index=True), plan(*arms, **same_as)
    table, verdicts = estimate_table(wide, of, compared(wide, of), comparable)
    return table.set_index("estimate"), verdicts


def work(seed, steps=30, scale=1.0):
    draw = np.random.default_rng(seed)
    longest = np.round(draw.uniform(4000, 9000, steps) * scale)
    return {"max_response_length": longest, "response_tokens": np.round(longest * 20 + draw.uniform(0, 60000, steps))}


def engine_s(columns, a=5.0, b=0.01, c=1e-4):
    return a + b * columns["max_response_length"] + c * columns["response_tokens"]


@pytest.mark.parametrize(
    ("known", "share"), [(math.nan, FIT_BIAS), (1.0, FIT_BIAS_WITH_ALL_LENGTHS)], ids=["means", "all lengths"]
)
def test_the_fit_finds_the_speed_behind_other_work(known, share):
    """Twice as fast at any work, with responses half again as long: per step says 1.3, the fit 2.

    The floor says nothing that the other lengths do not: the fit knows all lengths without a term for it.
    """
    wa, wb = (of | {"equal_floor_s": known * engine_s(of) / 5} for of in (work(1), work(2, scale=1.5)))
    frames = [(arm_rows("a", engine_s(wa), s, **wa), arm_rows("b", engine_s(wb) / 2, s, **wb)) for s in range(2)]
    table, _ = found(*(frame for pair in frames for frame in pair))
    row, step = table.loc["equal_work"], table.loc["per_step", "value"]
    assert row["value"] == pytest.approx(2, rel=1e-9) and step < 1.5 and row["verdict"] == "+"
    # Steps that a line explains to the last digit leave a share of the effect of the lengths that it takes out.
    bias = share * math.log(2 / step)
    assert row[["low", "high"]].tolist() == pytest.approx([2 * math.exp(-bias), 2 * math.exp(bias)], rel=1e-6)
    assert row["minimum_detectable_ratio"] == pytest.approx(math.exp(bias), rel=1e-6)


def test_the_fit_compares_over_what_both_cover():
    """Other slopes: the ratio depends on where; it is that of the predictions over the pooled steps in common."""
    wa, wb = work(3), work(4, scale=1.2)
    a, b = engine_s(wa), engine_s(wb, a=1.0, b=0.02, c=5e-5)
    table, _ = found(arm_rows("a", a, **wa), arm_rows("b", b, **wb))
    pooled = pd.concat([pd.DataFrame(wa), pd.DataFrame(wb)])
    low = np.maximum(pd.DataFrame(wa).min(), pd.DataFrame(wb).min())
    high = np.minimum(pd.DataFrame(wa).max(), pd.DataFrame(wb).max())
    common = pooled[((pooled >= low) & (pooled <= high)).all(axis=1)]
    assert 3 < len(common) < len(pooled)
    expected = engine_s(common).sum() / engine_s(common, a=1.0, b=0.02, c=5e-5).sum()
    assert table.loc["equal_work", "value"] == pytest.approx(expected, rel=1e-9)


def test_where_all_lengths_are_equal_nothing_is_fitted_and_no_bias_added():
    """Five runs of 1.03 that differ by 0.1% are told apart, at equal work as per step."""
    draw = np.random.default_rng(4)
    told = {"response_tokens": np.full(40, 1000.0), "max_response_length": np.full(40, 64.0)}
    frames = [
        arm_rows(arm, s * np.exp(draw.normal(0, 1e-3, 40) + draw.normal(0, 1e-3)), seed=seed, **told)
        for seed in range(5)
        for arm, s in (("a", 10.3), ("b", 10.0))
    ]
    table, _ = found(*frames)
    row = table.loc["equal_work"]
    assert row["verdict"] == "+" and 1.02 < row["low"] < row["high"] < 1.04
    assert row["minimum_detectable_ratio"] < 1.005 and row["value"] == table.loc["per_step", "value"]


def test_too_few_steps_leave_no_equal_work():
    few = work(1, LEAST_STEPS - 1)
    table, _ = found(arm_rows("a", engine_s(few), **few), arm_rows("b", engine_s(few), **few))
    assert table.loc["equal_work", "why"] == "a fit needs 6 steps of each arm (there are 5)"


def test_runs_to_resolve_are_about_those_that_resolve_it():
    draw = np.random.default_rng(3)
    runs = {arm: s * np.exp(draw.normal(0, 0.03, 300)) for arm, s in (("a", 10.3), ("b", 10))}
    frames = [arm_rows(arm, [s] * 2, seed) for arm, of in runs.items() for seed, s in enumerate(of[:4])]
    row = found(*frames)[0].loc["per_step"]
    assert row["verdict"] == "~" and 3 <= row["runs_to_resolve"] <= 40
    more = int(row["runs_to_resolve"])
    frames = [arm_rows(arm, [s] * 2, seed) for arm, of in runs.items() for seed, s in enumerate(of[: 4 + 2 * more])]
    assert found(*frames)[0].loc["per_step", "verdict"] == "+"


@pytest.mark.parametrize(
    ("name", "nothing", "some"),
    [("training/filter_groups/evicted_samples", 0.0, 64.0), ("train/num_gen_batches", 1.0, 3.0)],
    ids=["completions", "batches"],
)
@pytest.mark.parametrize("side", ["a", "b"])
def test_what_was_thrown_away_is_in_the_seconds_alone(side, name, nothing, some):
    """Seconds that also made what was thrown away, at the lengths of what was kept, are no equal work."""
    told = work(7, 8)
    thrown = {name: [np.nan] * 5 + [nothing, some, some]}
    frames = {arm: arm_rows(arm, engine_s(told), **told, **(thrown if arm == side else {})) for arm in "ab"}
    table, _ = found(*frames.values())
    why = table.loc["equal_work", "why"]
    assert table["value"].notna().tolist() == [False, True]
    assert f"{'the baseline' if side == 'a' else 'the arm'} in 2 steps" in why and why.startswith("completions")
    table, _ = found(*(frame.assign(**{name: nothing}) for frame in frames.values()))
    assert table["value"].notna().all()


def test_a_repetition_that_differs_is_told_and_decides_no_other_verdict():
    draw = np.random.default_rng(9)

    def runs(arm, speed):
        return [arm_rows(arm, 10 / speed * np.exp(draw.normal(0, 0.01, 40)), seed=seed) for seed in range(3)]

    frames = [*runs("a", 1.0), *runs("b", 1.05), *runs("again", 1.1)]
    table, verdicts = found(*frames, arms=("a", "b", "again"), again="a")
    assert [v.code for v in verdicts] == ["equal-arms-differ"]
    assert set(table.loc["per_step", "verdict"]) == {"+"}


def test_a_step_that_is_left_out_in_one_run_is_compared_in_none():
    frames = [arm_rows(arm, [10.0] * 20, s) for arm in "ab" for s in range(2)]
    frames[0].loc[4, "counted"] = False
    assert found(*frames)[0].loc["per_step", ["baseline_steps", "arm_steps"]].tolist() == [38, 38]
