"""Trains an attempt with transformers' Trainer: what the drivers of TRL and of ms-swift do alike."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.contracts import SpecFile
from node.attempt import (
    Inputs,
    read_attempt,
    read_spec,
    require_as_registered,
    require_working_gpus,
    write_done,
)
from node.checkpoints import newest_checkpoint
from node.exit_codes import RequeueError, StopRequest, run, show_stacks_on_request
from node.hardware import OtherLoad, hardware, pin_cpus, set_environment, told_environment
from node.phase_clock import PhaseClock, time_behind
from node.rewards import RewardFunction, reward_functions
from node.tracker import Tracker

OWNED: Mapping[str, Any] = {
    "report_to": ["wandb"],
    "disable_tqdm": True,
    "logging_strategy": "steps",
    "logging_steps": 1,
    "logging_first_step": False,
    # Without it a step with a loss of NaN would be logged as the mean of earlier ones.
    "logging_nan_inf_filter": False,
}
"""TrainingArguments' fields that a job sets itself, so that every step is logged."""
OF_AN_ATTEMPT = frozenset({"output_dir", "run_name", "logging_dir", "local_rank", "deepspeed_plugin", "_n_gpu"})
"""Those that each attempt says for itself, or the machine that happens to resolve the settings."""


@dataclass(frozen=True)
class Job:
    """An attempt that has begun: what it was ordered, and its share of the node."""

    attempt: Mapping[str, Any]
    spec: SpecFile
    inputs: Inputs
    stop: StopRequest
    started: float
    affinity: list[int]
    rewards: list[RewardFunction]

    @property
    def weights(self) -> list[float]:
        """Of the rewards, in their order."""
        return [float(reward.get("weight", 1.0)) for reward in self.spec["workload"]["rewards"]]


def begin(attempt: dict[str, Any], stop: StopRequest) -> Job:
    """Take the job's CPUs, set its environment and load its rewards; nothing large is imported yet."""
    started, spec, inputs = time.time(), read_spec(attempt), Inputs(attempt)
    affinity = pin_cpus(int(attempt["cpus"]))
    set_environment(os.environ, affinity, attempt, str(spec["experiment"]))
    workload = spec["workload"]
    failures = Path(attempt["attempt_dir"]) / "reward_failures.jsonl"
    # A wrong name is told before minutes of imports.
    rewards = reward_functions(workload["rewards"], workload.get("max_response_length"), failures=failures)
    for folder in ("attempt_dir", "checkpoint_dir"):
        Path(attempt[folder]).mkdir(parents=True, exist_ok=True)
    if workload.get("gpus_per_node"):
        require_working_gpus(attempt, str(spec["stack"]))
    else:
        require_as_registered(attempt, str(spec["stack"]))
    return Job(attempt, spec, inputs, stop, started, affinity, rewards)


def train_to_end(
    job: Job,
    trainer: Any,
    hook: Callable[[PhaseClock, Any], None],
    *,
    packages: Iterable[str],
    engine: Mapping[str, Any],
    generating: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> None:
    """Train from the newest checkpoint to the last step, and write done.json; `RequeueError` if stopped before.

    `hook` puts the trainer's own timers on the clock, and tells the `StepLog` of each generation. `generating`
    surrounds a generation with the trainer's own model.
    """
    import torch

    job.stop.install()
    checkpoint = newest_checkpoint(Path(job.attempt["checkpoint_dir"]))
    tracker = Tracker(trainer)
    log = _logged(job, trainer, hook, checkpoint.step if checkpoint else 0, generating)
    last = trainer.args.max_steps
    if checkpoint:
        print(f"resuming from step {checkpoint.step}", flush=True)
    if checkpoint is None or checkpoint.step < last:
        # transformers trains one step too many if it is started on a checkpoint of the last one.
        job.stop.training = True
        trainer.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint else None)
    tracker.finish()
    if log.last_step < last:
        raise RequeueError(f"after step {log.last_step} of {last}, with a checkpoint")
    if not trainer.accelerator.is_main_process:
        return
    write_done(
        job.attempt,
        job.inputs,
        started=job.started,
        first_step=log.first_step,
        last_step=log.last_step,
        packages=packages,
        hardware=hardware(int(job.attempt["cpus"]), torch.get_num_threads(), job.affinity),
        resolved={"trainer": trainer.args.to_dict(), "engine": engine, "environment": told_environment(os.environ)},
    )


def _logged(
    job: Job,
    trainer: Any,
    hook: Callable[[PhaseClock, Any], None],
    resumed_from: int,
    generating: Callable[[], AbstractContextManager[Any]],
) -> Any:
    """The trainer's `StepLog`, with which it writes each step, and before it what writes sample completions."""
    import torch
    from transformers import PrinterCallback

    from node.hf_samples import SampleLog
    from node.step_log import StepLog

    on_gpu = trainer.args.device.type == "cuda"
    clock = PhaseClock(time_behind(torch.cuda.synchronize)) if on_gpu else PhaseClock()
    path = Path(job.attempt["attempt_dir"]) / "metrics.jsonl"
    load = OtherLoad(sorted(os.sched_getaffinity(0)))
    log = StepLog(clock, trainer, path, resumed_from, job.stop, load)
    hook(clock, log)
    trainer.remove_callback(PrinterCallback)  # it prints each step's whole dict; ours prints one line
    workload = job.spec["workload"]
    if workload.get("samples"):
        prompts, more = job.inputs.test or job.inputs.data, (path.parent, log, job.stop, generating)
        trainer.add_callback(SampleLog(trainer, workload, prompts, job.rewards, *more))
    trainer.add_callback(log)
    return log


def exit_code(train: Callable[[dict[str, Any], StopRequest], None]) -> int:
    """Read the order on the command line and train it; 0, 1, 2 or 75 as node/exit_codes.py says."""

    def main() -> None:
        attempt = read_attempt(sys.argv[1:])
        stop = StopRequest()
        stop.install()
        show_stacks_on_request()
        train(attempt, stop)

    return run(main)
