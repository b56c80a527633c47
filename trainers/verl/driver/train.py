"""Runs one attempt of verl's GRPO: `python -m trainers.verl.driver.train <attempt.json>`.

This process prepares the inputs, starts verl's TaskRunner in the Ray cluster of RAY_ADDRESS, and waits. Exit codes: 0
done, 1 unexpected error (traceback in the log), 2 user error (one line), 75 stopped, to be requeued.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from common.dotted import flatten
from common.errors import UserError
from common.files import read_json, write_json
from common.retry import exists, retry_io
from node.attempt import Inputs, Job, read_attempt, read_spec, require_working_gpus, require_working_nodes, write_done
from node.built_in_rewards import reward_name
from node.exit_codes import RequeueError, run
from node.hardware import THREAD_VARIABLES, tracker_environment
from node.rewards import reward_functions
from node.seeds import engine_seed
from trainers.verl.driver import checkpoints as verl_checkpoints
from trainers.verl.driver import reward as verl_reward
from trainers.verl.driver import step_hooks
from trainers.verl.driver.batches import with_log_probs
from trainers.verl.driver.composed import check, compose, job_overrides
from trainers.verl.driver.composed import resolved as resolved  # of the rule `settings`
from trainers.verl.driver.engines import ENGINE
from trainers.verl.driver.in_ray import Stop, run_verl
from trainers.verl.driver.samples import log_validations, take_samples

_PACKAGES = (
    *("torch", "verl", "vllm", "sglang", "sgl-kernel", "sglang-kernel", "flash-attn", "flashinfer-python", "ray"),
    *("transformers", "tensordict", "TransferQueue", "datasets", "peft", "numpy", "wandb", "math-verify"),
)
_SHARDS = {"model": "model", "optimizer": "optim", "extra": "extra_state"}


def train(attempt: dict[str, Any], stop: Stop) -> None:
    """Train one attempt to its end, and write done.json; `RequeueError` if it is stopped before."""
    job = Job(attempt, read_spec(attempt), Inputs(attempt), time.time(), sorted(os.sched_getaffinity(0)))
    workload = job.spec["workload"]
    if not os.environ.get("RAY_ADDRESS"):
        raise UserError("RAY_ADDRESS is not set: the job on the node starts a Ray cluster and sets it")
    for function in reward_functions(workload["rewards"], workload.get("max_response_length")):
        function.close()  # raises for wrong names
    job.inputs.require_unchanged()
    require_working_gpus(attempt, str(job.spec["stack"]))
    os.environ.update(tracker_environment(os.environ, attempt, str(job.spec["experiment"])))
    composed = _composed(job)
    _require_rows(job.inputs, int(composed["data"]["train_batch_size"]))
    gpus = int(composed["trainer"]["n_gpus_per_node"])
    resumed_from = prepared_checkpoints(attempt, composed, gpus * int(composed["trainer"]["nnodes"]))
    steps = int(composed["trainer"]["total_training_steps"])
    environment = _environment(attempt, gpus)
    stop.check()
    if (resumed_from or 0) < steps:
        if resumed_from:
            print(f"resuming from step {resumed_from}", flush=True)
        check_nodes = partial(require_working_nodes, attempt, str(job.spec["stack"]), stop.check)
        kept = attempt.get("env", {})
        config, cpus = _config(composed, resumed_from), int(job.spec.get("least_cpus", 1))
        count = int(workload.get("samples") or 0)
        if count:
            log_validations(config, job.folder)
        hooked = _hook_settings(job)
        try:
            run_verl(config, hooked, environment, kept, stop, cpus, check_nodes)
        finally:
            if count:
                take_samples(config, job.folder, job.inputs.model, count, hooked.rewards)
    first, last = _steps_done(job.folder, resumed_from or 0, steps)
    write_done(
        job,
        first_step=first,
        last_step=last,
        packages=_PACKAGES,
        hardware=job.hardware(int(os.environ.get("OMP_NUM_THREADS", attempt["cpus"]))),
        trainer=flatten(composed),
        engine=_engine(composed, job.folder),
    )


def _composed(job: Job) -> dict[str, Any]:
    """verl's complete configuration: the plan's settings and those that only this node knows."""
    attempt, inputs, workload = job.attempt, job.inputs, job.spec["workload"]
    settings = job.spec["trainer_args"]
    version = str(settings["version"])
    mine = job_overrides(
        version,
        train_files=str(inputs.data),
        val_files=str(inputs.test or inputs.data),
        model=str(inputs.model),
        checkpoints=str(attempt["checkpoint_dir"]),
        project=str(os.environ["WANDB_PROJECT"]),
        run_id=str(attempt["run_id"]),
        reward_file=str(Path(verl_reward.__file__).resolve()),
        reward_kwargs={
            "rewards_file": str(_rewards_file(job)),
            "tokenizer": str(inputs.model),
            "max_response_length": workload.get("max_response_length"),
        },
    )
    composed = compose(version, [*settings["overrides"], *mine])
    check(version, composed)
    with_log_probs(composed["actor_rollout_ref"]["rollout"])
    return composed


def _rewards_file(job: Job) -> Path:
    """The workload's rewards and the data, for `compute_score`."""
    file, inputs = job.folder / "rewards.json", job.inputs
    rewards = job.spec["workload"]["rewards"]
    content = {"rewards": rewards, "data": [str(path) for path in (inputs.data, inputs.test) if path]}
    retry_io(lambda: write_json(file, content), "the attempt's files")
    return file


def _require_rows(inputs: Inputs, prompts: int) -> None:
    """`UserError` if the data is smaller than one step; 0.9.1 then divides by zero after the engine has started."""
    rows = inputs.content["data"].get("rows")
    if rows is not None and rows < prompts:
        raise UserError(
            f"a step takes {prompts} prompts (workload.batch_size / num_generations), and the data has {rows} rows; "
            "verl needs one full step: lower batch_size, or give more rows"
        )


def _config(composed: dict[str, Any], resumed_from: int | None) -> Any:
    """The configuration as Hydra passes it to verl."""
    from omegaconf import OmegaConf

    config = OmegaConf.create(composed)
    OmegaConf.set_struct(config, True)
    rollout = config.actor_rollout_ref.rollout
    # 0.4.1 has none: it would be the seed of each request.
    if "seed" in rollout:
        rollout.seed = engine_seed(int(rollout.seed), resumed_from or 0)
    config.trainer.resume_mode = "resume_path" if resumed_from else "disable"
    if resumed_from:
        config.trainer.resume_from_path = f"{config.trainer.default_local_dir}/global_step_{resumed_from}"
        config.trainer.val_before_train = False  # only at the start of the run
    return config


def prepared_checkpoints(attempt: Mapping[str, Any], composed: Mapping[str, Any], world_size: int) -> int | None:
    """Prepare a run's checkpoints, and return the step that verl resumes from."""
    actor = composed["actor_rollout_ref"]["actor"]
    if actor["strategy"] not in ("fsdp", "fsdp2"):
        raise UserError(
            f"actor_rollout_ref.actor.strategy is {actor['strategy']!r}; rolloutbench can check only "
            "checkpoints of fsdp and fsdp2: use one of them"
        )
    contents = [_SHARDS[name] for name in actor["checkpoint"]["load_contents"] if name in _SHARDS]
    loop = composed["trainer"]
    has_queue = bool(loop.get("use_v1")) and loop["v1"]["trainer_mode"] != "sync"
    return verl_checkpoints.prepare(Path(attempt["checkpoint_dir"]), world_size, contents, has_queue)


def _environment(attempt: Mapping[str, Any], gpus: int) -> dict[str, str]:
    """Variables for this process and all of the job's Ray processes, in addition to their node's Ray environment.

    Each GPU has a worker, and by default each worker would start threads for all CPUs. Workers are not pinned: engines
    and trainer take turns in separate processes. Variables that the arm sets are kept.
    """
    threads = str(max(1, int(attempt["cpus"]) // max(1, gpus)))
    ours = {
        **dict.fromkeys(THREAD_VARIABLES, threads),
        "HF_HUB_OFFLINE": "1",  # the inputs are already on disk
        "VLLM_NO_USAGE_STATS": "1",
        # What its engines cannot report from their own process is read from the log (engines/vllm/engine.json).
        "VLLM_LOGGING_LEVEL": "INFO",
    }
    added = {name: value for name, value in ours.items() if name not in attempt.get("env", {})}
    os.environ.update(added)
    return added


def _hook_settings(job: Job) -> step_hooks.HookSettings:
    environment = {name: value for name, value in os.environ.items() if name.startswith("WANDB_")}
    rewards = tuple(reward_name(reward) for reward in job.spec["workload"]["rewards"])
    return step_hooks.HookSettings(job.folder, environment, rewards)


def _steps_done(folder: Path, resumed_from: int, steps: int) -> tuple[int | None, int]:
    """The first step of this attempt (None if all were already done) and the last.

    `RequeueError` if it was stopped before the run's last step.
    """
    metrics = folder / "metrics.jsonl"
    text = retry_io(lambda: metrics.read_text(encoding="utf-8") if exists(metrics) else "", "the attempt's files")
    done = [int(json.loads(line)["step"]) for line in text.splitlines()]
    stopped = retry_io(lambda: exists(folder / step_hooks.STOP), "the attempt's files")
    if stopped and not done:
        raise RequeueError("before the first step")
    last = done[-1] if done else resumed_from
    if stopped and last < steps:
        raise RequeueError(f"after step {last} of {steps}, with a checkpoint")
    if last < steps:
        raise RuntimeError(f"verl ended after step {last} of {steps} without an error")
    return (done[0] if done else None), last


def _engine(composed: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The engine's settings as given to verl, and as the engine itself reports them."""
    rollout = composed["actor_rollout_ref"]["rollout"]
    given = {name: value for name, value in rollout.items() if isinstance(value, bool | int | float | str)}
    file = folder / ENGINE
    reported: dict[str, Any] = retry_io(lambda: read_json(file) if exists(file) else {}, "the attempt's files")
    return given | reported


def main() -> None:
    """Train the attempt on the command line."""
    attempt = read_attempt(sys.argv[1:])
    retry_io(lambda: Path(attempt["attempt_dir"]).mkdir(parents=True, exist_ok=True), "the attempt's files")
    stop = Stop(Path(attempt["attempt_dir"]))
    stop.install()
    train(attempt, stop)


if __name__ == "__main__":
    code = run(main)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: a thread may still wait for Ray, which then aborts this process with another code.
    os._exit(code)
