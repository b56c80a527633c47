"""What the figures draw, from tables with known numbers to tables that have next to nothing."""

import dataclasses
import math
import re
from xml.etree import ElementTree

import figure_tables as made
import numpy as np
import pandas as pd
import pytest

from analysis.estimates.gate import reward_verdicts
from analysis.figures.bars import phase_bars
from analysis.figures.curves import curve_lines, reward_figure
from analysis.wide import REWARD

SWEEP = [{"workload.temperature": t, "workload.num_generations": n} for t in (0.7, 1.0) for n in (16, 4, 128)]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def tables():
    return made.tables_of(["vllm", "sglang"], seeds=2, steps=8, factors=SWEEP)


@pytest.fixture(scope="module")
def figures(tables):
    return {figure.name: figure for figure in tables.drawn()}


def texts(figure):
    """Each line of text."""
    return [line for text in ElementTree.fromstring(figure.svg).iter(f"{SVG}text") for line in text.itertext()]


def check_svg(figure):
    """Well-formed, no script, nothing from elsewhere, every reference to a part that is there once."""
    assert "currentColor" not in re.sub("<text.*?</text>", "", figure.standalone_svg), "a file has no page's colour"
    root = ElementTree.fromstring(figure.standalone_svg)
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert not tags & {"script", "image", "a", "use", "foreignObject", "style"}
    ids = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    for element in root.iter():
        for name, value in element.attrib.items():
            assert "http" not in value and "href" not in name and not name.startswith("on")
            assert "NaN" not in value and "Infinity" not in value, (figure.name, name, value)
            for target in re.findall(r"url\(([^)]*)\)", value):
                assert target.removeprefix("#") in ids and target.startswith("#")


@pytest.mark.full("large figures")
def test_every_table_has_its_figures(figures):
    assert list(figures) == ["phases", "step-time", "reward", "response-length"]
    for figure in figures.values():
        check_svg(figure)
        assert len(figure.alt) > 40 and len(figure.caption) > 20


def bars_of(plan, wide, estimates):
    ranking = pd.DataFrame({"factors": [], "arm": []})
    phases = made.categories_of(wide).assign(path="step")
    return phase_bars(plan, {"phases": phases, "estimates": estimates, "ranking": ranking})


def test_a_bar_has_its_seconds_at_its_end_and_the_verdict_beside_it_has_the_ratio():
    arms = ["vllm", "sglang", "other gpu"]
    plan, wide = made.plan_of(arms), made.wide_of(arms, steps=4)
    figure = bars_of(plan, wide, made.estimates_of(wide, plan))
    check_svg(figure)
    shown = texts(figure)
    assert [text for text in shown if text in arms] == arms and not [
        text for text in shown if "x" in text.split("(")[0]
    ]
    for arm, mean_s in made.categories_of(wide).groupby("arm")["own_mean_s"].sum().items():
        seconds = f"{mean_s:.0f} s" if mean_s >= 100 else f"{mean_s:.1f} s"
        assert seconds in shown and f"{arm} {seconds}" in figure.alt


def test_a_bar_of_a_sweep_has_its_ratio_with_the_interval_too():
    arms = ["vllm", "sglang", "other gpu"]
    plan, wide = made.plan_of(arms), made.wide_of(arms, steps=4, factors=SWEEP[:2])
    estimates = made.estimates_of(wide, plan)
    refused = estimates["arm"] == "other gpu"
    estimates.loc[refused, ["value", "low", "high"]] = math.nan
    estimates.loc[refused, ["verdict", "why"]] = ["x", "different GPUs"]
    figure = bars_of(plan, wide, estimates)
    check_svg(figure)
    shown = texts(figure)
    assert shown.count("baseline") == 2 and shown.count("not comparable") == 2
    for _, row in estimates[(estimates["arm"] == "sglang") & (estimates["estimate"] == "per_step")].iterrows():
        ratio = f"{row['value']:.2f}x ({row['low']:.2f} to {row['high']:.2f})"
        assert any(text.startswith(ratio) for text in shown) and ratio in figure.alt
    assert "times as fast as vllm per step (95% interval)" in figure.caption


def test_bars_of_a_sweep_are_in_panels_of_equal_work_and_other_factors_are_in_their_names(tables):
    figure = next(one for one in tables.drawn() if one.name == "phases")
    assert [text for text in texts(figure) if "temperature" in text] == [
        f"num_generations = {n}, temperature = {t}"
        for n, t in ((16, 0.7), (4, 0.7), (128, 0.7), (16, 1.0), (4, 1.0), (128, 1.0))
    ]
    assert texts(figure).count("vllm") == 6


def scarce(kind):
    if kind == "one step":
        full = made.tables_of(["vllm", "sglang"], seeds=1, steps=1, warmup_steps=0)
        return dataclasses.replace(full, estimates=full.estimates[:0])
    full = made.tables_of(["vllm", "sglang"], seeds=1, steps=4)
    full = dataclasses.replace(full, wide=full.wide.drop(columns="response_tokens"))
    empty = {"estimates": full.estimates[:0]}
    if kind == "one run":
        wide = full.wide[full.wide["arm"] == "vllm"]
        return dataclasses.replace(full, wide=wide, categories=made.categories_of(wide), **empty)
    if kind == "empty tables":
        return dataclasses.replace(full, categories=full.categories[:0], **empty)
    if kind == "nothing counts":
        wide = full.wide.assign(counted=False)
        return dataclasses.replace(full, wide=wide, categories=full.categories[:0], **empty)
    numbers = full.wide.select_dtypes("float").columns
    value = {"NaN": math.nan, "infinite": math.inf, "zero": 0.0, "negative": -1.0}[kind]
    estimates = full.estimates.assign(value=value, low=value, high=value, verdict="~", why=math.nan)
    return dataclasses.replace(
        full,
        wide=full.wide.assign(**{name: value for name in numbers}),
        categories=full.categories.assign(own_mean_s=value),
        estimates=estimates,
    )


@pytest.mark.parametrize(
    "kind", ["one step", "one run", "empty tables", "nothing counts", "NaN", "infinite", "zero", "negative"]
)
def test_whatever_the_tables_hold_the_figures_are_sound(kind):
    made_of_little = scarce(kind).drawn()
    for figure in made_of_little:
        check_svg(figure)
        assert not re.search(r"\b(nan|inf)\b", figure.alt + figure.caption), figure.alt
    names = {f.name for f in made_of_little}
    if kind == "one run":
        assert {"phases", "step-time", "reward"} <= names
    if kind == "one step":
        assert "phases" in names and not {"step-time", "reward"} & names, "one step needs no figure over the steps"
    if kind == "NaN":
        # Sums of seconds that are no numbers are 0.
        assert {f.name for f in made_of_little} <= {"phases"}


def test_each_reward_has_its_panel_under_any_trainers_name():
    wide = made.wide_of(["trl", "verl"], seeds=2, steps=6)
    mine = (wide["arm"] == "trl").to_numpy()
    for name, value in (("accuracy", 0.25), ("my own", 3.0)):
        wide[f"train/rewards/{name}/mean"] = np.where(mine, value, math.nan)
        wide[f"rewards/{name}/mean"] = np.where(mine, math.nan, 2 * value)
    figure = reward_figure(wide, made.plan_of(["trl", "verl"]))
    check_svg(figure)
    assert "the weighted sum of the rewards" in figure.caption
    assert [text for text in texts(figure) if text in ("score", "accuracy", "my own")] == [
        "score",
        "accuracy",
        "my own",
    ]
    assert "accuracy of trl: median 0.25; accuracy of verl: median 0.5" in figure.alt
    assert "my own of trl: median 3; my own of verl: median 6" in figure.alt
    # The only reward is the score.
    one = wide[[column for column in wide if "my own" not in column]]
    figure = reward_figure(one, made.plan_of(["trl", "verl"]))
    assert figure.name == "reward" and "weighted" not in figure.caption


def test_several_runs_are_a_mean_with_its_interval():
    plan = made.plan_of(["trl", "verl"])
    wide = made.wide_of(["trl", "verl"], seeds=3, steps=6)
    wide[REWARD] = wide["seed"].astype(float) * (wide["arm"] == "trl") + wide["step"]
    found = curve_lines(wide[(wide["arm"] == "trl") | (wide["seed"] > 0)].assign(value=wide[REWARD]))
    trl = found[found["arm"] == "trl"].sort_values("step")
    # Of 0, 1 and 2: the standard error is 1/sqrt(3), and t of two degrees of freedom 4.3027.
    assert list(trl["value"]) == [step + 1 for step in trl["step"]]
    half = (trl["high"] - trl["value"]).dropna()
    assert list(half) == pytest.approx([4.302653 / math.sqrt(3)] * 4), "of the steps that count"
    assert found.loc[found["arm"] == "verl", "low"].isna().all(), "two runs have no interval"
    figure = reward_figure(wide, plan)
    assert (
        "Mean over an arm's runs; the band is its 95% interval, where 3 runs or more have the step." in figure.caption
    )
    two = curve_lines(wide[wide["seed"] < 2].assign(value=wide[REWARD]))
    assert set(two["line"]) == set(wide.loc[wide["seed"] < 2, "run_id"])


def test_steps_that_do_not_count_are_grey():
    tables = made.tables_of(["vllm", "sglang"], seeds=1, steps=6)
    tables.wide.loc[(tables.wide["arm"] == "vllm") & (tables.wide["step"] == 6), "counted"] = False
    figure = next(one for one in tables.drawn() if one.name == "step-time")
    assert {"0", "50", "100"} <= set(texts(figure)), "seconds in full, not as powers of ten"
    grey = re.findall(r'<path [^>]*fill="#8a8f98"', figure.svg)
    assert len(grey) == 1 + 5  # the warm-up; its two steps of two runs, and the step that does not count


def test_failures_of_a_users_reward_are_told():
    wide = made.wide_of(["trl", "verl"], seeds=1, steps=4)
    assert list(reward_verdicts(wide)) == []
    mine = (wide["arm"] == "verl").to_numpy()
    wide["rewards/brevity/failed"] = np.where(mine & (wide["step"] >= 3), 2.0, np.where(mine, 0.0, math.nan))
    (verdict, *_) = reward_verdicts(wide)
    assert (verdict.code, verdict.level) == ("reward-failed", "warning")
    assert "reward brevity failed on 4 completions in 2 steps (first: step 3)" in verdict.text
