"""Runs as verl leaves them: made-up steps that went through verl's own metrics and loggers."""

import json
import time
from pathlib import Path

from common.files import fingerprint_of

INPUTS = {"data_sha256": "d" * 64, "model_sha256": "e" * 64}


def answer_of(python, program, request):
    """What a program prints as its last line, in verl's Python; both are JSON."""
    done = python.run("-c", program, given=json.dumps(request))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def spec_of(run_id, version, steps):
    """A spec.json of verl with vLLM."""
    spec = {
        "spec_version": 1, "experiment": "tests", "run_id": run_id, "arm": "vllm", "trainer": "verl", "engine": "vllm",
        "stack": "verl04-vllm" if version == "0.4.1" else "verl09-vllm", "seed": 0, "factors": {},
        "workload": {"steps": steps, "batch_size": 8, "num_generations": 4, "rewards": [{"name": "accuracy"}]},
        "options": {}, "env": {},
        "trainer_args": {"version": version, "overrides": [f"trainer.total_training_steps={steps}"]},
        "job_module": "trainers.verl.driver.train", "ray": True, "lock_id": "0123456789ab", "inputs_id": "89abcdef",
    }  # fmt: skip
    return {**spec, "fingerprint": fingerprint_of(spec)}


def log_steps(python, folder, version, steps, first=1, validate=True, stop_at=None, lose_at=None, top_p=1.0, **words):
    """Have verl's Python log steps `first` to `steps` into an attempt's folder: metrics.jsonl, wandb's and the log."""
    folder.mkdir(parents=True, exist_ok=True)
    order = {
        "folder": str(folder),
        "version": version,
        "steps": steps,
        "first": first,
        "validate": validate,
        "stop_at": stop_at,
        "lose_at": lose_at,
        **words,
        "sampling": {"top_p": top_p, "top_k": -1},
        "environment": {
            "WANDB_MODE": "offline",
            "WANDB_DIR": str(folder),
            "WANDB_RUN_ID": "0123456789abcdef",
            "WANDB_RESUME": "allow",
            "WANDB_SILENT": "true",
            "WANDB_CONSOLE": "off",
            "VERL_FILE_LOGGER_PATH": str(folder / "verl.jsonl"),
        },
    }
    (folder / "steps.json").write_text(json.dumps(order))
    done = python.run(Path(__file__).with_name("log_steps.py"), folder / "steps.json", cpu_s=150)
    (folder / "log").write_text(done.stdout + done.stderr)
    return done


def write_verl_run(python, folder, version, steps):
    """A finished run of one attempt in `folder`, with the files that the collector reads; returns the folder."""
    spec = spec_of(folder.name, version, steps)
    attempt = folder / "attempts" / "1"
    started = time.time()
    done = log_steps(python, attempt, version, steps)
    assert done.returncode == 0, done.stderr
    order = {"attempt": 1, "run_id": folder.name, "fingerprint": spec["fingerprint"], "inputs_sha256": INPUTS}
    told = {
        "run_id": folder.name, "fingerprint": spec["fingerprint"], "attempt": 1, "first_step": 1, "last_step": steps,
        "steps": steps, "started": started, "finished": time.time(), "inputs": INPUTS,
        "versions": {"python": "3.11", "verl": version},
        "hardware": {"host": "tests", "cpu": "none", "cpus": 2, "threads": 1, "affinity": [0, 1], "memory_gib": 1},
        "resolved": {"trainer": {"trainer.use_v1": True} if version != "0.4.1" else {}, "engine": {"name": "vllm"}},
    }  # fmt: skip
    for path, content in (
        (folder / "spec.json", spec),
        (attempt / "spec.json", spec),
        (attempt / "attempt.json", order),
        (attempt / "done.json", told),
        (folder / "done.json", told),
    ):
        path.write_text(json.dumps(content))
    return folder
