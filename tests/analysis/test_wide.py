"""Which steps count: records that are means of several steps, and steps after a restart."""

import json

import make_results
import numpy as np
import pytest
from roofline_results import trained
from test_imported import imported, said, spec_of, wide_of, write

from analysis.compared import compared
from analysis.comparison_tables import comparison_table
from analysis.counted import OTHER_WINDOW, WARMUP
from analysis.planned import PlanRead
from analysis.wide import wide_run


def logged(tmp_path, arm, every, step_s=float, steps=60):
    """A TRL run that logs the mean of so many steps, of `step_s(step)` seconds each."""
    history = [
        {
            "step": end,
            "loss": 0.1,
            "reward": 0.5,
            "step_time": sum(map(step_s, range(end - every + 1, end + 1))) / every,
        }
        for end in range(every, steps + 1, every)
    ]
    state = write(tmp_path, json.dumps({"log_history": history}), f"{arm}.json")
    spec = spec_of(arm, [state], trainer="trl", engine="vllm", version="1.9.0")
    return spec, imported(tmp_path / "res", spec)


def plan_of(warmup_steps):
    arms = {arm: {"trainer": "trl", "engine": "vllm"} for arm in "ab"}
    return PlanRead("x", "", "a", arms, warmup_steps, (), {})


def comparison_of(wide, warmup_steps):
    return comparison_table(wide, compared(wide, plan_of(warmup_steps)))


def test_windows_that_differ_are_joined(tmp_path):
    """Equal engines whose steps grow: a's step 20 would be divided by the mean of b's 11 to 20."""
    (a, _), (b, (table, metadata, _)) = logged(tmp_path, "a", 1), logged(tmp_path, "b", 10)
    assert table[table["name"] == "steps_logged"]["value"].tolist() == [10.0] * 6
    assert "every 10 steps" in said(metadata, "logging-window")
    assert {v["code"] for v in metadata["verdicts"]} == {"logging-window"}, "nothing is missing between the records"
    _, wide, verdicts = wide_of(tmp_path / "res", a, b, warmup=2)
    assert wide["step"].tolist() == 2 * [10, 20, 30, 40, 50, 60] and set(wide["steps_logged"]) == {10.0}
    assert wide.loc[wide["left_out"] == WARMUP, "step"].tolist() == [10, 10]
    assert [v.code for v in verdicts] == ["windows-joined"]
    comparison, verdicts = comparison_of(wide, 2)
    assert comparison["raw_speedup"].tolist() == [1.0] and comparison["baseline_steps"].tolist() == [50]
    assert comparison["baseline_step_s"].tolist() == [sum(range(11, 61)) / 50]


def test_windows_with_steps_that_no_log_has_are_left_out(tmp_path):
    (a, _), (b, _) = logged(tmp_path, "a", 1), logged(tmp_path, "b", 10)
    rows = [row for row in json.loads((tmp_path / "a.json").read_text())["log_history"] if row["step"] != 55]
    write(tmp_path, json.dumps({"log_history": rows}), "a.json")
    imported(tmp_path / "res", a)
    _, wide, verdicts = wide_of(tmp_path / "res", a, b, warmup=2)
    assert set(wide.loc[wide["step"] > 50, "left_out"]) == {OTHER_WINDOW}
    (told,) = [v for v in verdicts if v.code == "windows-differ"]
    assert told.level == "error" and "(step 60: in a that step alone; in b the mean of 51 to 60)" in told.text
    assert comparison_of(wide, 2)[0]["arm_steps"].tolist() == [40]


def test_a_record_that_begins_in_the_warm_up_is_warm_up(tmp_path):
    """Warm-up of 7, windows of 5: record 10 holds steps 6 and 7."""
    (a, _), (b, _) = logged(tmp_path, "a", 5), logged(tmp_path, "b", 5)
    _, wide, verdicts = wide_of(tmp_path / "res", a, b, warmup=7)
    assert wide.loc[wide["left_out"] == WARMUP, "step"].tolist() == [5, 10, 5, 10] and not verdicts
    _, wide, verdicts = wide_of(tmp_path / "res", a, b, warmup=10)
    assert not verdicts


def v1_log(tmp_path, arm, version="0.9.1", **facts):
    """A verl run whose batches have their longest response at 512, at the limit of 1024, and above it."""
    seconds = "timing_s/gen:5.000 - timing_s/step:9.000"
    lines = [
        f"step:{step} - response_length/mean:300.000 - response_length/max:{longest}.000 - "
        f"response_length/clip_ratio:0.250 - {seconds}\n"
        for step, longest in enumerate((512, 1024, 2048), 1)
    ]
    spec = spec_of(arm, [write(tmp_path, "".join(lines), f"{arm}.log")], engine="vllm", version=version, **facts)
    imported(tmp_path / "res", spec)
    return spec


@pytest.mark.parametrize(
    "facts, shares",
    [
        ({"max_response_length": 1024}, [0.0, 0.25, np.nan]),
        ({}, [np.nan] * 3),
        ({"max_response_length": 1024, "mode": "legacy"}, [0.25] * 3),
        ({"max_response_length": 1024, "version": "0.7.0"}, [0.25] * 3),
    ],
)
def test_as_long_as_the_longest_of_the_batch_is_not_truncated(tmp_path, facts, shares):
    """verl 0.9.1 pads to the longest response, and logs the share of those that fill the padded width."""
    _, wide, _ = wide_of(tmp_path / "res", v1_log(tmp_path, "a", **facts), warmup=0)
    np.testing.assert_array_equal(wide["truncated_share"], shares)


def three_quarters_clipped(steps):
    return steps.assign(value=steps["value"].mask(steps["name"] == "response_length/clip_ratio", 0.75))


def test_a_trained_run_has_its_own_limit(tmp_path):
    """As the settings that it held say; else as its workload does (31,744)."""
    cut = trained(tmp_path, [10, 20, 20, 20], "vllm", **{"data.max_response_length": 20})
    whole = trained(tmp_path, [10, 20, 20, 20], "sglang")
    cut, whole = (make_results.with_steps(run, three_quarters_clipped) for run in (cut, whole))
    for run, share in ((cut, 0.75), (whole, 0.0)):
        assert wide_run(run)["truncated_share"].tolist() == [share] * 4
