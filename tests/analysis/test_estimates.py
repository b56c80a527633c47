"""The four estimates on tables that were worked out by hand, and every reason for none."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis.estimates.arm import FIT_BIAS, FIT_BIAS_WITH_ALL_LENGTHS, ONE_PAIR
from analysis.estimates.comparable import ALL_COMPARABLE, Comparable
from analysis.estimates.equal_work import ESTIMATES, paired
from analysis.estimates.estimate_table import estimate_table
from analysis.planned import PlanRead

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
    steps = {"arm": arm, "factors": factors, "seed": seed, "step": range(1, count + 1), "counted": True, STEP: step_s}
    return pd.DataFrame(steps | columns)


def found(*frames, arms=("a", "b"), comparable=ALL_COMPARABLE, **same_as):
    table, verdicts = estimate_table(pd.concat(frames, ignore_index=True), plan(*arms, **same_as), comparable, 500)
    return table.set_index("estimate"), verdicts


def work(seed, steps=30, scale=1.0):
    draw = np.random.default_rng(seed)
    longest = np.round(draw.uniform(4000, 9000, steps) * scale)
    return {"max_response_length": longest, "response_tokens": np.round(longest * 20 + draw.uniform(0, 60000, steps))}


def engine_s(columns, a=5.0, b=0.01, c=1e-4):
    return a + b * columns["max_response_length"] + c * columns["response_tokens"]


def test_ratios_by_hand():
    of_a = {"response_tokens": [100.0, 300.0], "max_response_length": [9.0, 9.0], "equal_floor_s": [2.0, 3.0]}
    of_b = {"response_tokens": [150.0, 50.0], "max_response_length": [9.0, 8.0], "equal_floor_s": [1.0, 1.5]}
    a, b = arm_rows("a", [8.0, 12.0], **of_a), arm_rows("b", [3.0, 5.0], **of_b)
    table, _ = found(a, b)
    assert table.index.tolist() == list(ESTIMATES)
    assert table.loc["raw", "value"] == pytest.approx(20 / 8, rel=1e-12)
    assert table.loc["per_token", "value"] == pytest.approx((20 / 400) / (8 / 200), rel=1e-12)
    assert table.loc["roofline", "value"] == pytest.approx((2.5 / 8) / (5 / 20), rel=1e-12)
    assert table.loc["standardised", ["verdict", "why"]].tolist() == ["x", "a fit needs 6 paired steps (there are 2)"]


@pytest.mark.parametrize(
    ("basis", "share"), [("scalars", FIT_BIAS), ("lengths", FIT_BIAS_WITH_ALL_LENGTHS)], ids=["scalars", "all lengths"]
)
def test_the_fit_finds_the_speed_behind_other_work(basis, share):
    """Twice as fast at any work, with responses half again as long: raw says 1.3, the fit 2.

    The floor says nothing that the other regressors do not: the fit knows all lengths without a term for it.
    """
    wa, wb = (of | {"equal_floor_s": engine_s(of) / 5, "floor_basis": basis} for of in (work(1), work(2, scale=1.5)))
    frames = [(arm_rows("a", engine_s(wa), s, **wa), arm_rows("b", engine_s(wb) / 2, s, **wb)) for s in range(2)]
    table, verdicts = found(*(frame for pair in frames for frame in pair))
    assert table.loc["standardised", "value"] == pytest.approx(2, rel=1e-9)
    assert table.loc["raw", "value"] < 1.5
    assert table.loc["standardised", "verdict"] == "+" and table.loc["standardised", "scope"] == "across runs"
    # Steps that a line explains to the last digit leave a share of the effect of the lengths that it takes out.
    bias = share * math.log(2 / table.loc["raw", "value"])
    assert table.loc["standardised", "low"] == pytest.approx(2 * math.exp(-bias))
    assert table.loc["standardised", "high"] == pytest.approx(2 * math.exp(bias))
    assert table.loc["standardised", "minimum_detectable_ratio"] == pytest.approx(math.exp(bias))
    (warning,) = [v for v in verdicts if v.code == "raw-and-equal-work-disagree"]
    assert warning.level == "warning" and "at equal work standardised 2.00×" in warning.text


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
    assert table.loc["standardised", "value"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("varies", ["max_response_length", "response_tokens"])
def test_a_fit_of_one_quantity_compares_over_what_both_cover(varies):
    """10 + 0.01 x and 4 + 0.008 x over the x from 1020 to 1400 that both have, whose mean is 1210: 22.1 / 13.68."""
    x = {"a": np.arange(1000.0, 1401.0, 20), "b": np.arange(1020.0, 1421.0, 20)}
    rest = {"max_response_length": 900.0, "response_tokens": 90_000.0}
    a = arm_rows("a", 10 + 0.01 * x["a"], **rest | {varies: x["a"]})
    b = arm_rows("b", 4 + 0.008 * x["b"], **rest | {varies: x["b"]})
    assert found(a, b)[0].loc["standardised", "value"] == pytest.approx(22.1 / 13.68, rel=1e-9)


def test_what_both_arms_steps_share_is_no_noise_of_their_ratio():
    """The same prompts make a step long in both arms: the series that block lengths come from are of what is left."""
    columns = work(5)
    shared = np.random.default_rng(13).normal(0, 0.1, 30)
    a, b = engine_s(columns) * np.exp(shared), engine_s(columns) * np.exp(shared) / 2
    pairs = pd.DataFrame({f"{STEP}_a": a, f"{STEP}_b": b, "seed": 0, "step": range(30)})
    for name, values in (columns | {"equal_floor_s": engine_s(columns) / 3}).items():
        pairs = pairs.assign(**{f"{name}_a": values, f"{name}_b": values})
    series = paired(pairs).series
    assert set(series) == set(ESTIMATES)
    for name, (one,) in series.items():
        assert np.ptp(one) == pytest.approx(0, abs=1e-9), name


@pytest.mark.parametrize(
    "change, why",
    [
        (
            lambda w: w | {"max_response_length": np.full(30, 6000.0)},
            "the longest response is the same in every step of the arm",
        ),
        (
            lambda w: w | {"response_tokens": w["max_response_length"] * 20},
            "in the arm the longest response and the tokens",
        ),
    ],
)
def test_singular_fit(change, why):
    wa, wb = work(1), change(work(2))
    table, _ = found(arm_rows("a", engine_s(wa), **wa), arm_rows("b", engine_s(wb), **wb))
    assert table.loc["standardised", "verdict"] == "x" and "singular fit" in table.loc["standardised", "why"]
    assert why in table.loc["standardised", "why"]


def test_where_all_lengths_are_equal_nothing_is_fitted_and_no_bias_added():
    """Five runs of 1.03 that differ by 0.1% are told apart, at equal work as in the raw times."""
    draw = np.random.default_rng(4)
    told = {"response_tokens": np.full(40, 1000.0), "max_response_length": np.full(40, 64.0)}
    noise = 1e-3
    frames = [
        arm_rows(arm, s * np.exp(draw.normal(0, noise, 40) + draw.normal(0, noise)), seed=seed, **told)
        for seed in range(5)
        for arm, s in (("a", 10.3), ("b", 10.0))
    ]
    table, _ = found(*frames)
    row = table.loc["standardised"]
    assert row["verdict"] == "+" and 1.02 < row["low"] < row["high"] < 1.04
    assert row["minimum_detectable_ratio"] < 1.005


@pytest.mark.parametrize(
    "bad, why", [(math.nan, "in 1 of 4 paired steps"), (0.0, "in 1 of 4 paired steps"), (-1.0, "of the arm")]
)
def test_what_some_steps_lack_no_estimate_is_made_of(bad, why):
    told = {"response_tokens": [10.0] * 4, "equal_floor_s": [1.0] * 4}
    a = arm_rows("a", [4.0] * 4, **told)
    b = arm_rows("b", [2.0] * 4, **told | {"response_tokens": [10.0, 10.0, bad, 10.0]})
    table, _ = found(a, b)
    assert table.loc["per_token", "verdict"] == "x" and why in table.loc["per_token", "why"]
    assert math.isnan(table.loc["per_token", "value"]) and table.loc["raw", "value"] == pytest.approx(2)
    assert table.loc["roofline", "value"] == pytest.approx(2)


def test_one_pair_of_runs_resolves_nothing_and_tells_at_least_how_many_more_it_takes():
    draw = np.random.default_rng(8)
    a, b = (arm_rows(arm, 10 / speed * np.exp(draw.normal(0, 0.05, 40))) for arm, speed in (("a", 1), ("b", 1.5)))
    table, _ = found(a, b)
    row = table.loc["raw"]
    assert row["verdict"] == "~" and row["scope"] == "within-run only" and row["why"] == ONE_PAIR
    assert 1 < row["low"] < row["value"] < row["high"] and row["runs_to_resolve"] == 1
    assert math.isnan(row["minimum_detectable_ratio"]) and table.loc["standardised", "why"] != ONE_PAIR
    small = found(a, b.assign(**{STEP: b[STEP] * 1.45}))[0].loc["raw"]
    assert small["low"] < 1 < small["high"] and small["why"] == ONE_PAIR and small["runs_to_resolve"] >= 1


def test_overlapping_phases_have_throughput_only():
    told = {"response_tokens": [10.0, 20.0], "equal_floor_s": [1.0, 1.0]}
    why = Comparable(throughput_only={("", "b"): "the phases overlap"})
    table, _ = found(arm_rows("a", [4.0, 6.0], **told), arm_rows("b", [2.0, 3.0], **told), comparable=why)
    assert table["value"].notna().tolist() == [True, True, False, False]
    assert table.loc["roofline", "why"] == "the phases overlap"


@pytest.mark.parametrize(
    ("name", "nothing", "some"),
    [("training/filter_groups/evicted_samples", 0.0, 64.0), ("train/num_gen_batches", 1.0, 3.0)],
    ids=["completions", "batches"],
)
@pytest.mark.parametrize("side", ["a", "b"])
def test_what_was_thrown_away_is_in_the_seconds_alone(side, name, nothing, some):
    """Seconds that also made what was thrown away, over the tokens of what was kept, are no time per token."""
    told = work(7, 8) | {"equal_floor_s": np.full(8, 1.0)}
    thrown = {name: [np.nan] * 5 + [nothing, some, some]}
    frames = {arm: arm_rows(arm, engine_s(told), **told, **(thrown if arm == side else {})) for arm in "ab"}
    table, verdicts = found(*frames.values())
    assert table["value"].notna().tolist() == [True, False, False, False]
    (why,) = set(table["why"].iloc[1:])
    assert f"{'the baseline' if side == 'a' else 'the arm'} in 2 paired steps" in why and why.startswith("completions")
    assert [(v.level, v.code) for v in verdicts] == [("warning", "completions-discarded")]
    table, verdicts = found(*(frame.assign(**{name: nothing}) for frame in frames.values()))
    assert table["value"].notna().all() and not verdicts


def test_a_ratio_within_the_noise_of_equal_arms_is_not_resolved():
    draw = np.random.default_rng(9)

    def runs(arm, speed):
        return [arm_rows(arm, 10 / speed * np.exp(draw.normal(0, 0.01, 40)), seed=seed) for seed in range(3)]

    without, _ = found(*runs("a", 1.0), *runs("b", 1.05))
    frames = [*runs("a", 1.0), *runs("b", 1.05), *runs("again", 1.1)]
    table, verdicts = found(*frames, arms=("a", "b", "again"), again="a")
    assert without.loc["raw", "verdict"] == "+"
    ours, repeated = table[table["arm"] == "b"].loc["raw"], table[table["arm"] == "again"].loc["raw"]
    assert (
        ours["verdict"] == "~"
        and "within the noise" in ours["why"]
        and math.isnan(ours["runs_to_resolve"])
        and repeated["verdict"] == "+"
    )
    assert [v.code for v in verdicts] == ["equal-arms-differ"]
    assert ours["minimum_detectable_ratio"] >= repeated["high"] > ours["value"]


def seen_again(*frames, seeds=(0, 1)):
    """The same runs under each seed: nothing differs between the runs."""
    return [frame.assign(seed=seed) for seed in seeds for frame in frames]


def far_apart(generation=True, seeds=2):
    """b generates 1.4 times as fast, and its responses end at a quarter of the length; no floor knows what is fixed."""
    frames, draw = [], np.random.default_rng(11)
    for seed in range(seeds):
        for arm, speed, scale in (("a", 1.0, 1.0), ("b", 1.4, 0.25)):
            columns = work(20 * seed + (arm == "b"), scale=scale)
            floor_s = engine_s(columns, a=0.0) / 3
            generation_s = (30 + 3 * floor_s) / speed * np.exp(draw.normal(0, 0.01, 30))
            told = {"generation_s": generation_s} if generation else {}
            frames.append(arm_rows(arm, generation_s + 20, seed=seed, equal_floor_s=floor_s, **told, **columns))
    return frames


@pytest.mark.parametrize("generation", [True, False])
def test_lengths_that_are_far_apart_are_not_settled_by_the_floor_alone(generation):
    table, verdicts = found(*far_apart(generation))
    row, raw = table.loc["roofline"], table.loc["raw", "value"]
    assert "no common support" in table.loc["standardised", "why"] and row["value"] < 1 < 1.2 < raw
    assert (
        row["verdict"] == "~" and "not settled by the floor alone" in row["why"] and math.isnan(row["runs_to_resolve"])
    )
    assert row["low"] < 1 < 1.4 < row["high"] and row["high"] == table.loc["raw", "high"] >= raw
    (warning,) = [v for v in verdicts if v.code == "roofline-unsettled"]
    assert warning.level == "warning" and f"none: {raw:.2f}×" in warning.text


def test_a_fit_checks_the_floor_and_lengths_alike_need_no_check():
    wa, wb = work(1), work(2, scale=1.2)
    floors = {"equal_floor_s": engine_s(wa, a=0.0) / 3}, {"equal_floor_s": engine_s(wb, a=0.0) / 3}
    a, b = arm_rows("a", engine_s(wa), **wa, **floors[0]), arm_rows("b", engine_s(wb) / 2, **wb, **floors[1])
    assert found(*seen_again(a, b))[0].loc["roofline", "verdict"] == "+"
    alone = [
        rows.drop(columns=["max_response_length"]) for rows in (a, arm_rows("b", engine_s(wa) / 2, **wa, **floors[0]))
    ]
    table, _ = found(*seen_again(*alone))
    assert table.loc["standardised", "verdict"] == "x" and table.loc["roofline", "verdict"] == "+"


@pytest.mark.parametrize("speed, verdict", [(1.0, "~"), (4.0, "+"), (0.4, "-")])
def test_a_fit_without_an_interval_checks_no_floor(speed, verdict):
    """The longest response varies in one step of an arm: the fit has a value, and resamples without that step none."""
    frames = []
    for seed in range(2):
        for arm, of_arm, scale in (("a", 1.0, 1.0), ("b", speed, 0.7)):
            columns = work(20 * seed + (arm == "b"), scale=scale)
            longest = np.where((np.arange(30) == 7) & (seed == 0), 6000.0 if arm == "a" else 3000.0, 6500.0)
            columns |= {"max_response_length": longest, "equal_floor_s": columns["response_tokens"] / 1e4}
            step_s = (35 + columns["response_tokens"] / 3e3) / of_arm
            frames.append(arm_rows(arm, step_s, seed=seed, **columns))
    table, verdicts = found(*frames)
    fit, row, raw = (table.loc[name] for name in ("standardised", "roofline", "raw"))
    assert fit["value"] == pytest.approx(speed, rel=0.05) and math.isnan(fit["low"])
    assert row["value"] < 0.95 * speed and row["low"] < speed < row["high"] == raw["high"]
    assert row["verdict"] == verdict and row["why"].startswith("not settled by the floor alone")
    assert "roofline-unsettled" in [v.code for v in verdicts]


def test_the_support_of_the_fit_is_the_same_in_every_resample():
    """Three steps of 120 are alike in both arms: most resamples lack some of them, and the fit keeps its interval."""
    draw, frames = np.random.default_rng(5), []
    for seed in range(2):
        for arm, scale in (("a", 1.0), ("b", 2.2)):
            columns = work(20 * seed + (arm == "b"), scale=scale)
            if arm == "b" and seed == 0:
                columns = {name: np.where(np.arange(30) < 3, values / 2.2, values) for name, values in columns.items()}
            step_s = engine_s(columns) * np.exp(draw.normal(0, 0.01, 30))
            frames.append(arm_rows(arm, step_s, seed=seed, **columns))
    row = found(*frames)[0].loc["standardised"]
    assert row["low"] < 1 < row["high"] < 1.2 * row["low"]


def test_digits_that_were_not_printed_widen_the_intervals():
    cut = {"rounding/step": [0.0005] * 20}
    table, verdicts = found(arm_rows("a", [0.003] * 20, **cut), arm_rows("b", [0.004] * 20, **cut))
    row = table.loc["raw"]
    assert row["low"] == pytest.approx(2.5 / 4.5) and row["high"] == pytest.approx(3.5 / 3.5)
    assert row["verdict"] == "~" and "rounding" in row["why"] and math.isnan(row["runs_to_resolve"])
    assert [v.code for v in verdicts] == ["rounding-decides"] and "between 0.56× and 1.00×" in verdicts[0].text
    fine = {"rounding/step": [0.0005] * 20}
    table, verdicts = found(*seen_again(arm_rows("a", [300.0] * 20, **fine), arm_rows("b", [400.0] * 20, **fine)))
    assert table.loc["raw", "verdict"] == "-" and not verdicts
    table, _ = found(arm_rows("a", [0.0] * 20, **cut).assign(**{STEP: 1e-4}), arm_rows("b", [0.004] * 20, **cut))
    assert table.loc["raw", "verdict"] == "~" and math.isnan(table.loc["raw", "low"])
