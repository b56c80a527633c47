"""The verdict: what is claimed, on what it rests, what speaks against it; every form says what the tables say."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_estimates import arm_rows, engine_s, plan, work

from analysis.estimates.arm import disagreement
from analysis.estimates.comparable import Comparable
from analysis.estimates.estimate_table import estimate_table
from analysis.estimates.gate import gate_table
from analysis.pairs import comparison_table
from analysis.verdict.arm_verdict import ArmVerdict
from analysis.verdict.claim import claim_from
from analysis.verdict.verdict_block import verdict_html, verdict_markdown, verdict_text
from analysis.verdict.verdict_table import verdict_table
from common.findings import Finding, LedgerRow, Preflight


def ledger_row(setting, verdict):
    return LedgerRow(setting, {"a": "1", "b": "1"}, verdict, "why", "source")


EQUAL = Preflight((), (ledger_row("batch", "equal"),), ())
UNEQUAL = Preflight(tuple(Finding("unequal", code, ("a", "b"), "", "", "", "") for code in "xy"), EQUAL.ledger, ())
HERE = Finding("unequal", "z", ("b",), "b lacks its kernels", "no GPU does", "", "", "in this room", "a GPU")
UNKNOWN = Preflight((), (*EQUAL.ledger, ledger_row("all settings", "unverifiable")), ())


def said(frames, the_plan=None, preflight=None, comparable=None):
    wide, of = pd.concat(frames, ignore_index=True), the_plan or plan("a", "b")
    may = comparable or Comparable()
    comparison, _ = comparison_table(wide, of, may.refused)
    estimates, _ = estimate_table(wide, of, may, 200)
    return verdict_table(comparison, of, preflight, estimates, gate_table(wide, of))


def line(found):
    """The first line of the block."""
    return verdict_text([found], width=10_000).splitlines()[0]


def caveats(found, kind=""):
    return " ".join(c.text for c in found.caveats if c.kind == kind or not kind)


def settle(found):
    return "; ".join(found.settle)


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


@pytest.mark.parametrize(("speed", "words", "verdict"), [(2.0, "faster", "+"), (0.5, "slower", "-")])
def test_a_direction_at_equal_work(speed, words, verdict):
    (found,) = said(engines(speed), preflight=EQUAL)
    (ratio,) = found.ratios
    assert found.verdict == verdict and ratio.estimates == ("standardised",)
    shown = re.fullmatch(rf"b vs a: {words}\. At equal work ([\d.]+)× \(95% CI ([\d.]+)-([\d.]+)\)\.", line(found))
    value, low, high = map(float, shown.groups())
    assert value == pytest.approx(speed, rel=0.02) and low <= speed <= high
    assert ratio.interval[0] < speed < ratio.interval[1]
    assert found.basis == "terms equal (0 unequal of 1 setting) · 3 run pairs, 90 paired steps"
    assert not found.caveats and not found.settle


def test_what_only_other_arms_differ_in_is_no_caveat_of_a_pair():
    """a and b have one trainer, c another: b against a is a comparison of engines, whatever c has."""
    sides = (("a", "b"), ("c",))
    findings = tuple(
        Finding("unequal", code, ("a", "b", "c"), "", "", "", "", sides=sides) for code in ("trainers", "x")
    )
    values = [("1", "1", "none"), ("none", "none", "1"), ("1", "2", "3"), ("1 | 2", "1 | 2", "3"), ("unknown",) * 3]
    rows = [
        LedgerRow(f"s{at}", dict(zip("abc", some, strict=True)), "unverifiable", "", "")
        for at, some in enumerate(values)
    ]
    whole = Preflight(findings, tuple(rows))
    assert [row.setting for row in whole.between("ab").rows("unverifiable")] == ["s2", "s3", "s4"]
    assert [row.setting for row in whole.between("ab").ledger] == ["s0", "s2", "s3", "s4"]
    assert len(whole.between("ac").ledger) == len(rows) and whole.between("abc").ledger == whole.ledger
    assert not whole.unequal("ab") and len(whole.unequal("ac")) == 2 and len(whole.unequal("da")) == 2
    frames = engines(1.5)
    third = [frame.assign(arm="c") for frame in frames[1::2]]
    b, c = said([*frames, *third], plan("a", "b", "c"), whole)
    assert "Unequal" not in caveats(b) and "3 of 4 settings cannot be verified" in caveats(b)
    assert caveats(c, "terms") == "Unequal terms (trainers, x): the ratio compares whole systems."
    assert settle(c).startswith("one trainer in both arms; runs on equal terms (x)") and "trainer" not in settle(b)


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
def test_what_holds_in_one_place_only_is_said_in_the_verdict_itself(speed):
    (found,) = said(engines(speed), preflight=replace(UNEQUAL, findings=(*UNEQUAL.findings, HERE)))
    assert re.search("(slower|faster|not resolved|equal within 5%), in this room. At equal work ", line(found))
    first, second = (one.text for one in found.caveats[:2])
    assert first == "b lacks its kernels: no GPU does." and second.startswith("Unequal terms (x, y): ")
    assert settle(found).startswith("a GPU; runs on equal terms (x, y)") and "z" not in verdict_text([found])
    assert HERE.as_dict().items() > {"scope": "in this room", "settle": "a GPU"}.items()
    assert "scope" not in UNEQUAL.findings[0].as_dict()


def with_a_part_that_knows_no_equal_work(speed=2.0, elsewhere=4.0):
    """At t = 2 neither the longest response nor a floor is known: nothing at equal work."""
    poor = [f.drop(columns=["max_response_length", "equal_floor_s"]) for f in engines(elsewhere, factors='{"t": 2}')]
    return [*engines(speed, factors='{"t": 1}'), *poor]


def test_equal_work_is_claimed_only_where_it_is_known():
    (found,) = said(with_a_part_that_knows_no_equal_work())
    start = "b vs a: faster at 1, unknown at equal work at 1 of 2 factor combinations. At t = 1: at equal work "
    assert found.verdict == "~" and line(found).startswith(start)
    here, there = found.ratios
    assert (here.unit, here.estimates, here.at) == ("at equal work", ("standardised",), ("t = 1",))
    assert 1.9 < here.value[0] < 2.1 and 1.9 < here.interval[0] < here.interval[1] < 2.1
    assert (there.unit, there.at) == ("per response token", ("t = 2",)) and there.value[1] > 3.8
    assert " At t = 2: per response token " in line(found)
    assert (
        "at equal work is unknown at t = 2: the longest response of the baseline and the arm is not known"
        in caveats(found, "data")
    )
    assert "logs with the longest response of the baseline and the arm" in settle(found)


def test_what_is_refused_is_not_divided():
    frames = engines(2.0)
    may = Comparable(refused={("", "b"): "other GPUs (a: H100; b: H200)"})
    (found,) = said(frames, comparable=may)
    assert verdict_text([found]) == "b vs a: not comparable, other GPUs (a: H100; b: H200)." and found.verdict == "x"
    comparison, _ = comparison_table(pd.concat(frames), plan("a", "b"), may.refused)
    assert comparison["raw_speedup"].isna().all() and (comparison["baseline_s"] > 0).all()


def test_a_repetition_is_no_competitor():
    again = [f.assign(arm="a2") for f in engines(1.0) if f["arm"].iloc[0] == "b"]
    assert [h.arm for h in said([*engines(2.0), *again], plan("a", "b", "a2", a2="a"))] == ["b"]
    # Nor is the arm that the baseline itself repeats.
    assert [h.arm for h in said([*engines(2.0), *again], plan("a2", "a", "b", a2="a"))] == ["b"]


def test_factor_combinations_are_counted():
    frames = [*engines(2.0, factors='{"f": 1}'), *engines(0.5, factors='{"f": 2}')]
    (found,) = said([*frames, *engines(1.0, factors='{"f": 3}', noise=0.3)])
    start = "b vs a: faster at 1, slower at 1, not resolved at 1 of 3 factor combinations. At equal work 0."
    assert found.verdict == "~" and line(found).startswith(start)
    assert "Not resolved at f = 3." in caveats(found, "spread")
    (ratio,) = found.ratios
    assert ratio.interval[0] < ratio.value[0] < ratio.value[1] < ratio.interval[1]


def test_of_a_sweep_it_says_where_there_is_an_interval_and_where_nothing_is_resolved():
    few = [f.head(1) for f in engines(2.0, seeds=1, factors='{"f": 1}')]
    (found,) = said([*few, *engines(2.0, factors='{"f": 2}')])
    assert found.ratios[0].interval_at == ("f = 2",) and " at f = 2 only)." in line(found)
    assert "Not resolved at f = 2" not in caveats(found)


@pytest.mark.parametrize(
    "raw, equal, warns",
    [
        ((1.5, 1.4, 1.6), (1.0, 0.98, 1.02), True),  # intervals apart
        ((1.05, 0.95, 1.15), (1.0, 0.98, 1.02), False),
        ((1.1, 1.01, 1.2), (0.97, 0.9, 1.05), True),  # resolved on the other side
        ((1.1, 0.99, 1.2), (0.97, 0.9, 1.05), False),
        ((0.9, 0.8, 0.99), (1.03, 0.95, 1.1), True),  # resolved below, equal work above
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


def test_identical_arms_are_not_told_apart_and_more_runs_are_not_called_for():
    frames = [f for f in engines(1.0) if f["arm"].iloc[0] == "a"]
    (found,) = said([*frames, *(f.assign(arm="b") for f in frames)])
    assert found.verdict == "=" and line(found) == "b vs a: equal within 5%. At equal work 1.00× (95% CI 1.00-1.00)."
    assert not caveats(found, "spread") and "run pair" not in settle(found)


def test_equal_arms_have_no_doubt_of_their_seeds_and_one_pair_asks_for_another():
    frames = engines(1.0, seeds=4)
    of_seed = comparison_table(pd.concat(frames, ignore_index=True), plan("a", "b"))[0].iloc[0]
    assert round(of_seed.lowest_seed_speedup, 2) < 1 < round(of_seed.highest_seed_speedup, 2)
    (found,) = said(frames)
    assert found.verdict == "=" and not caveats(found, "spread")
    one = [f for f in engines(1.0, seeds=1) if f["arm"].iloc[0] == "a"]
    (found,) = said([*one, *(f.assign(arm="b") for f in one)])
    assert found.words == "not resolved, one run pair only" and "at least 1 more run pair" in settle(found)
    (found,) = said([f.head(1) for f in engines(2.0, seeds=1)])
    assert "more steps; at least 1 more run pair" in settle(found)


def test_lengths_that_no_steps_share_ask_for_runs_with_similar_ones():
    frames = [f.drop(columns="equal_floor_s") for f in engines(1.0, scale=0.3)]
    (found,) = said(frames)
    assert "no common support" in caveats(found, "data") and "similar lengths" in settle(found)


def test_a_difference_that_does_not_print_is_not_claimed():
    lengths = ["max_response_length", "response_tokens", "equal_floor_s"]
    frames = [f.drop(columns=lengths) for f in engines(1.0) if f["arm"].iloc[0] == "a"]
    steps = "timing_s/step"
    (found,) = said([*frames, *(f.assign(arm="b", **{steps: f[steps] / 1.0037}) for f in frames)])
    assert found.ratios[0].interval[0] > 1 and found.verdict == "=" and found.words == "equal within 5% per step"


def test_the_claim_is_that_of_the_least_biased_estimate_with_an_interval():
    """The longest response varies in one step alone: resamples without it have no fit, and the fit no interval."""

    def steps(least_of):
        for f in engines(2.0):
            one = (f["step"] == 7) & (f["seed"] == 0)
            yield f.assign(max_response_length=np.where(one, least_of[f["arm"].iloc[0]], 6500.0))

    # Where its means are alike, the fit does without it.
    (found,) = said([*steps({"a": 6400.0, "b": 6000.0})])
    assert found.ratios[0].estimates == ("standardised",) and found.verdict == "+" and "(95% CI " in line(found)
    (found,) = said([*steps({"a": 6000.0, "b": 3000.0})])
    assert found.ratios[0].estimates == ("roofline",) and found.verdict == "+" and "(95% CI " in line(found)


def claim(at="", until=1.05, **estimates):
    """A claim of estimates: a value, or (value, low, high, why); a value alone is resolved."""
    rows = {}
    for name in ("raw", "per_token", "roofline", "standardised"):
        given = estimates.get(name, math.nan)
        value, low, high, why = given if isinstance(given, tuple) else (given, given * 0.99, given * 1.01, "")
        verdict = "x" if math.isnan(value) else "+" if low > 1 else "-" if high < 1 else "~"
        shown = {"estimate": name, "value": value, "low": low, "high": high, "verdict": verdict, "why": why}
        rows[name] = {**shown, "run_pairs": 3, "paired_steps": 90, "minimum_detectable_ratio": math.nan}
        rows[name] |= {"runs_to_resolve": math.nan, "scope": "across runs"}
    return claim_from(at, rows, until=until)


@pytest.mark.parametrize(
    ("imported", "most", "says"),
    [
        ("ab", 8, "more logs of each arm"),
        ("b", 8, "more logs of b"),
        ("", 8, "more run pairs"),
        ("ab", 0, "more run pairs"),
    ],
)
def test_an_open_verdict_on_logs_says_how_many_more_would_resolve_it(imported, most, says):
    """With `seeds: {until, most}`: only runs can be added."""
    arms = {arm: {"import": {"runs": []}} if arm in imported else {} for arm in "ab"}
    (found,) = said(engines(1.04, noise=0.2), replace(plan("a", "b"), arms=arms, most=most), EQUAL)
    assert found.verdict == "~" and re.fullmatch(rf"about \d+ {says}", settle(found))
    assert ("of at most 8" in found.basis) == (not imported and most > 0)


@pytest.mark.parametrize(
    "values, claimed, verdict",
    [
        # Under a drift raw lies to one side of the truth and roofline to the other: neither alone contradicts.
        ({"standardised": 1.1, "roofline": 1.15, "raw": 0.9, "per_token": 0.95}, "standardised", "+"),
        ({"standardised": 1.1, "roofline": 0.98, "raw": 1.4, "per_token": 0.95}, "standardised", "+"),
        # Both together are no drift's bias.
        ({"standardised": 1.1, "roofline": 0.95, "raw": 0.9, "per_token": 1.1}, "standardised", "~"),
        # A ratio that prints as 1.00 points nowhere, and one that is not known neither.
        ({"standardised": 1.1, "roofline": 1.001, "raw": 0.9}, "standardised", "+"),
        ({"standardised": 1.1, "raw": 0.9}, "standardised", "+"),
        ({"standardised": 1.001, "roofline": 0.9, "raw": 0.9}, "standardised", "="),
        ({"roofline": 1.1, "raw": 0.9}, "roofline", "+"),
        # Without equal work the two that are left must agree.
        ({"per_token": 1.1, "raw": 1.2}, "per_token", "+"),
        ({"per_token": 1.1, "raw": 0.9}, "per_token", "~"),
        ({"raw": 0.9}, "raw", "-"),
        ({}, "", "x"),
    ],
)
def test_which_estimates_contradict_a_direction(values, claimed, verdict):
    case = claim(**values)
    assert (case.estimate, case.verdict) == (claimed, verdict)
    assert ("to the other arm" in case.why) == (verdict == "~" and abs(values[claimed] - 1) > 0.005)


def test_a_ratio_with_an_interval_wider_than_a_factor_of_3_is_printed_nowhere(tmp_path):
    """As the first verdict on a busy machine was: 0.16x (95% CI 0.00-70,374)."""
    rng = np.random.default_rng(3)
    frames = [f.assign(**{"timing_s/step": f["timing_s/step"] * rng.lognormal(0, 2, len(f))}) for f in engines(2.0)]
    (found,) = said(frames)
    assert line(found) == "b vs a: not resolved." and found.ratios[0].too_wide
    assert "its 95% interval is wider than a factor of 3 either way (too few runs or steps)" in caveats(found)
    assert "runs on a machine without other work" in settle(found), "a few outlying steps decide"
    told = [verdict_text([found]), verdict_markdown([found]), str(verdict_html(found, []))]
    assert not any(re.search(r"\d×|CI", text) for text in told), told
    low, high = found.as_json()["ratios"][0]["interval"]
    assert 0 < low < high, "the file keeps its numbers"


def test_a_combination_that_one_arm_lacks_is_said():
    base = [f for f in engines(1.0, factors='{"lr": 2}') if f["arm"].iloc[0] == "a"]
    (found,) = said([*engines(2.0, factors='{"lr": 1}'), *base])
    start = "b vs a: faster at 1, not comparable at 1 of 2 factor combinations. "
    assert found.verdict == "~" and line(found).startswith(start)
    assert "Not compared at lr = 2: b has no run at lr = 2." in caveats(found, "data")
    wide = pd.concat([*engines(2.0, factors='{"lr": 1}'), *base], ignore_index=True)
    table, _ = estimate_table(wide, plan("a", "b"), resamples=100)
    lacking = table[table["factors"] == '{"lr": 2}']
    assert set(lacking["verdict"]) == {"x"} and set(lacking["why"]) == {"b has no run at lr = 2"}


def test_the_warm_up_that_was_really_left_out():
    of = replace(plan("a", "b"), warmup_steps=1)
    frames = engines(2.0)
    begun = [f.assign(counted=f["step"] > 1) for f in frames]
    assert said(begun, of)[0].basis == "3 run pairs, 87 paired steps after 1 warm-up step"
    (found,) = said([f.assign(step=f["step"] + 100) for f in frames], of)
    assert "90 paired steps (a run begins later: 0 of 1 warm-up steps left out)" in found.basis


@pytest.mark.parametrize(
    ("ends", "until", "verdict"),
    [
        ((0.96, 1.04), 1.05, "="),
        ((0.96, 1.04), 1.03, "~"),
        ((0.9, 1.1), 1.05, "~"),
        ((1.01, 1.04), 1.05, "+"),
        ((np.nan, np.nan), 1.05, "~"),
    ],
)
def test_arms_are_equal_where_the_interval_is_within_the_ratio_that_matters(ends, until, verdict):
    assert claim(until=until, raw=(1.02, *ends, "")).verdict == verdict


def test_every_form_says_the_same():
    frames = [f.assign(reward=0.3 if f["arm"].iloc[0] == "b" else 0.5) for f in engines(1.5, scale=1.6)]
    (found,) = said(frames, preflight=UNEQUAL)
    assert ArmVerdict.from_json(json.loads(json.dumps(found.as_json(), allow_nan=False))) == found

    def plain(text):
        return " ".join(re.sub(r"[*\\]|^- |<li[^>]*>|</li>|</?[a-z][^>]*>|\x1b\[\d+m", "", text, flags=re.M).split())

    text = verdict_text([found])
    assert all(len(one) <= 80 for one in text.splitlines())
    assert plain(text).replace("· ", "") == plain(verdict_markdown([found])).replace("· ", "")
    coloured = verdict_text([found], colour=True)
    assert plain(text) == plain(coloured) and coloured.startswith("\x1b[1m")
    page = verdict_html(found, ["ledger", "gate"])
    assert plain(page) == plain(text)
    assert '<a href="#ledger">Unequal' in page and '<a href="#gate">The' in page and 'href="#answer"' not in page
