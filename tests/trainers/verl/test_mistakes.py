"""Is each mistake one line, told before a GPU is asked for anything?"""

import hashlib
import json

import pytest

from common.files import tree_sha256

from .environments import VERSIONS
from .runs import answer_of

pytestmark = pytest.mark.full("both releases' own refusals")

# One process tries many orders, since importing verl takes longer than refusing.
REFUSALS = """
import contextlib, io, json, os, sys
from trainers.verl.driver import train as verl_grpo
from node.exit_codes import run
told = {}
for name, [attempt, environment] in json.load(sys.stdin).items():
    os.environ.pop("RAY_ADDRESS", None)
    os.environ.update(environment)
    sys.argv, said = ["verl_grpo", attempt], io.StringIO()
    with contextlib.redirect_stderr(said):
        told[name] = [run(verl_grpo.main), said.getvalue()]
print("\\n" + json.dumps(told))
"""


FITTING = [
    *("data.train_batch_size=4", "trainer.n_gpus_per_node=2", "actor_rollout_ref.actor.ppo_mini_batch_size=4"),
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.rollout.name=vllm",
]


def write_order(folder, version, overrides, **changes):
    """An attempt with a model folder and data that are none: nothing of them is read before they are refused."""
    model, data = folder / "model", folder / "data.parquet"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    data.write_bytes(b"none")
    inputs = {
        "data": {"path": "data.parquet", "sha256": hashlib.sha256(b"none").hexdigest()},
        "model": {"path": "model", "sha256": tree_sha256(model)},
    }
    inputs["model"] |= changes.pop("model", {})
    inputs["data"] |= changes.pop("data", {})
    spec = {
        "experiment": "tests",
        "stack": "verl-tests",
        "workload": {"rewards": changes.pop("rewards", [{"name": "length"}]), "max_response_length": 24},
        "trainer_args": {"version": version, "overrides": overrides},
        "fingerprint": "ab" * 32,
    }
    attempt = {
        "attempt": 1, "run_id": "a", "fingerprint": "ab" * 32, "spec": str(folder / "spec.json"),
        "inputs": str(folder / "inputs.json"), "attempt_dir": str(folder),
        "checkpoint_dir": str(folder / "checkpoints"), "cpus": 2, "env": {}, **changes,
    }  # fmt: skip
    for name, content in (("inputs", inputs), ("spec", spec), ("attempt", attempt)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return str(folder / "attempt.json")


@pytest.mark.parametrize("version", VERSIONS)
def test_mistakes_are_one_line(version, warm_verl, tmp_path):
    good = ["trainer.total_training_steps=2", "algorithm.adv_estimator=grpo"]
    other = next(one for one in VERSIONS if one != version)
    cases = {
        "stack": (write_order(tmp_path / "stack", other, good), f"the settings are for verl {other}, but"),
        "key": (
            write_order(tmp_path / "key", version, [*good, "trainer.total_epoch=2"]),
            "Could not override 'trainer.total_epoch'",
        ),
        "rows": (
            write_order(tmp_path / "rows", version, [*good, *FITTING], data={"rows": 3}),
            "a step takes 4 prompts (workload.batch_size / num_generations), and the data has 3 rows",
        ),
    }
    asked = {name: [order, {"RAY_ADDRESS": "192.0.2.1:1"}] for name, (order, _) in cases.items()}
    cases["ray"] = (write_order(tmp_path / "ray", version, good), "RAY_ADDRESS is not set")
    asked["ray"] = [cases["ray"][0], {}]
    told = answer_of(warm_verl(version), REFUSALS, asked)
    for name, (_, words) in cases.items():
        code, said = told[name]
        assert (code, said.count("\n")) == (2, 1), (name, said)
        assert said.startswith("error: ")
        assert words in said, name
