"""A row counts for the training steps that it stands for: a thinned or summed log gives the whole log's numbers."""

import json

import pytest
from test_imported import write

from analysis.sources.wandb_rows import steps_of
from trainers.registry import trainer_named
from trainers.verl.console import read_verl_console


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
    reader = next(form.read for form in trainer_named("verl").logs.formats if form.name == "verl-jsonl")
    history = steps_of([(file, n, {"_step": n, **row["data"]}) for n, row in enumerate(rows, start=1)], "log")
    for records in (reader(file).read.records, history.records):
        assert {s: dict(r.scalars) for s, r in records.items()} == {s: dict(r.scalars) for s, r in console.items()}


def test_a_loop_with_a_sync_for_each_step_stays_as_it_is(tmp_path):
    text = fully_async(5, 4)
    for sync in range(1, 6):
        text = text.replace(f"global_step:{4 * sync - 1} ", f"global_step:{sync} ")
    read = read_verl_console(write(tmp_path, text)).read
    assert list(read.records) == [1, 2, 3, 4, 5] and not read.verdicts
    assert not any("steps_logged" in record.scalars for record in read.records.values())
