"""The verdict: what is claimed, on what it rests, what speaks against it; every form says what the tables say."""

import html
import json
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_estimates import arm_rows, engine_s, plan, work

from analysis import terms
from analysis.compared import compared
from analysis.comparison_tables import comparison_table
from analysis.counted import AFTER_RESUME, WARMUP
from analysis.estimates.comparable import Comparable
from analysis.estimates.estimate_table import estimate_table
from analysis.estimates.gate import gate_table
from analysis.verdict.arm_verdict import ArmVerdict
from analysis.verdict.verdict_block import MOST_CAVEATS, verdict_markdown, verdict_text
from analysis.verdict.verdict_table import VerdictEvidence, arm_verdicts
from common.findings import COMPARED, Finding, LedgerRow, Preflight
from common.verdicts import Verdict
from trainers.registry import tree_named

STEP = "timing_s/step"


def ledger_row(setting, verdict):
    return LedgerRow(setting, {"a": "1", "b": "1"}, verdict, "why", "source")


EQUAL = Preflight((), (ledger_row("batch", "equal"),), ())
UNEQUAL = Preflight(tuple(Finding("unequal", code, ("a", "b"), "", "", "", "") for code in "xy"), EQUAL.ledger, ())
HERE = Finding("unequal", "z", ("b",), "b lacks its kernels", "no GPU does", "", "", "in this room", "a GPU")
UNKNOWN = Preflight((), (*EQUAL.ledger, ledger_row("all settings", "unverifiable")), ())


def said(frames, the_plan=None, preflight=None, comparable=None, read=(), trees=None):
    wide, of = pd.concat(frames, ignore_index=True), the_plan or plan("a", "b")
    may = comparable or Comparable()
    every = compared(wide, of)
    comparison, matched = comparison_table(wide, every, may.refused)
    estimates, _ = estimate_table(wide, of, every, may)
    found = [*read, *matched]
    gate = gate_table(wide, every)
    return arm_verdicts(
        VerdictEvidence(of, wide, every, comparison, estimates, gate, preflight, (), found, trees or {})
    )


def line(found):
    """The first line of the block."""
    return verdict_text([found], width=10_000).splitlines()[0]


def caveats(found, kind=""):
    return " ".join(c.text for c in found.caveats if c.kind == kind or not kind)


def settle(found):
    return "; ".join(found.settle)


def engines(speed=1.0, seeds=3, scale=1.0, factors="", apart=0.0):
    """Runs whose steps differ by 1%, and that differ by `apart` themselves."""
    draw = np.random.default_rng(1)
    frames = []
    for seed in range(seeds):
        for arm, of_arm, size in (("a", 1.0, 1.0), ("b", speed, scale)):
            columns = work(10 * seed + (arm == "b"), steps=30, scale=size)
            columns |= {"equal_floor_s": engine_s(columns) / 5}
            step_s = engine_s(columns) / of_arm * np.exp(draw.normal(0, 0.01, 30) + draw.normal(0, apart))
            frames.append(arm_rows(arm, step_s, seed=seed, factors=factors, **columns))
    return frames


@pytest.mark.parametrize(
    ("speed", "words", "verdict"),
    [(2.0, r"b: ([\d.]+)x faster than a: ", "+"), (0.5, r"b: slower than a, ([\d.]+)x as fast: ", "-")],
)
def test_a_direction_at_equal_work_with_its_seconds(speed, words, verdict):
    (found,) = said(engines(speed), preflight=EQUAL)
    (ratio,) = found.ratios
    assert (found.verdict, ratio.unit) == (verdict, "at equal work")
    numbers = r"([\d.]+) s against ([\d.]+) s a step at equal work \(95% CI ([\d.]+) to ([\d.]+)\)\."
    value, arm_s, baseline_s, low, high = map(float, re.fullmatch(words + numbers, line(found)).groups())
    assert value == pytest.approx(speed, rel=0.02) and low <= speed <= high
    assert baseline_s / arm_s == pytest.approx(speed, rel=0.02) and math.log(
        ratio.seconds[0] / ratio.seconds[1]
    ) == pytest.approx(math.log(ratio.value[0]))
    assert ratio.interval[0] < speed < ratio.interval[1]
    assert found.basis == "terms equal (0 unequal of 1 setting) · 3 runs against 3, 30 steps each"
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
    assert caveats(c, "terms").startswith("Unequal terms (trainers, x): whole systems are compared.")
    assert settle(c).startswith("one trainer in both arms; runs on equal terms") and "trainer" not in settle(b)


@pytest.mark.parametrize(
    "code", sorted({rule.code for rule in terms.UNEQUAL.values()} | {"settings", "engine-options"})
)
def test_a_remedy_names_no_code_of_a_finding(code):
    unequal = replace(UNEQUAL, findings=tuple(replace(UNEQUAL.findings[0], code=one) for one in ("trainers", code)))
    (found,) = said(engines(2.0), preflight=unequal)
    assert found.settle == ("one trainer in both arms; runs on equal terms",)


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
def test_what_holds_in_one_place_only_is_said_in_the_verdict_itself(speed):
    (found,) = said(engines(speed), preflight=replace(UNEQUAL, findings=(*UNEQUAL.findings, HERE)))
    assert re.search("(as fast|faster than a|not resolved|equal within 5%), in this room: ", line(found))
    first, second = (one.text for one in found.caveats[:2])
    assert first == "b lacks its kernels: no GPU does." and second.startswith("Unequal terms (x, y): ")
    assert settle(found).startswith("a GPU; runs on equal terms") and "z" not in verdict_text([found])
    assert HERE.as_dict().items() > {"scope": "in this room", "settle": "a GPU"}.items()
    assert "scope" not in UNEQUAL.findings[0].as_dict()


def with_a_part_that_knows_no_equal_work():
    """At t = 2 the longest response is not known: nothing at equal work."""
    poor = [f.drop(columns=["max_response_length"]) for f in engines(4.0, factors='{"t": 2}')]
    return [*engines(2.0, factors='{"t": 1}'), *poor]


def test_equal_work_is_claimed_only_where_it_is_known():
    (found,) = said(with_a_part_that_knows_no_equal_work())
    start = "b vs a: faster at 1, faster per step at 1 of 2 factor combinations: 2.0"
    assert found.verdict == "~" and line(found).startswith(start) and "x at equal work at t = 1 (95% CI" in line(found)
    here, there = found.ratios
    assert (here.unit, here.at) == ("at equal work", ("t = 1",))
    assert 1.9 < here.value[0] < 2.1 and 1.9 < here.interval[0] < here.interval[1] < 2.1
    assert (there.unit, there.at) == ("per step", ("t = 2",)) and there.value[1] > 3.8
    assert (
        "at equal work is unknown at t = 2: the longest response of the baseline and the arm is not known"
        in caveats(found, "data")
    )
    assert "longest" not in settle(found), "the verdict lacks no number at equal work"


def test_what_is_refused_is_not_divided():
    frames = engines(2.0)
    may = Comparable(refused={("", "b"): "other GPUs (a: H100; b: H200)"})
    read = [Verdict("warning", "clock-jump", "b-s0: a clock jumped", ("b-s0",))]
    (found,) = said(frames, preflight=EQUAL, comparable=may, read=read)
    assert verdict_text([found]).splitlines() == [
        "b vs a: not comparable, other GPUs (a: H100; b: H200).",
        "? b-s0: a clock jumped.",
    ]
    assert (found.verdict, found.ratios, found.runs) == ("x", (), (0, 0))
    wide = pd.concat(frames, ignore_index=True)
    comparison, _ = comparison_table(wide, compared(wide, plan("a", "b")), may.refused)
    assert comparison["raw_speedup"].isna().all() and (comparison["baseline_step_s"] > 0).all()


def test_a_repetition_is_no_competitor():
    again = [f.assign(arm="a2") for f in engines(1.0) if f["arm"].iloc[0] == "b"]
    assert [h.arm for h in said([*engines(2.0), *again], plan("a", "b", "a2", a2="a"))] == ["b"]
    # Nor is the arm that the baseline itself repeats.
    assert [h.arm for h in said([*engines(2.0), *again], plan("a2", "a", "b", a2="a"))] == ["b"]


def test_factor_combinations_are_counted():
    frames = [*engines(2.0, factors='{"f": 1}'), *engines(0.5, factors='{"f": 2}')]
    (found,) = said([*frames, *engines(1.0, factors='{"f": 3}', apart=0.2)])
    start = "b vs a: faster at 1, slower at 1, not resolved at 1 of 3 factor combinations: 0."
    assert found.verdict == "~" and line(found).startswith(start) and "x at equal work (95% CI 0." in line(found)
    assert "Not resolved at f = 3." in caveats(found, "spread")
    (ratio,) = found.ratios
    assert ratio.interval[0] < ratio.value[0] < ratio.value[1] < ratio.interval[1]


def test_of_a_sweep_it_says_where_there_is_an_interval_and_where_nothing_is_resolved():
    few = [f.head(9) for f in engines(2.0, seeds=1, factors='{"f": 1}')]
    (found,) = said([*few, *engines(2.0, factors='{"f": 2}')])
    assert found.ratios[0].at == ("f = 1", "f = 2") and "CI" not in line(found)
    assert "Not resolved at f = 2" not in caveats(found)


def test_a_difference_that_does_not_print_is_not_claimed():
    step_s = {"a": 10.0, "b": 10.0 / 1.0037}
    draw = np.random.default_rng(1)
    (found,) = said([arm_rows(arm, s + draw.normal(0, 1e-3, 20), n) for arm, s in step_s.items() for n in range(4)])
    assert found.ratios[0].interval[0] > 1 and found.verdict == "=" and found.words == "equal within 5% per step"


def test_an_open_verdict_says_how_many_more_runs_would_resolve_it():
    (found,) = said(engines(1.04, apart=0.1), preflight=EQUAL)
    assert found.verdict == "~" and re.fullmatch(r"about \d+ more runs of each arm", settle(found))


def test_a_ratio_with_an_interval_wider_than_a_factor_of_3_is_printed_nowhere(tmp_path):
    """As the first verdict on a busy machine was: 0.16x (95% CI 0.00-70,374)."""
    rng = np.random.default_rng(3)
    frames = [f.assign(**{"timing_s/step": f["timing_s/step"] * rng.lognormal(0, 2, len(f))}) for f in engines(2.0)]
    (found,) = said(frames)
    assert re.fullmatch(r"b vs a: not resolved: [\d.,]+ s against [\d.,]+ s per step\.", line(found))
    assert found.ratios[0].too_wide
    assert "its 95% interval is wider than a factor of 3 either way (too few runs or steps)" in caveats(found)
    assert "runs on a machine without other work" in settle(found), "a few outlying steps decide"
    told = [verdict_text([found]), verdict_markdown([found])]
    assert not any(re.search(r"\dx|CI", text) for text in told), told
    low, high = found.as_json()["ratios"][0]["interval"]
    assert 0 < low < high, "the file keeps its numbers"


def test_a_combination_that_one_arm_lacks_is_said():
    base = [f for f in engines(1.0, factors='{"lr": 2}') if f["arm"].iloc[0] == "a"]
    (found,) = said([*engines(2.0, factors='{"lr": 1}'), *base])
    start = "b vs a: faster at 1, not comparable at 1 of 2 factor combinations: 2.0"
    assert found.verdict == "~" and line(found).startswith(start)
    assert "Not compared at lr = 2: b has no run at lr = 2." in caveats(found, "data")
    wide = pd.concat([*engines(2.0, factors='{"lr": 1}'), *base], ignore_index=True)
    table, _ = estimate_table(wide, plan("a", "b"), compared(wide, plan("a", "b")))
    lacking = table[table["factors"] == '{"lr": 2}']
    assert set(lacking["verdict"]) == {"x"} and set(lacking["why"]) == {"b has no run at lr = 2"}


def test_the_warm_up_that_was_really_left_out():
    of = replace(plan("a", "b"), warmup_steps=1)
    frames = engines(2.0)
    begun = [f.assign(counted=f["step"] > 1, left_out=np.where(f["step"] > 1, "", WARMUP)) for f in frames]
    assert said(begun, of)[0].basis == "3 runs against 3, 29 steps each; 6 of 180 steps left out (warm-up)"
    resumed = begun[0].assign(left_out=begun[0]["left_out"].mask(begun[0]["step"] == 9, AFTER_RESUME))
    (found,) = said([resumed.assign(counted=resumed["left_out"] == ""), *begun[1:]], of)
    reasons = "6 warm-up, 5 not in every run, 1 first after a resume"
    assert found.basis == f"3 runs against 3, 28 steps each; 12 of 180 steps left out ({reasons})"


def test_each_warning_of_reading_is_a_caveat_of_its_arms():
    read = [
        Verdict("warning", "corrupt-line", "c.log:3: no number", ("c-s0",)),
        Verdict("note", "steps-apart", "b-s0: only every 5th step is there", ("b-s0",)),
        Verdict("warning", "release-undeclared", "b-s1: release 9", ("b-s1",)),
        Verdict("warning", "release-undeclared", "b-s2: release 9", ("b-s2",)),
        Verdict("warning", "time-in-no-step", "a-s0: 9 s in no step", ("a-s0",)),
        Verdict("error", "clock-jump", "a-s1: a clock jumped."),
    ]
    third = [frame.assign(arm="c", run_id="c-s0") for frame in engines(1.0)[:1]]
    b, c = said([*engines(1.5), *third], plan("a", "b", "c"), UNKNOWN, read=read)
    assert [one.text for one in b.caveats] == [
        "a-s1: a clock jumped.",
        "a-s0: 9 s in no step.",
        "b-s1: release 9 (and 1 more like it).",
        "1 of 2 settings cannot be verified (all settings).",
    ]
    assert "c.log:3: no number." in caveats(c) and "release 9" not in caveats(c)


def with_timers(frames, wait_s=0.0):
    """Frames with timers: half of a step is generation, the rest training; b waits beside them."""
    found = []
    for frame in frames:
        is_b, step = frame["arm"].iloc[0] == "b", frame["timing_s/step"]
        own = {
            "step": wait_s * is_b,
            "step/gen": step / 2,
            "step/update_actor": step / 2,
        }
        columns = {f"own_s/{path}": seconds for path, seconds in own.items()}
        found.append(frame.assign(**columns, **{"timing_s/step": step + is_b * wait_s}))
    return found


def test_where_the_difference_lies():
    trees = {arm: [tree_named("verl 0.4.1")] for arm in "ab"}

    def where(frames, of=trees):
        return said(frames, preflight=EQUAL, trees=of)[0].difference

    found = where(with_timers(engines(1.5)))
    assert re.fullmatch(
        r"Of the measured difference: (generation 50%|loss\+backward 50%), (generation|loss\+backward) 50%\.", found
    )
    # Equal generation, and one arm waits: no engine's difference.
    found = where(with_timers(engines(1.0), wait_s=30.0))
    assert re.match(
        "Most of the measured difference lies outside generation and is no engine's: no timer (9[5-9]|10[0-5])%", found
    )
    assert where(with_timers(engines(1.0))) == "", "chance may be all of it"
    assert where(with_timers(engines(1.5)), {}) == "" and where(engines(1.5)) == ""
    # Of one run, where it is larger than repeated runs differ.
    assert where([f for f in with_timers(engines(1.5)) if f["seed"].iloc[0] == 0]).startswith("Of the measured ")
    assert where(with_timers(engines(1.5, scale=1.8))) == "", "as logged the arm is the slower one"
    assert where(with_timers(engines(1.5, scale=0.8))).startswith("Of the measured ")


def test_every_form_says_the_same():
    frames = [f.assign(reward=0.3 if f["arm"].iloc[0] == "b" else 0.5) for f in engines(1.5, scale=1.6)]
    read = [Verdict("warning", code, f"{code} of a <table>") for code in ("time-in-no-step", "corrupt-line")]
    (found,) = said(frames, preflight=UNEQUAL, read=read)
    assert ArmVerdict.from_json(json.loads(json.dumps(found.as_json(), allow_nan=False))) == found

    def plain(text):
        text = re.sub(r"[*\\]|^- |<li[^>]*>|</li>|</?[a-z][^>]*>|\x1b\[\d+m", "", html.unescape(text), flags=re.M)
        return " ".join(text.split())

    text = verdict_text([found])
    assert all(len(one) <= 80 for one in text.splitlines())
    assert plain(text).replace("· ", "") == plain(verdict_markdown([found])).replace("· ", "")
    coloured = verdict_text([found], colour=True)
    assert plain(text) == plain(coloured) and coloured.startswith("\x1b[1m")
    assert len(found.caveats) > MOST_CAVEATS and f"And {len(found.caveats) - MOST_CAVEATS} more in the report" in text
    whole = plain(verdict_markdown([found], None))
    assert all(plain(one.text) in whole for one in found.caveats) and "more in the report" not in whole


# Every sentence that speaks against an answer: a verdict that has it, and a near one that must not.
def block(frames, preflight=EQUAL):
    """The whole verdict of `b` against `a`, without the bound on caveats."""
    (found,) = said(frames, preflight=preflight)
    return " ".join([found.words, found.basis, *(one.text for one in found.caveats), *found.settle])


def with_a_longer_tail():
    """Equal engines; the longest response of the second arm is longer, and its other responses are shorter."""
    for frame in engines(1.0):
        more = 0.6 * frame["max_response_length"] * (frame["arm"] == "b")
        seconds = {STEP: frame[STEP] + 0.01 * more}
        yield frame.assign(max_response_length=frame["max_response_length"] + more, **seconds)


def with_reward(b, frames=None, missing=False):
    out = []
    for frame in frames or engines(2.0):
        is_b, noise = frame["arm"].iloc[0] == "b", 0.01 * (frame["step"] % 3)
        reward = (b if is_b else 0.5) + noise
        out.append(frame.assign(reward=reward.where(~(missing & is_b & (frame["step"] == 5)))))
    return out


def swept(worse_at):
    return [
        frame
        for f in (1, 2)
        for frame in with_reward(0.3 if f in worse_at else 0.5, engines(2.0, factors=f'{{"f": {f}}}'))
    ]


def timed(arm, factor, frames):
    step = "timing_s/step"
    return [f.assign(**{step: f[step] * factor(f)}) if f["arm"].iloc[0] == arm else f for f in frames]


EMPTY = Preflight((), (), ())
DIFFERENT = Preflight((), (ledger_row("batch", "equal"), ledger_row("cap", "different")), ())
COMPARING = Preflight((), (EQUAL.ledger[0], replace(DIFFERENT.ledger[1], why=COMPARED)), ())
# The sentence, a verdict that has it, and a near one that must not.
CASES = {
    "there is no preflight": (lambda: block(engines(2.0), None), lambda: block(engines(2.0), EMPTY)),
    "the fairness ledger is empty": (lambda: block(engines(2.0), EMPTY), lambda: block(engines(2.0), UNKNOWN)),
    "terms equal (0 unequal of 2 settings)": (
        lambda: block(engines(2.0), COMPARING),
        lambda: block(engines(2.0), DIFFERENT),
    ),
    "gate fails at f = 1: b is worse in reward.": (lambda: block(swept((1,))), lambda: block(swept((1, 2)))),
    "gate cannot judge reward: not all compared steps have numbers in both arms": (
        lambda: block(with_reward(0.5, missing=True)),
        # It is judged: it fails.
        lambda: block(with_reward(0.3, missing=True)),
    ),
    "step time alone may mislead": (
        lambda: block(engines(1.0, scale=1.6, seeds=1)),
        lambda: block(engines(1.0, scale=1.6)),
    ),
    "both arms generated equally many tokens": (
        lambda: block([*with_a_longer_tail()]),
        lambda: block(engines(1.0, scale=1.6)),
    ),
    "The median steps have another ratio": (
        lambda: block(timed("b", lambda f: np.where(f["step"] % 3 == 0, 3.0, 1.0), engines(0.8))),
        lambda: block(timed("b", lambda f: np.where(f["step"] == 4, 1.2, 1.0), engines(0.8))),
    ),
    "By wall clock, which includes the time between steps": (
        lambda: block([f.assign(between_steps_s=f[STEP].mean() * (f["arm"] == "b")) for f in engines(2.0)]),
        lambda: block([f.assign(between_steps_s=0.05 * f[STEP].mean()) for f in engines(2.0)]),
    ),
}


@pytest.mark.parametrize("sentence", CASES)
def test_a_sentence_appears_where_its_numbers_say_so_and_nowhere_else(sentence):
    has, lacks = (make() for make in CASES[sentence])
    assert sentence in has
    assert sentence not in lacks
