"""Do metrics.jsonl and verl's own loggers hold the same numbers?"""

import json
import math
import sys

import pytest

from trainers.registry import trainer_named

from ... import patience
from ...attempts import read_lines
from .environments import VERSIONS
from .runs import log_steps, write_verl_run

pytestmark = pytest.mark.full("steps of both releases' own loops")


RESPONSE = 40
"""The longest response of log_steps.py."""


def history_of(folder):
    """The rows of wandb's file, read by the controller's wandb."""
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    done = patience.run([sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)], 60)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    return [record["history"]["item"] for record in records if record["type"] == "history"]


@pytest.mark.parametrize("version", VERSIONS)
def test_metrics_are_wandbs_to_the_last_digit(version, warm_verl, tmp_path):
    folder = write_verl_run(warm_verl(version), tmp_path / "vllm-s0", version, 3) / "attempts" / "1"
    lines, rows = read_lines(folder / "metrics.jsonl"), history_of(folder)
    assert [line["step"] for line in lines] == [1, 2, 3]  # the validation before them is no step
    assert [line["resumed"] for line in lines] == [False] * 3
    assert [row["_step"] for row in rows] == [0, 1, 2, 3]
    for line, row in zip(lines, rows[1:], strict=True):
        scalars = dict(line["scalars"])
        responses = line["samples"]["response_length"]
        assert scalars.pop("response_tokens") == sum(responses)
        assert len(responses) == 8
        assert sum(responses) / 8 == scalars["response_length/mean"]
        assert max(responses) == scalars["response_length/max"]
        assert scalars.pop("prompt_tokens") + sum(responses) == scalars["perf/total_num_tokens"]
        assert scalars == {name: value for name, value in row.items() if not name.startswith("_")}
        assert line["phases"] == {}
        # The trainer's log-probabilities are 0.1 below the engine's; verl logs no mean of |difference|.
        assert scalars["mismatch/abs"] == pytest.approx(0.1, rel=1e-4)
        assert scalars["mismatch/k3"] == pytest.approx(math.exp(-0.1) + 0.1 - 1, rel=1e-3)
        # The first response has no end token: its engine cut it short, unless it is as long as allowed.
        assert scalars.get("shortened_responses", 0) == (responses[0] < RESPONSE)
        # Each reward by itself, under TRL's names, which verl would not log; one without a value is in no mean.
        assert (scalars["rewards/accuracy/mean"], scalars["rewards/mine/mean"]) == (0.5, 4.0)
        assert scalars["rewards/accuracy/std"] == pytest.approx((2 / 7) ** 0.5)
        assert scalars["rewards/mine/failed"] == 1 and "rewards/accuracy/failed" not in scalars
    log = (folder / "log").read_text()
    assert f"step 2/3  {lines[1]['scalars']['timing_s/step']:.2f} s  reward " in log
    if version != "0.4.1":
        (_, *own) = read_lines(folder / "verl.jsonl")
        assert [line["data"]["timing_s/gen"] for line in own] == [line["scalars"]["timing_s/gen"] for line in lines]


def test_lost_completions_are_told(warm_verl, tmp_path):
    done = log_steps(warm_verl("0.9.1"), tmp_path, "0.9.1", steps=3, validate=False, lose_at=2)
    assert done.returncode == 0, done.stderr
    missing = [line["scalars"].get("missing_completions") for line in read_lines(tmp_path / "metrics.jsonl")]
    assert missing == [None, 2, None]
    assert "step 2 lacks 2 completions" in done.stdout


def test_a_filtered_distribution_has_no_mismatch(warm_verl, tmp_path):
    done = log_steps(warm_verl("0.9.1"), tmp_path, "0.9.1", steps=1, validate=False, top_p=0.9)
    assert done.returncode == 0, done.stderr
    (line,) = read_lines(tmp_path / "metrics.jsonl")
    assert not any(name.startswith("mismatch/") for name in line["scalars"])
    assert "mismatch/* are not logged: top_p is 0.9" in done.stdout


def test_where_verl_trains_on_the_engines_own_log_probabilities_no_zero_is_logged(warm_verl, tmp_path):
    """The actor then logs the comparison of its update's pass."""
    done = log_steps(warm_verl("0.9.1"), tmp_path, "0.9.1", steps=1, validate=False, bypass=True)
    assert done.returncode == 0, done.stderr
    (line,) = read_lines(tmp_path / "metrics.jsonl")
    assert not any(name.startswith("mismatch/") for name in line["scalars"])
    assert "actor/rollout_corr/k3_kl" in trainer_named("verl").logs.quantities["rollout_k3"]


def test_gen_is_not_rounded_up_by_verls_wait(warm_verl, tmp_path):
    done = log_steps(warm_verl("0.9.1"), tmp_path, "0.9.1", steps=3, validate=False, ready_s=0.5)
    assert done.returncode == 0, done.stderr
    gen = [line["scalars"]["timing_s/gen"] for line in read_lines(tmp_path / "metrics.jsonl")]
    assert 0.5 <= min(gen) < 1.5, "verl itself looks again after 2 s"


def test_a_request_that_comes_late_in_a_step_saves_it_and_ends(warm_verl, tmp_path):
    done = log_steps(warm_verl("0.4.1"), tmp_path, "0.4.1", steps=9, first=4, validate=False, stop_at=5)
    assert done.returncode == 0, done.stderr
    lines = read_lines(tmp_path / "metrics.jsonl")
    assert [(line["step"], line["resumed"]) for line in lines] == [(4, True), (5, False)]
    assert [path.name for path in tmp_path.glob("saved-*")] == ["saved-5"]
    assert (tmp_path / "training").exists()

    # Before the first step there is nothing to save.
    again = log_steps(warm_verl("0.4.1"), tmp_path, "0.4.1", steps=9, first=6, validate=False)
    assert again.returncode == 0, again.stderr
    assert len(read_lines(tmp_path / "metrics.jsonl")) == 2
