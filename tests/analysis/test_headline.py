"""The sentence at the top: what is claimed, on what it rests, and what speaks against it."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_estimates import arm_rows, engine_s, far_apart, plan, work

from analysis.estimates.comparable import Comparable
from analysis.estimates.disagreement import disagreement
from analysis.estimates.gate import gate_table
from analysis.estimates.speedup_table import estimate_table
from analysis.headline import headlines
from analysis.headline.case import claim_from
from analysis.headline.ratios import ratio_text
from analysis.speedup import comparison_table
from common.findings import Finding, LedgerRow, Preflight


def ledger_row(setting, verdict):
    return LedgerRow(setting, {"a": "1", "b": "1"}, verdict, "why", "source")


EQUAL = Preflight((), (ledger_row("batch", "equal"),), ())
UNEQUAL = Preflight(tuple(Finding("unequal", code, ("a", "b"), "", "", "", "") for code in "xy"), EQUAL.ledger, ())
UNKNOWN = Preflight((), (*EQUAL.ledger, ledger_row("all settings", "unverifiable")), ())


def said(frames, the_plan=None, preflight=None, comparable=None):
    wide, of = pd.concat(frames, ignore_index=True), the_plan or plan("a", "b")
    may = comparable or Comparable()
    comparison, _ = comparison_table(wide, of, may.refused)
    estimates, _ = estimate_table(wide, of, may, 300)
    return headlines(comparison, of, preflight, estimates, gate_table(wide, of))


def engines(speed=1.0, seeds=3, scale=1.0, factors="", noise=0.01, **more):
    draw = np.random.default_rng(1)
    frames = []
    for seed in range(seeds):
        for arm, of_arm, size in (("a", 1.0, 1.0), ("b", speed, scale)):
            columns = work(10 * seed + (arm == "b"), steps=30, scale=size)
            columns |= {"equal_floor_s": engine_s(columns) / 5}
            step_s = engine_s(columns) / of_arm * np.exp(draw.normal(0, noise, 30))
            frames.append(arm_rows(arm, step_s, seed=seed, factors=factors, **columns))
    return frames


def test_faster_at_equal_work():
    (found,) = said(engines(2.0), preflight=EQUAL)
    assert found.verdict == "+" and found.claimed == ("standardised",)
    assert found.sentence.startswith("At equal work b is 2.0") or found.sentence.startswith("At equal work b is 1.99×")
    assert "(by standardised, 95%: " in found.sentence and "; per step b is " in found.sentence
    assert found.interval[0] < 2 < found.interval[1] and found.everything[0] <= found.values[0]
    assert (
        "Over all four estimates: " in found.sentence and "The fairness ledger found nothing unequal." in found.sentence
    )
    assert "From 3 pairs of runs and 90 paired steps" in found.sentence and "Within one" not in found.sentence


def test_a_ledger_that_knows_little_vouches_for_little():
    (found,) = said(engines(2.0), preflight=UNKNOWN)
    assert "nothing unequal, but 1 of its 2 settings cannot be verified: all settings." in found.sentence
    (found,) = said(engines(2.0), preflight=Preflight((), (), ()))
    assert "no setting could be compared" in found.sentence


def test_slower_at_equal_work():
    (found,) = said(engines(0.5))
    assert found.verdict == "-" and "t equal work the baseline a is 2.0" in found.sentence
    low, high = (float(x.rstrip("×)")) for x in found.sentence.split("95%: ")[1].split("×)")[0].split(" to "))
    assert 1.8 < low < high < 2.2 and "no fairness ledger" in found.sentence


def test_not_resolved_says_what_would():
    (found,) = said(engines(1.0, noise=0.05))
    assert found.verdict == "~" and found.sentence.startswith("Not resolved which is faster: at equal work")
    assert "These runs would have shown a ratio of 1." in found.sentence


def test_on_unequal_terms_and_with_other_lengths_and_a_failed_gate():
    frames = [f.assign(reward=0.3 if f["arm"].iloc[0] == "b" else 0.5) for f in engines(1.5, scale=1.6)]
    (found,) = said(frames, preflight=UNEQUAL)
    assert found.unequal == 2 and "not on equal terms" in found.sentence and "see 2 findings" in found.sentence
    assert "Step time and equal work disagree" in found.sentence
    assert "The correctness gate fails: b is worse in reward." in found.sentence


def test_one_pair_of_runs_and_one_step():
    (found,) = said(engines(2.0, seeds=1))
    assert found.verdict == "~" and 1.9 < found.values[0] < 2.1 and np.isnan(found.interval).all()
    assert found.sentence.startswith("One pair of runs, so no direction is claimed: at equal work b is 2.0")
    assert "(by standardised, no interval)" in found.sentence and "95%" not in found.sentence
    assert "At least 1 more pair of runs is needed to resolve it." in found.sentence
    assert "would have shown" not in found.sentence
    (found,) = said([f.head(1) for f in engines(2.0, seeds=1)])
    assert found.verdict == "~" and found.sentence.startswith("One step of one run each: at equal work b is ")
    assert "(by roofline)" in found.sentence and "; no interval can be given. " in found.sentence
    assert "One step says nothing of other steps." in found.sentence and np.isnan(found.interval[0])


def with_a_part_that_knows_no_equal_work(speed=2.0, elsewhere=4.0):
    """At t = 2 neither the longest response nor a floor is known: nothing at equal work."""
    poor = [f.drop(columns=["max_response_length", "equal_floor_s"]) for f in engines(elsewhere, factors='{"t": 2}')]
    return [*engines(speed, factors='{"t": 1}'), *poor]


def test_equal_work_is_claimed_only_where_it_is_known():
    (found,) = said(with_a_part_that_knows_no_equal_work())
    start = "Of 2 factor combinations b is faster in 1, not known at equal work in 1. At t = 1: at equal work b is "
    assert found.verdict == "~" and found.sentence.startswith(start)
    assert found.claimed == ("standardised",)
    assert 1.9 < found.values[0] < 2.1 and 1.9 < found.interval[0] < found.interval[1] < 2.1
    assert found.everything[1] > 3.8
    here, there = found.sentence.split(" At t = 2: ")
    assert "4.0" not in here and "3.9" not in here and "standardised" in here
    claim = there.split(". ")[0]
    assert claim.startswith("per response token b is ") and "at equal work it is not known" in claim
    assert "(95%: " in claim and "; per step b is " in claim and "roofline" not in claim


def test_where_equal_work_is_not_known_what_is_known_may_point_the_other_way():
    (found,) = said(with_a_part_that_knows_no_equal_work(elsewhere=0.5))
    assert " At t = 2: per response token the baseline a is " in found.sentence
    assert 1.9 < found.values[0] < 2.1 and "faster in 1, not known at equal work in 1." in found.sentence


def test_of_what_is_not_known_at_equal_work_the_unresolved_is_said():
    (found,) = said(with_a_part_that_knows_no_equal_work(elsewhere=1.0))
    assert "Not resolved per response token at t = 2." in found.sentence


def test_per_token_is_claimed_only_where_tokens_are_known():
    lengths = ["max_response_length", "equal_floor_s"]
    some = [f.drop(columns=lengths) for f in engines(2.0, factors='{"t": 1}')]
    none = [f.drop(columns=[*lengths, "response_tokens"]) for f in engines(2.0, factors='{"t": 2}')]
    (found,) = said([*some, *none])
    start = "Of 2 factor combinations b is faster in 1, not known per response token in 1. At t = 1: per response token"
    assert found.claimed == ("per_token",) and found.sentence.startswith(start)
    assert " At t = 2: per step b is " in found.sentence
    assert "at equal work and per response token it is not known" in found.sentence


def test_what_is_refused_is_not_divided():
    frames = engines(2.0)
    may = Comparable(refused={("", "b"): "other GPUs (a: H100; b: H200)"})
    (found,) = said(frames, comparable=may)
    assert found.verdict == "x" and "×" not in found.sentence
    assert found.sentence == "Not comparable, so that there is no ratio of b and a: other GPUs (a: H100; b: H200)."
    comparison, _ = comparison_table(pd.concat(frames), plan("a", "b"), may.refused)
    assert comparison["raw_speedup"].isna().all() and (comparison["baseline_s"] > 0).all()


def test_a_repetition_is_no_competitor():
    again = [f.assign(arm="a2") for f in engines(1.0) if f["arm"].iloc[0] == "b"]
    assert [h.arm for h in said([*engines(2.0), *again], plan("a", "b", "a2", a2="a"))] == ["b"]
    # Nor is the arm that the baseline itself repeats.
    assert [h.arm for h in said([*engines(2.0), *again], plan("a2", "a", "b", a2="a"))] == ["b"]


def test_factor_combinations_are_counted():
    frames = [*engines(2.0, factors='{"f": 1}'), *engines(0.5, factors='{"f": 2}'), *engines(1.0, factors='{"f": 3}')]
    (found,) = said(frames)
    start = "Of 3 factor combinations b is faster in 1, slower in 1, not resolved in 1: at equal work b is 0."
    assert found.verdict == "~" and found.sentence.startswith(start)
    assert "over 3 factor combinations" in found.sentence and "Not resolved at f = 3." in found.sentence


def test_of_a_sweep_it_says_where_there_is_an_interval_and_where_nothing_is_resolved():
    few = [f.head(1) for f in engines(2.0, seeds=1, factors='{"f": 1}')]
    (found,) = said([*few, *engines(2.0, factors='{"f": 2}')])
    assert "95% known at f = 2 only: " in found.sentence and "no interval," not in found.sentence
    assert "Not resolved at f = 1 (" in found.sentence and "Not resolved at f = 2" not in found.sentence


def test_the_combination_at_which_step_time_misleads_is_named():
    alike, apart = engines(1.0, factors='{"f": 1}'), engines(1.0, scale=3.0, factors='{"f": 2}')
    (found,) = said([*alike, *apart])
    assert "Step time and equal work disagree at f = 2: " in found.sentence


@pytest.mark.parametrize(
    "raw, equal, warns",
    [
        ((1.5, 1.4, 1.6), (1.0, 0.98, 1.02), True),  # intervals apart
        ((1.05, 0.95, 1.15), (1.0, 0.98, 1.02), False),
        ((1.1, 1.01, 1.2), (0.97, 0.9, 1.05), True),  # resolved on the other side
        ((1.1, 0.99, 1.2), (0.97, 0.9, 1.05), False),
        ((0.9, 0.8, 0.99), (1.03, 0.95, 1.1), True),  # resolved below, equal work above
        ((0.9, 0.8, 1.01), (1.03, 0.95, 1.1), False),
        ((1.3, 0.9, 1.8), (1.0, 0.9, 1.1), True),  # far, however wide
        ((2.15, None, None), (0.9, None, None), True),
        ((1.10, None, None), (1.05, None, None), False),
    ],
)
def test_when_raw_and_equal_work_disagree(raw, equal, warns):
    def row(name, ends):
        value, low, high = (float("nan") if x is None else x for x in ends)
        side = "+" if low > 1 else "-" if high < 1 else "~"
        return {"estimate": name, "value": value, "low": low, "high": high, "verdict": side}

    missing = row("standardised", (None, None, None))
    rows = {"raw": row("raw", raw), "roofline": row("roofline", equal), "standardised": missing}
    assert bool(disagreement(rows)) is warns


def test_a_reward_without_numbers_is_said():
    frames = [
        f.assign(reward=np.where((f["step"] > 5) & (f["arm"] == "b"), np.nan, 0.5 + 0.01 * (f["step"] % 3)))
        for f in engines(2.0)
    ]
    (found,) = said(frames)
    assert "The correctness gate cannot judge reward: some steps of one arm have no number." in found.sentence


def test_identical_arms_are_not_told_apart_and_more_runs_are_not_called_for():
    frames = [f for f in engines(1.0) if f["arm"].iloc[0] == "a"]
    (found,) = said([*frames, *(f.assign(arm="b") for f in frames)])
    assert found.verdict == "~" and found.sentence.startswith("No difference to be seen: at equal work b and a take")
    # The fit's bias is all that is open.
    assert "95%: 0.98× to 1.02×" in found.sentence and "would have shown a ratio of 1.02×, not less" in found.sentence
    assert "could resolve" not in found.sentence


def test_a_difference_that_does_not_print_is_not_claimed():
    lengths = ["max_response_length", "response_tokens", "equal_floor_s"]
    frames = [f.drop(columns=lengths) for f in engines(1.0) if f["arm"].iloc[0] == "a"]
    steps = "timing_s/step"
    (found,) = said([*frames, *(f.assign(arm="b", **{steps: f[steps] / 1.0037}) for f in frames)])
    assert found.interval[0] > 1 and found.verdict == "~" and found.sentence.startswith("No difference to be seen: ")


def test_the_claim_is_that_of_the_least_biased_estimate_with_an_interval():
    """The longest response varies in one step alone: resamples without it have no fit, and the fit no interval."""
    steps = [
        f.assign(max_response_length=np.where((f["step"] == 7) & (f["seed"] == 0), 6000.0, 6500.0))
        for f in engines(2.0)
    ]
    (found,) = said(steps)
    assert found.claimed == ("roofline",) and found.verdict == "+" and "(by roofline, 95%: " in found.sentence


def of_rows(**values):
    """A case from the estimates' values, each resolved."""
    rows = {
        name: {
            "estimate": name,
            "value": value,
            "low": value * 0.99,
            "high": value * 1.01,
            "verdict": "x" if np.isnan(value) else "+" if value > 1 else "-",
            "why": "",
            "run_pairs": 3,
            "paired_steps": 90,
        }
        for name in ("raw", "per_token", "roofline", "standardised")
        for value in [values.get(name, float("nan"))]
    }
    return claim_from("", rows)


@pytest.mark.parametrize(
    "values, claimed, verdict",
    [
        # Under a drift raw lies to one side of the truth and roofline to the other: neither alone contradicts.
        ({"standardised": 1.1, "roofline": 1.15, "raw": 0.9, "per_token": 0.95}, "standardised", "+"),
        ({"standardised": 1.1, "roofline": 0.98, "raw": 1.4, "per_token": 0.95}, "standardised", "+"),
        ({"standardised": 0.9, "roofline": 0.85, "raw": 1.2, "per_token": 1.1}, "standardised", "-"),
        # Both together are no drift's bias.
        ({"standardised": 1.1, "roofline": 0.95, "raw": 0.9, "per_token": 1.1}, "standardised", "~"),
        ({"standardised": 0.9, "roofline": 1.05, "raw": 1.1, "per_token": 0.9}, "standardised", "~"),
        # A ratio that prints as 1.00 points nowhere, and one that is not known neither.
        ({"standardised": 1.1, "roofline": 1.001, "raw": 0.9}, "standardised", "+"),
        ({"standardised": 1.1, "raw": 0.9}, "standardised", "+"),
        ({"standardised": 1.001, "roofline": 0.9, "raw": 0.9}, "standardised", "~"),
        ({"roofline": 1.1, "raw": 0.9}, "roofline", "+"),
        # Without equal work the two that are left must agree.
        ({"per_token": 1.1, "raw": 1.2}, "per_token", "+"),
        ({"per_token": 1.1, "raw": 0.9}, "per_token", "~"),
        ({"per_token": 0.9, "raw": 1.1}, "per_token", "~"),
        ({"raw": 0.9}, "raw", "-"),
        ({}, "", "x"),
    ],
)
def test_which_estimates_contradict_a_direction(values, claimed, verdict):
    case = of_rows(**values)
    assert (case.claimed, case.verdict) == (claimed, verdict)
    assert ("point to the other arm" in case.why) == (verdict == "~" and abs(values[claimed] - 1) > 0.005)


def test_one_paragraph_has_one_direction():
    (found,) = said(engines(0.5))
    over = found.sentence.split("Over all four estimates: ")[1].split("×.")[0]
    assert all(1.8 < float(ratio.rstrip("×")) < 2.3 for ratio in over.split(" to "))
    assert found.everything[1] < 1
    slow = [
        f.assign(**{"timing_s/step": np.where((f["step"] == 4) & (f["arm"] == "b"), 1e5, f["timing_s/step"])})
        for f in engines(0.8)
    ]
    (found,) = said(slow)
    assert "The median steps say 1." in found.sentence


def test_a_combination_that_one_arm_lacks_is_said():
    base = [f for f in engines(1.0, factors='{"lr": 2}') if f["arm"].iloc[0] == "a"]
    (found,) = said([*engines(2.0, factors='{"lr": 1}'), *base])
    assert found.verdict == "~" and found.sentence.startswith(
        "Of 2 factor combinations b is faster in 1, not compared in 1: "
    )
    assert "could resolve" not in found.sentence and "would have shown" not in found.sentence
    wide = pd.concat([*engines(2.0, factors='{"lr": 1}'), *base], ignore_index=True)
    table, _ = estimate_table(wide, plan("a", "b"), None, 100)
    lacking = table[table["factors"] == '{"lr": 2}']
    assert set(lacking["verdict"]) == {"x"} and set(lacking["why"]) == {"b has no run at lr = 2"}


def test_without_an_interval_step_time_may_mislead():
    (found,) = said([f.head(1) for f in engines(1.0, scale=3.0, seeds=1)])
    assert "step time alone may mislead" in found.sentence and "alone misleads" not in found.sentence


def test_what_the_floor_alone_cannot_settle_is_not_claimed():
    (found,) = said(far_apart())
    assert found.verdict == "~" and found.sentence.startswith("Not resolved which is faster: at equal work ")
    assert (
        found.interval[1] > 1.4 and "Roofline: not settled by the floor alone: the arms' work differs" in found.sentence
    )


def test_more_runs_are_not_called_for_where_outliers_decide():
    frames = engines(1.04, noise=0.1)
    (calm,) = said(frames)
    hang = [
        f.assign(
            **{
                "timing_s/step": np.where(
                    (f["step"] == 4) & (f["seed"] == 0) & (f["arm"] == "b"), 50 * f["timing_s/step"], f["timing_s/step"]
                )
            }
        )
        for f in frames
    ]
    (found,) = said(hang)
    assert "could resolve it" in calm.sentence and "could resolve it" not in found.sentence
    assert "outlying steps decide" in found.sentence


def test_the_warm_up_that_was_really_left_out():
    of = replace(plan("a", "b"), warmup_steps=1)
    frames = engines(2.0)
    begun = [f.assign(counted=f["step"] > 1) for f in frames]
    assert "87 paired steps, after 1 warm-up step in each run." in said(begun, of)[0].sentence
    (found,) = said([f.assign(step=f["step"] + 100) for f in frames], of)
    assert "90 paired steps; of some runs no step was left out as warm-up, since they begin later." in found.sentence


def two_arms(a, b, **more):
    return [arm_rows(arm, step_s, **more) for arm, step_s in (("a", a), ("b", b))]


def test_what_would_have_been_shown_is_told_where_chance_alone_leaves_it_open():
    draw = np.random.default_rng(9)

    def runs(arm, speed):
        return [arm_rows(arm, 10 / speed * np.exp(draw.normal(0, 0.01, 40)), seed=seed) for seed in range(3)]

    frames = [*runs("a", 1.0), *runs("b", 1.05), *runs("again", 1.1)]
    (found,) = said(frames, plan("a", "b", "again", again="a"))
    assert "within the noise" in found.sentence and "would have shown" not in found.sentence
    # Printed to whole seconds: 12 against 11, and what is not printed could be the difference.
    a, b = ([12.0, 12.0, 12.0, 13.0] * 5, [11.0, 11.0, 11.0, 11.0, 12.0] * 4)
    (found,) = said([f for seed in range(2) for f in two_arms(a, b, seed=seed, **{"rounding/step": [0.5] * 20})])
    assert "rounding alone" in found.sentence
    least = float(found.sentence.split("would have shown a ratio of ")[1].split("×")[0])
    assert least > found.values[1] > 1.05


def test_a_roofline_that_stands_alone_against_the_others_does_not_veto():
    frames = engines(1.5)
    frames = [f.assign(equal_floor_s=f["equal_floor_s"] / (2 if f["arm"].iloc[0] == "b" else 1)) for f in frames]
    (found,) = said(frames)
    assert found.verdict == "+" and found.claimed == ("standardised",) and 1.4 < found.values[0] < 1.6
    assert found.everything[0] < 0.8


def test_what_contradicts_a_claim_is_not_open_for_want_of_runs():
    """Longer responses that no floor knows of: step time and roofline say 0.8, and the fit 1.2."""
    (found,) = said([f.assign(equal_floor_s=1.0) for f in engines(1.2, scale=1.6)])
    assert found.verdict == "~" and found.claimed == ("standardised",) and found.values[0] > 1.1
    assert "Standardised: raw and roofline point to the other arm." in found.sentence
    assert "would have shown" not in found.sentence and "could resolve" not in found.sentence


def test_no_more_runs_are_called_for_where_the_ratio_is_one():
    draw = np.random.default_rng(3)
    a, b = (10 * np.exp(draw.normal(0, 0.02, 40)) for _ in "ab")
    (found,) = said(
        [
            arm_rows(arm, x / x.mean() * y, seed=seed)
            for seed in (0, 1, 2)
            for arm, x, y in (("a", a, 1.003), ("b", b, 1.0))
        ]
    )
    assert "take the same time (1.00×)" in found.sentence and "could resolve" not in found.sentence


def test_medians_are_told_of_the_combinations_that_they_are_of():
    frames = []
    for t in (1, 2, 3):
        a, b = [3.0] * 5, [1.5] * 4 + [4.5 if t == 1 else 1.5]
        frames += two_arms(a, b, factors=f'{{"t": {t}}}')
    may = Comparable(refused={('{"t": 2}', "b"): "other GPUs"})
    (found,) = said(frames, comparable=may)
    assert "The median steps say 2.00× at t = 1: a few outlying steps decide how much" in found.sentence
    assert "nan" not in found.sentence


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.154, "2.15×"), (9.994, "9.99×"), (10.04, "10.0×"), (99.94, "99.9×"), (100.4, "100×"), (1e4, "10,000×")],
)
def test_a_ratio_has_three_digits(value, text):
    assert ratio_text(value) == text


@pytest.mark.parametrize(("tokens", "opposite"), [(90.0, False), (40.0, True)])
def test_step_time_and_tokens_that_disagree_are_told_only_where_they_do(tokens, opposite):
    """Steps of 10 and 8 s: with 100 and 90 tokens b is faster either way, with 100 and 40 it is slower per token."""
    frames = [
        arm_rows(arm, step_s * np.linspace(1, 1.02, 20), seed=seed, response_tokens=np.full(20, told))
        for arm, step_s, told in (("a", 10.0, 100.0), ("b", 8.0, tokens))
        for seed in range(2)
    ]
    (found,) = said(frames)
    assert ("The two disagree on which is faster" in found.sentence) == opposite


@pytest.mark.parametrize(("ends", "unmoved"), [((0.99, 1.01), True), ((0.9, 1.1), False), ((np.nan, np.nan), False)])
def test_no_difference_is_seen_only_within_an_interval(ends, unmoved):
    rows = of_rows(raw=1.0).rows
    rows["raw"] |= {"low": ends[0], "high": ends[1], "verdict": "~"}
    assert claim_from("", rows).unmoved is unmoved
