import json
import os
import sys

import make_results
import pytest

from analysis.attempts import read_metrics_jsonl
from analysis.sources.wandb_files import read_wandb_offline_folder
from common.errors import UserError
from tests.patience import run

# A real offline run: the phases in the row that holds train/global_step, other rows before and after it.
WRITER = """
import sys, json, wandb
run = wandb.init(project="test", settings=wandb.Settings(x_disable_stats=True, x_disable_meta=True, console="off"))
for row in json.load(open(sys.argv[1])):
    run.log(row)
run.finish()
"""


def wandb_row(row):
    phases = {f"timing_s/{path}": seconds for path, seconds in row["phases"].items()}
    return {**phases, **row["scalars"], "train/global_step": row["step"]}


def write_wandb(attempt_dir, rows, tmp_path):
    """A real offline wandb file with these rows, in the attempt's folder; returns its path."""
    attempt_dir.mkdir(parents=True, exist_ok=True)
    given = tmp_path / "rows.json"
    given.write_text(json.dumps(rows))
    env = os.environ | {"WANDB_MODE": "offline", "WANDB_DIR": str(attempt_dir), "WANDB_SILENT": "true"}
    assert run([sys.executable, "-c", WRITER, str(given)], 60, env=env, cwd=tmp_path).returncode == 0
    (path,) = attempt_dir.glob("wandb/offline-run-*/run-*.wandb")
    return path


def rows(steps=3):
    phases = make_results.phases_from_leaves(make_results.leaves(1 / 3, 0.1), slack_s=0.01)
    return [make_results.metrics_row(step, phases) for step in range(1, steps + 1)]


@pytest.fixture(scope="module")
def wandb_file(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("wandb")
    logged = []
    for row in rows():
        logged += [
            {"profiling/Time taken: x": 1.0},
            wandb_row(row),
            {"eval": float("nan"), "train/global_step": row["step"]},
        ]
    logged.append({"train_runtime": 5.0, "train/reward": -1.0, "train/global_step": 3})
    logged.append({"profiling/last": float("inf")})
    return write_wandb(tmp_path / "attempts" / "1", logged, tmp_path)


def test_truncated_last_line_is_ignored(tmp_path):
    path = tmp_path / "metrics.jsonl"
    make_results.write_rows(path, rows())
    path.write_bytes(path.read_bytes()[:-40])
    read = read_metrics_jsonl(path, "here")
    assert list(read.records) == [1, 2] and not read.verdicts


@pytest.mark.parametrize(
    "line",
    ["{", "[]", '{"step": 0}', '{"step": 2.5}', '{"step": true}', '{"step": 2, "phases": {"step": "x"}}', "\x00\x00"],
)
def test_corrupt_middle_line_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    first, last = (json.dumps(r) for r in rows(2))
    path.write_text(f"{first}\n{line}\n{last}\n")
    read = read_metrics_jsonl(path, "vllm-s0: attempts/1/metrics.jsonl")
    assert list(read.records) == [1, 2]
    (verdict,) = read.verdicts
    assert verdict.code == "corrupt-line" and "attempts/1/metrics.jsonl:2 " in verdict.text


def test_duplicate_step_is_named_and_the_later_line_counts(tmp_path):
    path = tmp_path / "metrics.jsonl"
    again = rows(1)[0] | {"phases": {"step": 9.0}}
    make_results.write_rows(path, [*rows(2), again])
    read = read_metrics_jsonl(path, "here")
    assert read.records[1].phases == {"step": 9.0} and read.records[1].line == 3
    (verdict,) = read.verdicts
    assert verdict.code == "duplicate-step" and "lines 1 and 3" in verdict.text


@pytest.mark.parametrize("head", [b"not wandb's", b":W&B\x00\x00\x00 a newer format", b":W&"])
def test_a_damaged_wandb_file_is_to_be_copied_anew(tmp_path, head):
    damaged = tmp_path / "run-x.wandb"
    damaged.write_bytes(head + bytes(range(256)))
    with pytest.raises(UserError) as caught:
        read_wandb_offline_folder(damaged)
    said = str(caught.value)
    assert "it does not begin with wandb's header); copy it again" in said and "wandb:entity/project/id" in said
    assert "leet" not in said and "version" not in said
