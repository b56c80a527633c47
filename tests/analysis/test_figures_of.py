"""What the figures draw, from tables with known numbers to tables that have next to nothing."""

import dataclasses
import math
import re
from xml.etree import ElementTree

import figure_tables as made
import numpy as np
import pandas as pd
import pytest

from analysis.figures.over_steps import over_runs, reward_figures
from analysis.figures.ratios import estimates_figure, step_ratio_figure, step_ratios
from analysis.logged_rewards import failed_reward_verdicts, reward_verdicts
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
    return ["".join(text.itertext()) for text in ElementTree.fromstring(figure.svg).iter(f"{SVG}text")]


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
    assert list(figures) == [
        "estimates",
        "phases",
        "step-ratios",
        "step-time",
        "response-length",
        "reward",
        "tokens-per-second",
    ]
    for figure in figures.values():
        check_svg(figure)
        assert len(figure.alt) > 40 and len(figure.caption) > 20


def test_steps_are_divided_by_the_baselines_mean_and_grey_where_one_does_not_count():
    plan, wide = made.plan_of(["vllm", "sglang"]), made.wide_of(["vllm", "sglang"], seeds=2, steps=6)
    wide.loc[(wide["arm"] == "sglang") & (wide["seed"] == 1) & (wide["step"] == 4), "timing_s/step"] = math.nan
    wide.loc[(wide["arm"] == "vllm") & (wide["seed"] == 0) & (wide["step"] == 6), "counted"] = False
    ratios = step_ratios(wide, "vllm").set_index(["run_id", "step"])
    assert len(ratios) == 11 and ("r0-1-1", 4) not in ratios.index
    seconds = wide.set_index(["arm", "run_id", "step"])["timing_s/step"]
    for (run, step), row in ratios.iterrows():
        mean = seconds["vllm"].groupby("step").mean()[step]
        assert row["ratio"] == pytest.approx(mean / seconds["sglang", run, step])
    assert not ratios.loc[("r0-1-0", 6), "counted"] and ratios["counted"].sum() == 2 * 4 - 3
    figure = step_ratio_figure(wide, plan, made.estimates_of(wide, plan))
    assert figure is not None
    check_svg(figure)
    assert f"sglang: median {ratios.loc[ratios['counted'], 'ratio'].median():.4g}" in figure.alt
    grey = re.findall(r'<path [^>]*fill="#8a8f98"', figure.svg)
    assert len(grey) == 1 + 6  # the warm-up; its two steps of two runs, and the step that does not count


def test_what_must_not_be_divided_is_drawn_nowhere():
    arms = ["vllm", "sglang", "other gpu"]
    plan, wide = made.plan_of(arms), made.wide_of(arms, steps=4, factors=SWEEP[:2])
    estimates = made.estimates_of(wide, plan)
    refused = estimates["arm"] == "other gpu"
    estimates.loc[refused, ["value", "low", "high"]] = math.nan
    estimates.loc[refused, ["verdict", "why"]] = ["x", "different GPUs"]
    paired = step_ratio_figure(wide, plan, estimates)
    assert paired is not None
    assert not any("other gpu" in text for text in texts(paired)) and "other gpu" not in paired.alt
    assert "Not comparable, so without a ratio: other gpu" in paired.caption
    forest = estimates_figure(estimates, plan)
    assert forest is not None
    assert (
        texts(forest).count("× no value") == (estimates["verdict"] == "x").sum() >= 4
        and "different GPUs" in forest.caption
    )


def test_estimates_are_told_as_in_the_table_and_by_shape():
    plan, wide = made.plan_of(["vllm", "a", "b", "c"]), made.wide_of(["vllm", "a", "b"], steps=3)
    estimates = made.estimates_of(wide, plan)
    estimates["verdict"] = ["+", "-", "~", "x"]
    estimates = pd.concat([estimates, estimates.assign(arm="c")], ignore_index=True)
    estimates.loc[7, ["verdict", "value", "low", "high"]] = ["+", 1.2, math.nan, math.nan]
    figure = estimates_figure(estimates, plan)
    assert figure is not None
    check_svg(figure)
    shown = texts(figure)
    for row in estimates.itertuples():
        if row.verdict == "x" or row.value != row.value:
            continue
        text = f"{row.value:.2f}" + (f" [{row.low:.2f}, {row.high:.2f}]" if row.low == row.low else "")
        assert text + (" ~" if row.verdict == "~" else "") in shown and text in figure.alt
    assert "× no value" in shown
    for word in ("Filled circle", "Hollow diamond", "Hollow triangle", "×:"):
        assert word in figure.caption
    assert "Hollow triangle" not in estimates_figure(estimates[:4], plan).caption
    # An interval that is too wide to be drawn is not resolved; it has a value.
    estimates.loc[0, ["verdict", "low", "high"]] = ["~", estimates.loc[0, "value"] / 4, estimates.loc[0, "value"] * 4]
    caption = estimates_figure(estimates, plan).caption
    wide_text = "its 95% interval is wider than a factor of 3 either way"
    assert f"~ without a mark: {wide_text}. ×: not comparable" in caption and caption.count(wide_text) == 1


def scarce(kind):
    if kind == "one step":
        full = made.tables_of(["vllm", "sglang"], seeds=1, steps=1, warmup_steps=0)
        return dataclasses.replace(full, estimates=full.estimates[:0])
    full = made.tables_of(["vllm", "sglang"], seeds=1, steps=4)
    full = dataclasses.replace(full, wide=full.wide.drop(columns="response_tokens"))
    empty = {name: getattr(full, name)[:0] for name in ("estimates", "lengths")}
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
        lengths=made.lengths_of(full.wide, 3, value),
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
        assert {f.name for f in made_of_little} <= {"estimates", "phases"}


def test_each_reward_has_its_curve_under_any_trainers_name():
    wide = made.wide_of(["trl", "verl"], seeds=2, steps=6)
    mine = (wide["arm"] == "trl").to_numpy()
    for name, value in (("accuracy", 0.25), ("my own", 3.0)):
        wide[f"train/rewards/{name}/mean"] = np.where(mine, value, math.nan)
        wide[f"rewards/{name}/mean"] = np.where(mine, math.nan, 2 * value)
    rewards = pd.DataFrame({"reward": ["accuracy", "my own", "my own"], "weight": [1.0, 0.5, 0.25]})
    score, *drawn = reward_figures(wide, made.plan_of(["trl", "verl"]), rewards)
    assert "a weighted sum: accuracy × 1, my own × 0.5 or 0.25. " in score.caption
    assert [figure.name for figure in drawn] == ["reward-of-accuracy", "reward-of-my-own"]
    assert drawn[1].caption.startswith("Its weight in the score is 0.5 or 0.25; the curve is without it. ")
    assert "trl: median 0.25; verl: median 0.5" in drawn[0].alt
    assert "trl: median 3; verl: median 6" in drawn[1].alt
    check_svg(drawn[0])
    # The only reward is the score.
    one = wide[[column for column in wide if "my own" not in column]]
    (score,) = reward_figures(one, made.plan_of(["trl", "verl"]), rewards[:1])
    assert score.name == "reward" and "weighted" not in score.caption


def test_a_reward_of_several_runs_is_a_mean_with_its_interval():
    plan = made.plan_of(["trl", "verl"])
    wide = made.wide_of(["trl", "verl"], seeds=3, steps=6)
    wide[REWARD] = wide["seed"].astype(float) * (wide["arm"] == "trl") + wide["step"]
    found = over_runs(wide[(wide["arm"] == "trl") | (wide["seed"] > 0)], REWARD)
    assert found is not None
    trl = found[found["arm"] == "trl"]
    # Of 0, 1 and 2: the standard error is 1/sqrt(3), and t of two degrees of freedom 4.3027.
    assert list(trl["value"]) == [step + 1 for step in trl["step"]]
    assert (trl["high"] - trl["value"]).to_list() == pytest.approx([4.302653 / math.sqrt(3)] * 6)
    assert found.loc[found["arm"] == "verl", "low"].isna().all(), "two runs have no interval"
    (score,) = reward_figures(wide, plan, pd.DataFrame({"reward": [], "weight": []}))
    assert "Mean over an arm's runs; the band is its 95% interval, where 3 runs or more have the step." in score.caption
    assert over_runs(wide[wide["seed"] < 2], REWARD) is None
    swept = wide.assign(factors=np.where(wide["seed"] == 0, "a", "b"))
    assert over_runs(swept, REWARD) is None


def test_failures_of_a_users_reward_are_told():
    wide = made.wide_of(["trl", "verl"], seeds=1, steps=4)
    assert list(failed_reward_verdicts(wide)) == []
    mine = (wide["arm"] == "verl").to_numpy()
    wide["rewards/brevity/failed"] = np.where(mine & (wide["step"] >= 3), 2.0, np.where(mine, 0.0, math.nan))
    (verdict, *_) = reward_verdicts(wide, [])
    assert (verdict.code, verdict.level) == ("reward-failed", "warning")
    assert "reward brevity failed on 4 completions in 2 steps (first: step 3)" in verdict.text
