"""Inputs made by a stack, and orders for attempts."""

import contextlib
import json
import os
from pathlib import Path

import psutil
import pytest

from common.dotted import flatten
from common.files import inputs_sha256
from engines import engine_named
from node.hardware import set_environment

from . import patience
from .warm import WarmPython

ROOT = Path(__file__).resolve().parents[1]
TRANSFORMERS, VLLM, SGLANG = "trl-transformers-cpu", "trl-vllm-cpu", "trl-sglang-cpu"
DATA = {
    "source": "builtin:arithmetic", "revision": None, "subset": None, "split": "train", "prompt_column": "question",
    "answer_column": "answer", "answer_after": None, "system_prompt": None, "rows": 32, "seed": 0,
}  # fmt: skip
MODEL = {"source": "builtin:tiny-qwen2", "revision": None, "seed": 0}
REWARDS = [
    {"name": "accuracy", "weight": 1.0, "options": {}},
    {"name": "format", "weight": 0.5, "options": {}},
    {"name": "length", "weight": 0.2, "options": {"target": 40}},
]
TRAINER_ARGS = {
    "max_steps": 2, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_generations": 4,
    "max_completion_length": 16, "temperature": 0.9, "top_p": 1.0, "learning_rate": 1e-3,
    "lr_scheduler_type": "constant", "beta": 0.04, "loss_type": "grpo", "reward_weights": [1.0, 0.5, 0.2],
    "bf16": False, "seed": 0, "save_strategy": "steps", "save_steps": 1, "save_total_limit": 2,
    "vllm_importance_sampling_correction": False, "use_bias_correction_kl": False, "use_cpu": True,
    "gradient_checkpointing": False,
}  # fmt: skip
# What vLLM compiles for a model is kept by the model's path, which is another in each test.
COMPILER = {"CXX": str(Path(__file__).with_name("g++-once"))}
# For tests in which the engine is not what is tested. With vLLM's own switch for its tests on CPUs
# (vllm/platforms/cpu.py) the model computes with PyTorch's kernels: compiling its own takes twenty seconds. With
# torch's (torch/_dynamo/config.py) nothing is traced either: six.
EAGER = {"VLLM_CPU_CI_ENV": "1", "TORCHDYNAMO_DISABLE": "1"}
VLLM_ARGS = {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 64}
TRAINED_ON = 2
"""CPUs of an attempt."""
SGLANG_ARGS = {"use_sglang": True, "sglang_max_total_tokens": 2 * 8 * 64}
TRAIN = """
import sys
from node.attempt import exit_code
from trainers.trl.driver.train import train
sys.exit(exit_code(train))
"""
"""Trains an attempt with TRL; a test writes before it what it changes."""


def job_environment(**changes):
    """The environment of a job in a test: no network, no user's tracker, a secret that must not be written."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    ours = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "WANDB_API_KEY": "s3cret" * 7, **COMPILER}
    return {**kept, **ours, **changes}


_warm = {}


def run_job(python, module, *arguments, **changes):
    """Run one of our modules in a stack's Python, and return what it printed."""
    return run_warm(python, "-m", module, *arguments, **changes)


def run_warm(python, *arguments, **changes):
    """As `run_python`, in a fork of a `warm` Python."""
    return warm(python, **changes).run(*arguments)


def warm(python, **changes):
    """A Python that has imported the stack's trainer and engine already; the three that were used last are kept."""
    key = (python, *sorted(changes.items()))
    if key not in _warm:
        if len(_warm) == 3:
            _warm.pop(next(iter(_warm))).close()
        environment, imports_in = job_environment(**changes), dict[str, str]()
        set_environment(imports_in, list(range(TRAINED_ON)), {"attempt_dir": "", "fingerprint": ""}, "")
        _warm[key] = WarmPython(python, environment, imports_in)
    _warm[key] = _warm.pop(key)
    return _warm[key]


def run_python(python, *arguments, **changes):
    """Run a stack's Python where its jobs run, with `changes` of their environment, and return what it said."""
    return patience.run([str(python), *map(str, arguments)], 300, cwd=ROOT, env=job_environment(**changes))


def prepared(python, folder, request):
    """inputs.json of a request, with a tiny reward model in `folder/classifier`, made by one process of a stack."""
    models = {"reward_models": [{"model": str(folder / "classifier"), "revision": None}]}
    (folder / "request.json").write_text(json.dumps(models | request))
    made = Path(__file__).with_name("classifier.py")
    done = run_job(python, f"tests.{made.stem}", folder / "classifier", folder / "request.json", folder / "made")
    assert done.returncode == 0, done.stderr
    return folder / "made" / "inputs.json"


def request_of(workload):
    """What inputs a workload needs."""
    lengths = {key: workload[key] for key in ("max_prompt_length", "max_response_length")}
    return {"data": DATA | workload["data"], "model": workload["model"], **lengths}


def inputs_of(python, folder, workload):
    """inputs.json of a workload, made in a fork of a `WarmPython`."""
    (folder / "request.json").write_text(json.dumps(request_of(workload)))
    done = python.run("-m", "node.inputs", "--request", folder / "request.json", "--out", folder / "made")
    assert done.returncode == 0, done.stderr
    return folder / "made" / "inputs.json"


def reward_model(inputs, **words):
    """The reward model of prepared inputs, as a specification has it."""
    (model,) = json.loads(inputs.read_text())["reward_models"]
    kept = {"weight": 0.4, "max_length": None, "batch_size": 3, "dtype": "float32", "device": "trainer"}
    return {"model": model, "revision": None, "name": "liked", **kept, **words}


@pytest.fixture(scope="session")
def made_inputs(stack_python, tmp_path_factory):
    """inputs.json of 32 sums, the tiny model and a reward model, made by the transformers stack."""
    request = {"data": DATA, "model": MODEL, "max_prompt_length": 48, "max_response_length": 16}
    yield prepared(stack_python(TRANSFORMERS), tmp_path_factory.mktemp("inputs"), request)


def write_attempt(run_folder, inputs, number=1, rewards=None, words=None, **trainer_args):
    """`order_attempt` of a training with TRL."""
    spec = {
        "experiment": "tests",
        "run_id": run_folder.name,
        "stack": VLLM if trainer_args.get("use_vllm") else SGLANG if trainer_args.get("use_sglang") else TRANSFORMERS,
        "workload": {"rewards": rewards or REWARDS, **(words or {})},
        "trainer_args": {**TRAINER_ARGS, **trainer_args},
        "fingerprint": "ab" * 32,
    }
    return order_attempt(run_folder, inputs, spec, number)


def order_attempt(run_folder, inputs, spec, number=1):
    """Write spec.json and an attempt.json as the launcher would; returns the attempt's path."""
    folder = run_folder / "attempts" / str(number)
    folder.mkdir(parents=True)
    (run_folder / "spec.json").write_text(json.dumps(spec))
    attempt = {
        "attempt": number,
        "run_id": spec["run_id"],
        "fingerprint": spec["fingerprint"],
        "spec": str(run_folder / "spec.json"),
        "inputs": str(inputs),
        "inputs_sha256": inputs_sha256(json.loads(inputs.read_text())),
        "attempt_dir": str(folder),
        "checkpoint_dir": str(run_folder / "checkpoints" / spec["fingerprint"][:12]),
        "cpus": TRAINED_ON,
    }
    (folder / "attempt.json").write_text(json.dumps(attempt))
    return folder / "attempt.json"


def read_lines(path):
    """The lines of a metrics.jsonl; the last one may be half written yet."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def signal_job(pid, number):
    """Signal a job as Slurm does, every process of it, the tracker's and an engine's own, too; which they are.

    The trainer hears it when the tracker has ended: a busy machine might have it done before that even begins to.
    """
    job = psutil.Process(pid)
    others = job.children(recursive=True)
    trackers = [one for one in others if one.name() == "wandb-core"]
    for process in others:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
    patience.until(lambda: all(map(patience.has_ended, trackers)), pid)
    job.send_signal(number)
    return [job, *others]


def reported_terms(done):
    """What a run's engine reports of itself, under the names of all engines."""
    engine = done["resolved"]["engine"]
    return engine_named(engine["name"]).reported(flatten(engine))
