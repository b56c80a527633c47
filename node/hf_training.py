"""Trains an attempt with transformers' Trainer: what the drivers of TRL and of ms-swift do alike."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.messages import did_you_mean
from node.attempt import Job, write_done
from node.checkpoints import Checkpoint, newest_checkpoint
from node.exit_codes import RequeueError, StopRequest
from node.hardware import OtherLoad
from node.over_ranks import rank0_value
from node.phase_clock import PhaseClock, StepClock, clock_after
from node.ranks import local_rank, world_size
from node.rewards import RewardFunction, reward_functions
from node.tracker import Tracker

_OWNED: Mapping[str, Any] = {
    "report_to": ["wandb"],
    "disable_tqdm": True,
    "logging_strategy": "steps",
    "logging_steps": 1,
    "logging_first_step": False,
    # Without it a step with a loss of NaN would be logged as the mean of earlier ones.
    "logging_nan_inf_filter": False,
}
"""TrainingArguments' fields that a job sets itself, so that every step is logged."""
ATTEMPT_FIELDS = frozenset({"output_dir", "run_name", "logging_dir", "local_rank", "deepspeed_plugin", "_n_gpu"})
"""Those that each attempt says for itself, or the machine that happens to resolve the settings."""


def job_rewards(job: Job) -> list[RewardFunction]:
    """The workload's rewards; a wrong name, or a folder that is no reward model, is told before minutes of imports."""
    workload = job.spec["workload"]
    # Lines that two nodes append to one file of a network's may tear one another.
    of_rank = f"-rank{rank}" if (rank := int(os.environ.get("RANK", "0"))) else ""
    failures = job.folder / f"reward_failures{of_rank}.jsonl"
    functions = reward_functions(
        workload["rewards"],
        workload.get("max_response_length"),
        failures=failures,
        models=job.inputs.reward_models,
    )
    for function in functions:
        function.callers = world_size()
    return functions


def reward_weights(rewards: Sequence[Mapping[str, Any]]) -> list[float]:
    """The weights of a workload's rewards, in their order."""
    return [float(reward.get("weight", 1.0)) for reward in rewards]


def owned_settings(attempt: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that the job sets itself: where files land, and that every step is logged."""
    return {**_OWNED, "output_dir": str(attempt["checkpoint_dir"]), "run_name": str(attempt["run_id"])}


def require_settings(given: Mapping[str, Any], known: Any, owned: Mapping[str, Any], no: str) -> None:
    """`UserError` for a setting that the dataclass `known` lacks (`no` says what it is not), or that the job owns."""
    names = [field.name for field in dataclasses.fields(known) if field.init]
    for name, value in given.items():
        if name not in names:
            raise UserError(f"trainer_args.{name} is {no}{did_you_mean(name, names)}; correct it in the arm's options")
        if name in owned and value != owned[name]:
            raise UserError(
                f"trainer_args.{name} is set by the job to {owned[name]!r}, got {value!r}; remove it from the arm's "
                "options"
            )


def require_devices(trainer: str, arguments: Any) -> None:
    """`UserError` where the run is for GPUs and torch does not see one for each process: it would train elsewhere."""
    import torch

    _, wanted = local_rank()
    if not arguments.use_cpu and (seen := torch.cuda.device_count()) != wanted:
        raise UserError(
            f"trainer {trainer} trains on {'one GPU' if wanted == 1 else f'{wanted} GPUs of each node'}, and torch "
            f"sees {seen or 'none'} on this node (CUDA_VISIBLE_DEVICES is "
            f"{os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}); look at the node's driver and at what Slurm gave "
            "the job"
        )
    if arguments.world_size != world_size():
        raise UserError(
            f"trainer {trainer} was started as one of {world_size()} processes, and trains in {arguments.world_size}"
        )


def cpu_fallback(trainer_args: Mapping[str, Any]) -> dict[str, Any]:
    """What settings must hold beside their own where they are only resolved.

    A login node has no GPU, and transformers refuses bfloat16 there unless it is told to stay on the CPU.
    """
    import torch

    return {} if "use_cpu" in trainer_args or torch.cuda.is_available() else {"use_cpu": True}


def number_format(bf16: Any, fp16: Any) -> str:
    """The number format of the passes, in which the engine generates, by TrainingArguments' words."""
    return "bfloat16" if bf16 else "float16" if fp16 else "float32"


def enable_full_fsdp_state() -> None:
    """Make accelerate 1.15 add gloo to NCCL as processes meet, for a whole state on the CPU (state.py): FSDP's."""
    os.environ.update(ACCELERATE_USE_FSDP="true", FSDP_STATE_DICT_TYPE="FULL_STATE_DICT")


def train_to_end(
    job: Job,
    stop: StopRequest,
    trainer: Any,
    rewards: Sequence[RewardFunction],
    hook: Callable[[PhaseClock, Any], None],
    *,
    packages: Iterable[str],
    engine: Mapping[str, Any],
    further: Mapping[str, Any] | None = None,
    generating: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> None:
    """Train from the newest checkpoint to the last step, and write done.json; `RequeueError` if stopped before.

    `hook` puts the trainer's own timers on the clock, and tells the `StepLog` of each generation. `further` are the
    trainer's settings beside its arguments. `generating` surrounds a generation with the trainer's own model.
    """
    import torch

    stop.install()
    checkpoint = _agreed_checkpoint(Path(job.attempt["checkpoint_dir"]), trainer.accelerator.num_processes)
    tracker = Tracker(trainer)
    for reward in rewards:
        reward.ready(trainer.args.device)
    log = _logged(job, stop, trainer, rewards, hook, checkpoint.step if checkpoint else 0, generating)
    last, is_main = trainer.args.max_steps, trainer.accelerator.is_main_process
    if checkpoint and is_main:
        print(f"resuming from step {checkpoint.step}", flush=True)
    if checkpoint is None or checkpoint.step < last:
        # transformers trains one step too many if it is started on a checkpoint of the last one.
        stop.training = True
        trainer.train(resume_from_checkpoint=str(checkpoint.path) if checkpoint else None)
    tracker.finish()
    if (ranks := trainer.accelerator.num_processes) > 1:
        torch.distributed.destroy_process_group()  # what is left is rank 0's
    if log.last_step < last:
        raise RequeueError(f"after step {log.last_step} of {last}, with a checkpoint")
    if not is_main:
        return
    write_done(
        job,
        first_step=log.first_step,
        last_step=log.last_step,
        packages=packages,
        hardware=job.hardware(torch.get_num_threads()) | ({"processes": ranks} if ranks > 1 else {}),
        trainer={**trainer.args.to_dict(), **(further or {})},
        engine=engine,
    )


def _agreed_checkpoint(folder: Path, ranks: int) -> Checkpoint | None:
    """The checkpoint that rank 0 finds, for all processes; `UserError` where another does not find it."""
    newest = newest_checkpoint(folder, ranks)
    step = rank0_value(newest.step if newest else 0, ranks)
    if not step or (newest and newest.step == step):
        return newest if step else None
    path = folder / f"checkpoint-{step}"
    if not path.is_dir():
        raise UserError(
            f"{path} is not there for this node, and rank 0 goes on from it; look at the shared file system"
        )
    return Checkpoint(path, step)


def _logged(
    job: Job,
    stop: StopRequest,
    trainer: Any,
    rewards: Sequence[RewardFunction],
    hook: Callable[[PhaseClock, Any], None],
    resumed_from: int,
    generating: Callable[[], AbstractContextManager[Any]],
) -> Any:
    """The trainer's `StepLog`, with which it writes each step, and before it what writes sample completions."""
    import torch
    from transformers import PrinterCallback

    from node.hf_samples import SampleLog
    from node.step_log import StepLog

    load = OtherLoad(sorted(os.sched_getaffinity(0)))
    on_gpu = trainer.args.device.type == "cuda"
    clock = StepClock(load, clock_after(torch.cuda.synchronize)) if on_gpu else StepClock(load)
    log = StepLog(clock, trainer, job.folder / "metrics.jsonl", resumed_from, stop)
    hook(clock, log)
    trainer.remove_callback(PrinterCallback)  # it prints each step's whole dict; ours prints one line
    workload = job.spec["workload"]
    if workload.get("samples"):
        prompts = job.inputs.test or job.inputs.data
        trainer.add_callback(SampleLog(trainer, workload, prompts, rewards, job.folder, log, stop, generating))
    trainer.add_callback(log)
    return log
