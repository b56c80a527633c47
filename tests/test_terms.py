"""The table of terms through the front door: every run of every arm is in it, and what differs is named."""

import json
import pprint

import pytest

from common.dotted import nested_settings
from tests.trainers.verl.composed_defaults import defaults
from workflow.cli import main

ROLLOUT = "actor_rollout_ref.rollout"
SETTINGS = {
    **{"data.train_batch_size": 64, "data.max_prompt_length": 512, "data.max_response_length": 2048},
    **{"actor_rollout_ref.model.path": "Qwen/Qwen2.5-7B", f"{ROLLOUT}.name": "vllm", f"{ROLLOUT}.n": 8},
    **{"trainer.n_gpus_per_node": 8, "trainer.nnodes": 1, "trainer.total_training_steps": 6},
}
OTHER = {f"{ROLLOUT}.enforce_eager": False, f"{ROLLOUT}.gpu_memory_utilization": 0.9, f"{ROLLOUT}.n": 16}
REWARD = "custom_reward_function.path"


def write_log(file, seconds, **changes):
    """A console of verl 0.4.1 with its whole configuration."""
    name = {"trainer.experiment_name": file.stem}
    config = pprint.pformat(nested_settings({**defaults("0.4.1"), **SETTINGS, **name, **changes}))
    steps = [
        f"step:{n} - response_length/mean:800.000 - timing_s/gen:{0.7 * s:.3f} - timing_s/step:{s:.3f}"
        for n, s in enumerate((seconds * (1 + 0.01 * (n % 3)) for n in range(6)), 1)
    ]
    file.write_text("\n".join(["verl==0.4.1", config, *steps]) + "\n", encoding="utf-8")


@pytest.fixture
def said(tmp_path, monkeypatch, capsys):
    """Writes two runs of two arms with these changes to their settings, and returns what `compare` prints of them."""
    monkeypatch.chdir(tmp_path)

    def compare(a=({}, {}), b=({}, {}), *flags):
        for arm, of_arm, seconds in (("a", a, 50.0), ("b", b, 40.0)):
            for number, changes in enumerate(of_arm):
                write_log(tmp_path / f"{arm}{number}.log", seconds + number, **changes)
        assert main(["compare", "a=a0.log,a1.log", "b=b0.log,b1.log", *(flags or ("--verdict-only",))]) == 0
        return " ".join(capsys.readouterr().out.split())

    return compare


def test_runs_that_differ_in_names_only_are_on_equal_terms(said):
    assert "terms equal (0 unequal of 290 settings)" in said()


@pytest.mark.parametrize("b", [({}, OTHER), (OTHER, {})])
def test_a_run_that_ran_otherwise_than_its_arm_is_named(said, b):
    found = said(b=b)
    assert "0 unequal" not in found and "differ between runs of b" in found
    for name, one, other in (
        ("enforce_eager", "true", "false"),
        ("gpu_memory_utilization", "0.5", "0.9"),
        ("n", "8", "16"),
    ):
        text = found.partition(f"{ROLLOUT}.{name}")[2].partition(", ")[0]
        assert one in text and other in text and "b-s0" in text and "b-s1" in text, name


def test_the_ledger_of_the_report_has_the_values_with_their_runs(said, tmp_path):
    said(({}, {}), ({}, OTHER), "--report", "out")
    ledger = json.loads((tmp_path / "out" / "preflight.json").read_text())["ledger"]
    (row,) = [row for row in ledger if row["setting"] == f"{ROLLOUT}.n"]
    assert (row["verdict"], row["mixed"]) == ("mixed", ["b"])
    assert row["values"] == {"a": "8", "b": "8 (b-s0) | 16 (b-s1)"}
    assert "8 (b-s0) | 16 (b-s1)" in (tmp_path / "out" / "report.html").read_text()


def test_another_file_with_the_reward_function_is_another_reward(said):
    found = said(({REWARD: "fast_reward.py"},) * 2, ({REWARD: "slow_reward.py"},) * 2)
    assert "0 unequal" not in found and f"{REWARD} ('fast_reward.py' in a; 'slow_reward.py' in b)" in found
    # What a file of one name holds in two folders is not known.
    found = said(({REWARD: "/one/reward.py"},) * 2, ({REWARD: "/two/reward.py"},) * 2)
    assert f"1 of 290 settings cannot be verified ({REWARD})" in found and "Unequal terms" not in found
    found = said(({"custom_reward_function.name": "fast"},) * 2, ({"custom_reward_function.name": "slow"},) * 2)
    assert "custom_reward_function.name ('fast' in a; 'slow' in b)" in found


@pytest.mark.parametrize(("n", "said"), [(8, "the engine cannot be verified"), (16, f"{ROLLOUT}.n (8 in a; 16 in b)")])
def test_settings_of_a_part_of_a_configuration_are_terms(tmp_path, monkeypatch, capsys, n, said):
    """What a log lacks is unknown; what both have is compared."""
    monkeypatch.chdir(tmp_path)
    for arm, number in (("a", 8), ("b", n)):
        config = {"actor_rollout_ref": {"rollout": {"name": "vllm", "n": number}}, "trainer": {"nnodes": 1}}
        steps = [
            f"step:{at} - timing_s/gen:30.000 - timing_s/step:{40 + (arm == 'b') + at % 3}.000\n" for at in range(1, 7)
        ]
        (tmp_path / f"{arm}.log").write_text(f"{config}\n{''.join(steps)}", encoding="utf-8")
    assert main(["compare", "a=a.log", "b=b.log", "--release", "0.4.1", "--verdict-only"]) == 0
    found = " ".join(capsys.readouterr().out.split())
    assert said in found and ("Unequal terms" in found) is (n == 16)
