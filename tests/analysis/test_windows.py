"""A row counts for the training steps that it stands for: a thinned or summed log gives the whole log's numbers."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_imported import imported, said, spec_of, wide_of, write

from analysis.estimates.arm import estimates
from analysis.phases import phase_table
from analysis.runs import PlanRead
from analysis.sources.wandb_rows import steps_of
from analysis.speedup import comparison_table, paired_steps
from analysis.stragglers import straggler_table
from trainers.registry import trainer_named
from trainers.verl.console import read_verl_console

WARMUP = 6


def plan_of(trainer):
    return PlanRead("x", "", "a", {arm: {"trainer": trainer, "engine": "vllm"} for arm in "ab"}, WARMUP, (), {})


def trl_state(steps, every):
    """`trainer_state.json` of steps of (seconds, mean length), logged as means of so many steps."""
    rows = []
    for end in range(every, len(steps) + 1, every):
        mine = steps[end - every : end]
        seconds, length = (sum(column) / every for column in zip(*mine, strict=True))
        names = {"step_time": seconds, "completions/mean_length": length, "completions/max_length": 2 * length}
        rows.append({"step": end, "loss": 0.1, "reward": length / 100, **names})
    return json.dumps({"log_history": rows})


def fully_async(cycles, every):
    """verl's fully asynchronous loop: sums over each sync's training steps, of which the first has one less."""
    lines, at = [], 0
    for sync in range(1, cycles + 1):
        mine = range(at + 1, at + every + (sync > 1))
        at = mine[-1]
        step_s = sum(70.0 + step % 7 for step in mine)
        lines.append(
            f"(FullyAsyncTrainer pid=1) step:{sync} - training/global_step:{at} - "
            f"fully_async/count/current_param_version:{sync} - response_length/mean:800.0 - prompt_length/mean:200.0 - "
            f"perf/total_num_tokens:{64000 * len(mine)} - timing_s/agent_loop/tool_calls/max:3.0 - "
            f"timing_s/update_actor:{step_s / 2} - timing_s/step:{step_s} - perf/time_per_step:{step_s}"
        )
    return "\n".join(lines) + "\n"


def numbers(tmp_path, a, b, **spec):
    """All ratios of two logs, and an arm's tables."""
    specs = []
    for arm, text in (("a", a), ("b", b)):
        one = spec_of(arm, [write(tmp_path, text, f"{arm}.log")], engine="vllm", **spec)
        imported(tmp_path / "res", one)
        specs.append(one)
    runs, wide, verdicts = wide_of(tmp_path / "res", *specs, warmup=WARMUP)
    plan = plan_of(spec["trainer"])
    comparison, _ = comparison_table(wide, plan)
    pairs = paired_steps(wide, "", "a", "b")
    found = {row["estimate"]: row["value"] for row in estimates(pairs) if row["value"] > 0}
    phases = phase_table(wide, ["a", "b"], [run.tree for run in runs])
    of_lengths = straggler_table(wide, runs, plan)
    tables = {
        **comparison.iloc[0][["paired_steps", "baseline_s", "arm_s", "raw_speedup", "lowest_seed_speedup"]],
        **{f"{row.arm} {row.path}": row.mean_s for row in phases.itertuples()},
        **{f"{row.arm} length": row.mean_length for row in of_lengths.itertuples()},
    }
    return found, tables, {v.code for v in verdicts}


STEPS = st.lists(st.tuples(st.floats(5.0, 50.0), st.floats(100.0, 900.0)), min_size=24, max_size=24)


@pytest.mark.full("many thinned logs")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(a=STEPS, b=STEPS, every=st.sampled_from([2, 3, 6]))
def test_a_log_of_means_gives_the_whole_logs_numbers(tmp_path, a, b, every):
    spec = {"trainer": "trl", "version": "1.9.0"}
    whole, tables, codes_found = numbers(tmp_path, trl_state(a, 1), trl_state(b, 1), **spec)
    assert not codes_found
    for thinned in ((trl_state(a, every), trl_state(b, every)), (trl_state(a, 1), trl_state(b, every))):
        found, of_thinned, _ = numbers(tmp_path, *thinned, **spec)
        assert of_thinned == pytest.approx(tables, rel=1e-9)
        assert found["raw"] == pytest.approx(whole["raw"], rel=1e-9)


@pytest.mark.parametrize("every", [2, 4])
def test_a_line_of_the_fully_asynchronous_loop_stands_for_the_steps_of_a_sync(tmp_path, every):
    read = read_verl_console(write(tmp_path, fully_async(6, every))).read
    steps = [every * sync - 1 for sync in range(1, 7)]
    assert list(read.records) == steps and [v.code for v in read.verdicts] == ["rows-of-several-steps"]
    assert [r.scalars.get("steps_logged", 1) for r in read.records.values()] == [max(1, every - 1), *[every] * 5]
    last = read.records[steps[-1]]
    mean_s = sum(70.0 + step % 7 for step in range(steps[-1] - every + 1, steps[-1] + 1)) / every
    assert last.scalars["timing_s/step"] == last.scalars["perf/time_per_step"] == pytest.approx(mean_s)
    kept = {"response_length/mean": 800.0, "timing_s/agent_loop/tool_calls/max": 3.0, "perf/total_num_tokens": 64000.0}
    assert {name: last.scalars[name] for name in kept} == kept
    assert last.line == 6


def test_the_same_rows_from_the_file_logger_and_wandb(tmp_path):
    console = read_verl_console(write(tmp_path, fully_async(5, 4))).read.records
    rows = []
    for sync, line in enumerate(fully_async(5, 4).splitlines(), start=1):
        pairs = (piece.rpartition(":")[::2] for piece in line.split(" - ")[1:])
        rows.append({"step": sync, "data": {name: float(value) for name, value in pairs}})
    file = write(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "log.jsonl")
    reader = next(form.read for form in trainer_named("verl").formats if form.name == "verl-jsonl")
    history = steps_of([(file, n, {"_step": n, **row["data"]}) for n, row in enumerate(rows, start=1)], "log")
    for records in (reader(file).read.records, history.records):
        assert {s: dict(r.scalars) for s, r in records.items()} == {s: dict(r.scalars) for s, r in console.items()}


def test_fully_asynchronous_against_synchronous(tmp_path):
    """73 s a training step against twice that: a line of four steps is 292 s."""
    sync = "".join(
        f"step:{step} - training/global_step:{step} - response_length/mean:800.0 - prompt_length/mean:200.0 - "
        f"perf/total_num_tokens:64000 - timing_s/gen:20.0 - timing_s/step:{2 * (70.0 + step % 7)}\n"
        for step in range(1, 24)
    )
    found, tables, _ = numbers(tmp_path, sync, fully_async(6, 4), trainer="verl", version="0.9.1")
    assert found["raw"] == pytest.approx(2.0) and found["per_token"] == pytest.approx(2.0)
    assert tables["paired_steps"] == 16


def test_a_loop_with_a_sync_for_each_step_stays_as_it_is(tmp_path):
    text = fully_async(5, 4)
    for sync in range(1, 6):
        text = text.replace(f"global_step:{4 * sync - 1} ", f"global_step:{sync} ")
    read = read_verl_console(write(tmp_path, text)).read
    assert list(read.records) == [1, 2, 3, 4, 5] and not read.verdicts
    assert not any("steps_logged" in record.scalars for record in read.records.values())


def test_the_import_says_that_rows_stand_for_several_steps(tmp_path):
    spec = spec_of("b", [write(tmp_path, fully_async(6, 4))], trainer="verl", engine="vllm", version="0.9.1")
    _, metadata, _ = imported(tmp_path / "res", spec)
    assert "stand for 3 to 4 training steps each" in said(metadata, "rows-of-several-steps")
    assert "missing-steps" not in {v["code"] for v in metadata["verdicts"]}
