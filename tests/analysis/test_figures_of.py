"""What the figures of a report draw, whatever its tables hold."""

import math
import re

import make_results
import numpy as np
import pandas as pd
import pytest
from svg import check_svg, texts

from analysis.estimates.gate import reward_verdicts
from analysis.figures.curves import curve_lines, figures_of, reward_figure
from analysis.report.content import read_content

ARMS = ["slow", "fast"]
SWEEP = [{"workload.temperature": 0.7}, {"workload.temperature": 1.0}]


def content_of(folder, factors=None, **more):
    arms = dict(zip(ARMS, (("transformers", 3.2), ("vllm", 0.9)), strict=True))
    make_results.realistic(folder, arms, factors=factors, **more)
    return read_content(folder / "plan.json", folder, None, None)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    return content_of(tmp_path_factory.mktemp("swept") / "case", SWEEP, seeds=2, steps=5)


def test_a_sweep_has_a_bar_for_each_combination_with_its_seconds_and_its_ratio(swept):
    wide = swept.tables["steps"].assign(mean_response_length=100.0, max_response_length=200.0)
    figures = figures_of(swept.plan, swept.tables | {"steps": wide})
    assert [figure.name for figure in figures] == ["phases", "step-time", "reward", "response-length"]
    for figure in figures:
        check_svg(figure)
        assert len(figure.alt) > 40 and len(figure.caption) > 20
    bars = figures[0]
    shown, estimates = texts(bars), swept.tables["estimates"].set_index("estimate")
    assert [text for text in shown if text in ARMS] == ARMS * 2 and shown.count("baseline") == 2
    assert [text for text in shown if "temperature" in text] == ["temperature = 0.7", "temperature = 1.0"]
    for row in estimates.loc["per_step"].itertuples():
        assert f"{row.value:.2f}x ({row.low:.2f} to {row.high:.2f})" in bars.alt
    for mean_s in swept.tables["phases"].query("path == 'step'")["mean_s"]:
        assert f"{mean_s:.2f} s" in shown and f"{mean_s:.2f} s" in bars.alt
    assert "times as fast as slow per step (95% interval)" in bars.caption


def test_without_a_sweep_a_bar_has_its_seconds_and_the_verdict_the_ratio(tmp_path):
    bars = content_of(tmp_path / "case", seeds=1, steps=4).figures[0]
    check_svg(bars)
    assert not [text for text in texts(bars) if "x" in text.split("(")[0] and text not in ARMS]


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_whatever_the_tables_hold_the_figures_are_sound(swept, value):
    wide = swept.tables["steps"]
    numbers = wide.select_dtypes("float").columns
    tables = swept.tables | {
        "steps": wide.assign(**dict.fromkeys(numbers, value)),
        "phases": swept.tables["phases"].assign(own_mean_s=value),
        "estimates": swept.tables["estimates"].assign(value=value, low=value, high=value, verdict="~"),
    }
    for figure in figures_of(swept.plan, tables):
        check_svg(figure)


def steps_of(arm, runs, value=lambda step, run: 1.0, steps=6):
    rows = [
        ("", arm, f"{arm}{run}", step, step > 2, value(step, run))
        for run in range(runs)
        for step in range(1, steps + 1)
    ]
    return pd.DataFrame(rows, columns=["factors", "arm", "run_id", "step", "counted", "reward"])


def test_each_reward_has_its_panel_under_any_trainers_name(swept):
    parts = [steps_of("slow", 2), steps_of("fast", 2)]
    for name, value in (("accuracy", 0.25), ("my own", 3.0)):
        parts[0][f"train/rewards/{name}/mean"] = value
        parts[1][f"rewards/{name}/mean"] = 2 * value
    wide = pd.concat(parts, ignore_index=True)
    figure = reward_figure(wide, swept.plan)
    check_svg(figure)
    assert "the weighted sum of the rewards" in figure.caption
    panels = ["score", "accuracy", "my own"]
    assert [text for text in texts(figure) if text in panels] == panels
    assert "accuracy of slow: median 0.25; accuracy of fast: median 0.5" in figure.alt
    # The only reward is the score.
    figure = reward_figure(wide[[column for column in wide if "my own" not in column]], swept.plan)
    assert figure.name == "reward" and "weighted" not in figure.caption


def test_several_runs_are_a_mean_with_its_interval(swept):
    three = steps_of("slow", 3, lambda step, run: step + run)
    found = curve_lines(pd.concat([three, steps_of("fast", 2)]).assign(value=lambda wide: wide["reward"]))
    slow = found[found["arm"] == "slow"].sort_values("step")
    # Of 0, 1 and 2: the standard error is 1/sqrt(3), and t of two degrees of freedom 4.3027.
    assert list(slow["value"]) == [step + 1 for step in slow["step"]]
    half = (slow["high"] - slow["value"]).dropna()
    assert list(half) == pytest.approx([4.302653 / math.sqrt(3)] * 4), "of the steps that count"
    assert found.loc[found["arm"] == "fast", "low"].isna().all(), "two runs have no interval"
    figure = reward_figure(three, swept.plan)
    assert "the band is its 95% interval, where 3 runs or more have the step." in figure.caption
    # The warm-up, and its two steps of three runs in one line.
    assert len(re.findall(r'<path [^>]*fill="#8a8f98"', figure.svg)) == 1 + 2, "steps that do not count are grey"
    two = steps_of("slow", 2)
    assert set(curve_lines(two.assign(value=two["reward"]))["line"]) == {"slow0", "slow1"}


def test_failures_of_a_users_reward_are_told():
    wide = pd.concat([steps_of("slow", 1, steps=4), steps_of("fast", 1, steps=4)], ignore_index=True)
    assert list(reward_verdicts(wide)) == []
    mine = (wide["arm"] == "fast").to_numpy()
    wide["rewards/brevity/failed"] = np.where(mine & (wide["step"] >= 3), 2.0, np.where(mine, 0.0, math.nan))
    (verdict, *_) = reward_verdicts(wide)
    assert (verdict.code, verdict.level) == ("reward-failed", "warning")
    assert "reward brevity failed on 4 completions in 2 steps (first: step 3)" in verdict.text
