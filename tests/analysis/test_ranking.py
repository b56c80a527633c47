"""Settings of engines alone, ranked: the order, the intervals, and what is not resolved or not the same work."""

import json

import make_results
import numpy as np
import pandas as pd
import pytest

from analysis.collect import collect_run
from analysis.estimates.ranking import ranking_lines, ranking_table
from analysis.planned import PlanRead
from analysis.report.content import read_content
from analysis.report.rendering import html_page, markdown
from analysis.steps import write_steps

pytestmark = pytest.mark.usefixtures("undrawn")
STEP = "timing_s/step"


def plan(**trainers):
    arms = {arm: {"trainer": trainer, "engine": arm} for arm, trainer in trainers.items()}
    return PlanRead("e", "", next(iter(arms)), arms, 0, (), {})


REPLAYS = {"vllm": "replay", "sglang": "replay"}


def setting(arm, mean_s, seeds=3, steps=10, spread=0.02, lengths=20, **factors):
    draw = np.random.default_rng([len(arm), int(mean_s * 1000)])
    key = json.dumps(factors, sort_keys=True) if factors else ""
    frames = [
        pd.DataFrame(
            {
                "arm": arm,
                "factors": key,
                "run_id": f"{arm}{key}-s{seed}",
                "step": range(1, steps + 1),
                "counted": True,
                STEP: mean_s * np.exp(draw.normal(0, spread, steps) + draw.normal(0, spread / 3)),
                "response_tokens": 8.0 * lengths,
                "max_response_length": 2.0 * lengths,
            }
        )
        for seed in range(seeds)
    ]
    return pd.concat(frames)


def ranked(*frames, **trainers):
    wide = pd.concat(frames, ignore_index=True)
    return ranking_table(wide, [], plan(**trainers or REPLAYS))


EAGER, AT_ONCE = "arms.vllm.options.engine.enforce_eager", "arms.sglang.options.engine.max_running_requests"


def test_the_fastest_is_first_and_the_others_are_slower_or_not_resolved():
    found = ranked(
        setting("vllm", 3.0, **{EAGER: True}),
        setting("vllm", 2.0, **{EAGER: False}),
        setting("sglang", 2.005, **{AT_ONCE: 32}),
        setting("sglang", 6.0, **{AT_ONCE: 4}),
    )
    assert found["step_s"].is_monotonic_increasing and found["runs"].tolist() == [3] * 4
    assert found["ratio"].tolist() == pytest.approx([1, 1, 1.5, 3], rel=0.03)
    assert found["low"].isna().tolist() == [True, False, False, False]
    others = found.iloc[1:]
    assert (others["low"] < others["ratio"]).all() and (others["ratio"] < others["high"]).all()
    assert (others["low"] > 1).tolist() == [False, True, True]
    (line,) = ranking_lines(found, plan(**REPLAYS))
    assert line.startswith("Fastest of 4 settings: ") and line.count("=") == 2
    assert "not resolved from it: " in line


def test_rounded_seconds_widen_the_intervals():
    """Seconds that may be off by a tenth do not say which of two settings a tenth apart is faster."""
    frames = [setting("vllm", s, **{EAGER: s}).assign(**{"rounding/step": 0.1 * s}) for s in (2.0, 2.2, 4.0)]
    found = ranked(*frames).iloc[1:]
    assert (found["low"] > 1).tolist() == [False, True]
    assert (ranked(*(f.drop(columns="rounding/step") for f in frames)).iloc[1:]["low"] > 1).all()
    # A clock's steps in a row are off by one resolution together.
    by_clock = ranked(*(f.assign(by_clock=1.0) for f in frames)).iloc[1:]
    assert (by_clock["low"] > 1).all()


def test_steps_that_not_all_settings_have_do_not_count():
    longer = setting("vllm", 2.0, steps=12, **{EAGER: False})
    longer.loc[longer["step"] > 10, STEP] = 100.0
    found = ranked(longer, setting("vllm", 3.0, **{EAGER: True}), setting("sglang", 4.0))
    assert found["step_s"].tolist() == pytest.approx([2, 3, 4], rel=0.03)


def test_other_completions_have_no_ratio_and_other_workloads_are_sorted_apart():
    words = {"workload.batch_size": 8}
    found = ranked(
        *(setting("vllm", s, **{EAGER: s}) for s in (1.0, 2.0)),
        setting("sglang", 3.0, lengths=30),
        *(setting("vllm", s, **{EAGER: s}, **words) for s in (4.0, 5.0)),
    )
    assert found["ratio"].round(1).fillna(0).tolist() == [1, 2, 0, 1, 1.2]
    assert "not of the same lengths" in found["why"].iloc[2]
    lines = ranking_lines(found, plan(**REPLAYS))
    assert len(lines) == 2 and "at batch_size = 8" in lines[1]


def test_two_settings_and_arms_without_a_sweep_are_not_sorted():
    two = [setting("vllm", 1.0), setting("sglang", 2.0)]
    assert ranked(*two).empty
    three = [*two, setting("other", 3.0)]
    assert len(ranked(*three, vllm="replay", sglang="replay", other="replay")) == 3
    assert ranked(*three, vllm="replay", sglang="trl", other="replay").empty


def test_a_sweep_of_engines_options_is_a_ranking_in_the_report(tmp_path, drawn):
    """Each arm has factors of its own: none of its settings has a partner in the baseline, and that is no error."""
    results, runs = tmp_path / "case", []
    seconds = {("vllm", EAGER, True): 3.0, ("vllm", EAGER, False): 2.0, ("sglang", AT_ONCE, 4): 6.0}
    for (arm, path, value), mean_s in seconds.items():
        for seed in (0, 1):
            draw, run_id = np.random.default_rng([int(mean_s), seed]), f"{arm}-{value}-s{seed}"
            rows = [
                make_results.metrics_row(
                    step,
                    {"step": (s := mean_s * draw.uniform(0.99, 1.01)), "step/generate": s - 0.1},
                    scalars={"replay/mean_length": 25.0, "replay/max_length": 40.0},
                )
                for step in range(1, 7)
            ]
            made = make_results.write_run(
                results, run_id, arm, seed, [rows], engine=arm, factors={path: value},
                spec_more={"trainer": "replay"}, done_more={"versions": {"replay": "1"}},
            )  # fmt: skip
            write_steps(collect_run(made), made / "steps.parquet")
            runs.append(run_id)
    arms = {arm: {"trainer": "replay", "engine": arm} for arm in ("vllm", "sglang")}
    make_results.write_plan(results, arms, runs, 1)
    content = read_content(results / "plan.json", results, None, None)
    assert content.tables["ranking"]["step_s"].tolist() == pytest.approx([2, 3, 6], rel=0.01)
    assert content.tables["ranking"]["ratio"].tolist() == pytest.approx([1, 1.5, 3], rel=0.02)
    said = "Fastest of 3 settings: vllm (enforce_eager = False), 2 s a step; all others are slower."
    assert content.no_comparison == said and content.arm_verdicts == []
    assert not {v.code for v in content.verdicts} & {"no-common-steps", "one-arm"}
    bars = next(figure for figure in content.figures if figure.name == "phases")
    assert bars.alt.startswith("Mean seconds of a step. vllm, enforce_eager = False ")
    for text in (html_page(content), markdown(content)):
        assert "Settings, the fastest first" in text and "all others are slower" in text
