"""verl 0.9.1's own loop from data to metrics, with its reward workers; actor and engine are stand-ins."""

import pytest

from common.contracts import SamplesLine
from trainers.verl.driver.samples import place_of

from ...attempts import read_lines
from ...test_contracts import problems
from . import test_verl_grpo as attempts

pytestmark = pytest.mark.full("verl's newer loops in Ray")

AGES = ("off_policy/trajectory_staleness", "off_policy/trajectory_spans", "num_turns")
ONE_OF_EACH = {
    "transfer_queue": {"backend": {"SimpleStorage": {"num_data_storage_units": 1}}},
    "reward": {"num_workers": 1},
    "actor_rollout_ref": {"rollout": {"agent": {"num_workers": 1}, "tensor_model_parallel_size": 1}},
}


def test_a_prompt_is_found_among_verls_texts():
    prompt = [{"role": "system", "content": "Sum. "}, {"role": "user", "content": "1 + 1"}]
    texts = ["user\n1 + 1", "system\nSum.\nuser\n1 + 17\n", "system\nSum.\nuser\n1 + 1\n"]
    assert place_of(prompt, texts) == 2
    assert place_of([{"role": "user", "content": "2 + 2"}], texts) is None


def check_samples(folder, steps):
    """The same first prompts after each of those steps, with each reward; and no other file of verl's."""
    lines = read_lines(folder / "samples.jsonl")
    assert [line["step"] for line in lines] == steps
    assert not list(folder.glob("**/[0-9]*.jsonl"))
    for line in lines:
        assert problems(SamplesLine, line) == [] and line["problem"] is None
        assert line["how"] == "verl's own validation, greedy"
        assert [one["row"] for one in line["samples"]] == [0, 1, 2]
        assert all(one["completion"] and list(one["rewards"]) == ["phi4", "length"] for one in line["samples"])
        assert [one["prompt"] for one in line["samples"]] == [one["prompt"] for one in lines[0]["samples"]]


def test_rewards_come_by_way_of_the_queue_and_lost_completions_are_told(warm_verl, tmp_path, monkeypatch):
    engine = {"verl.trainer.ppo.v1.trainer_base": ("answering_engine", "patch")}
    monkeypatch.setattr(attempts, "STANDIN", engine)
    monkeypatch.setitem(attempts.OPTIONS, "0.9.1", ONE_OF_EACH)
    bench = attempts.Bench("0.9.1", warm_verl("0.9.1"), tmp_path)
    (tmp_path / "fail-once").touch()
    with attempts.ray_of(bench):
        folder = bench.order("loop", 1, steps=2, gpus_per_node=1, beta=0.04, samples=3, test_steps=1)
        assert bench.finish(folder) == 0, bench.log(folder)
    first, second = attempts.lines_of(folder)
    assert (len(first["samples"]["response_length"]), first["scalars"]["missing_completions"]) == (7, 1)
    assert "step 1 lacks 1 completions" in bench.log(folder)
    assert "looks for responses every 0.1 s" in bench.log(folder), "verl itself looks after 2 s: gen is rounded up"
    assert len(second["samples"]["response_length"]) == 8
    assert "missing_completions" not in second["scalars"]
    check_samples(folder, [0, 1, 2])
    for step, line in enumerate((first, second), 1):
        # phi4 gives -9/13 to 8/13, and half of length's, which is between 0 and 1, is added.
        assert -0.7 <= line["scalars"]["critic/score/min"] < line["scalars"]["critic/score/max"] <= 1.12
        mean = {name: line["scalars"][f"rewards/{name}/mean"] for name in ("phi4", "length")}
        assert line["scalars"]["critic/score/mean"] == pytest.approx(mean["phi4"] + 0.5 * mean["length"], abs=1e-5)
        # Of the same tokens as verl's own comparison.
        assert line["scalars"]["mismatch/k3"] == pytest.approx(line["scalars"]["rollout_corr/k3_kl"], abs=1e-6)
        assert 0 < line["scalars"]["mismatch/abs"] < 1
        assert "shortened_responses" not in line["scalars"]
        # The engine says that its weights are of step 0. The synchronous loop logs ages, spans and turns, too.
        logged = [line["scalars"][f"training/{of}/mean"] for of in AGES]
        assert logged[:2] == [step - 1.0, 1.0] and logged[2] >= 1
        assert {"timing_s/gen", "timing_s/old_log_prob", "timing_s/ref", "timing_s/adv"} <= line["scalars"].keys()
