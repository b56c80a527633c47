"""Lines of metrics.jsonl that are damaged, and a damaged file of wandb."""

import json

import make_results
import pytest

from analysis.collect import read_metrics_jsonl
from analysis.sources.wandb_files import read_wandb_offline_folder
from common.errors import UserError


def rows(steps=3):
    phases = make_results.phases_from_leaves(make_results.leaves(1 / 3, 0.1), slack_s=0.01)
    return [make_results.metrics_row(step, phases) for step in range(1, steps + 1)]


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
