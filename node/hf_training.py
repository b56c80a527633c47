"""Trains an attempt with transformers' Trainer from its newest checkpoint: the drivers of TRL and ms-swift."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import read_json
from common.messages import did_you_mean
from common.retry import exists, is_transient, retry_io
from node.attempt import Job, write_done
from node.exit_codes import RequeueError, StopRequest
from node.hardware import OtherLoad
from node.over_ranks import rank0_value
from node.phase_clock import PhaseClock, StepClock, clock_after
from node.ranks import local_rank, world_size
from node.rewards import RewardFunction, reward_functions
from node.samples import StepSamples
from node.seeds import engine_seed
from node.tracker import Tracker, has_wandb

_OWNED: Mapping[str, Any] = {
    "report_to": ["wandb"],
    "disable_tqdm": True,
    "logging_strategy": "steps",
    "logging_steps": 1,
    "logging_first_step": False,
    # Otherwise a step with a NaN loss is logged as the mean of earlier steps.
    "logging_nan_inf_filter": False,
}
"""TrainingArguments that the job sets, so that every step is logged."""
ATTEMPT_FIELDS = frozenset({"output_dir", "run_name", "logging_dir", "local_rank", "deepspeed_plugin", "_n_gpu"})
"""TrainingArguments that depend on the attempt or on the machine that resolves the settings."""


def job_rewards(job: Job) -> list[RewardFunction]:
    """The workload's rewards; created first, so that errors appear before the slow imports."""
    workload = job.spec["workload"]
    # Two nodes must not append to the same file on a network disk.
    suffix = f"-rank{rank}" if (rank := int(os.environ.get("RANK", "0"))) else ""
    failures, models = job.folder / f"reward_failures{suffix}.jsonl", job.inputs.reward_models
    functions = reward_functions(
        workload["rewards"], workload.get("max_response_length"), failures=failures, models=models
    )
    for function in functions:
        function.callers = world_size()
    return functions


def reward_weights(rewards: Sequence[Mapping[str, Any]]) -> list[float]:
    """The weights of a workload's rewards, in their order."""
    return [float(reward.get("weight", 1.0)) for reward in rewards]


def owned_settings(attempt: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the job sets: output paths, and logging of every step."""
    tracking = {} if has_wandb() else {"report_to": "none"}
    return {**_OWNED, **tracking, "output_dir": str(attempt["checkpoint_dir"]), "run_name": str(attempt["run_id"])}


def require_settings(given: Mapping[str, Any], known: Any, owned: Mapping[str, Any], no: str) -> None:
    """`UserError` for a setting that the dataclass `known` lacks (`no` names its kind), or that the job sets."""
    names = [field.name for field in dataclasses.fields(known) if field.init]
    for name, value in given.items():
        if name not in names:
            raise UserError(f"trainer_args.{name} is {no}{did_you_mean(name, names)}; correct it in the arm's options")
        if name in owned and value != owned[name]:
            raise UserError(
                f"trainer_args.{name} is set by the job to {owned[name]!r} (got {value!r}); remove it from the arm's "
                "options"
            )


def require_devices(trainer: str, arguments: Any) -> None:
    """`UserError` if torch does not see one GPU per process of a GPU run, or the number of processes is wrong."""
    import torch

    _, wanted = local_rank()
    if not arguments.use_cpu and (seen := torch.cuda.device_count()) != wanted:
        raise UserError(
            f"trainer {trainer} trains on {'one GPU' if wanted == 1 else f'{wanted} GPUs of each node'}, and torch "
            f"sees {seen or 'none'} on this node (CUDA_VISIBLE_DEVICES is "
            f"{os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}); check the node's driver and the job's "
            "GPUs in Slurm"
        )
    if arguments.world_size != world_size():
        raise UserError(
            f"trainer {trainer} was started with {world_size()} processes, but trains with {arguments.world_size}"
        )


def cpu_fallback(trainer_args: Mapping[str, Any]) -> dict[str, Any]:
    """Extra settings to resolve a configuration on a login node: without a GPU, bfloat16 needs `use_cpu`."""
    import torch

    return {} if "use_cpu" in trainer_args or torch.cuda.is_available() else {"use_cpu": True}


def number_format(bf16: Any, fp16: Any) -> str:
    """The number format of forward passes and of the engine, from the TrainingArguments."""
    return "bfloat16" if bf16 else "float16" if fp16 else "float32"


def enable_full_fsdp_state() -> None:
    """Make accelerate 1.15 (state.py) add gloo to NCCL, which FSDP needs for a full state on the CPU."""
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
    own_generation: bool = False,
) -> None:
    """Train from the newest checkpoint to the last step, and write done.json; `RequeueError` if stopped before.

    `hook` connects the trainer's timers to the clock, and generations to the `StepLog`. `further` are the trainer's
    settings besides its arguments. With `own_generation` the trainer's own model generates, from this process's random
    numbers.
    """
    stop.install()
    resumed_from = _common_step(Path(job.attempt["checkpoint_dir"]), trainer.accelerator.num_processes)
    checkpoint = Path(job.attempt["checkpoint_dir"]) / f"checkpoint-{resumed_from}"
    tracker = Tracker(trainer)
    for reward in rewards:
        reward.ready(trainer.args.device)
    log = _step_log(job, stop, trainer, rewards, hook, resumed_from)
    if resumed_from:
        _continue_data_order(trainer, checkpoint)
        if trainer.accelerator.is_main_process:
            print(f"resuming from step {resumed_from}", flush=True)
    if own_generation:
        _seed_generation(trainer, resumed_from)
    if resumed_from < trainer.args.max_steps:
        # transformers trains one step too many from a checkpoint of the last step.
        stop.training = True
        trainer.train(resume_from_checkpoint=str(checkpoint) if resumed_from else None)
    tracker.finish()
    _end(job, trainer, log, packages, engine, further or {})


def _end(
    job: Job, trainer: Any, log: Any, packages: Iterable[str], engine: Mapping[str, Any], further: Mapping[str, Any]
) -> None:
    """Write done.json on rank 0; `RequeueError` if the last step is still to come."""
    import torch

    last, ranks = trainer.args.max_steps, trainer.accelerator.num_processes
    if ranks > 1:
        torch.distributed.destroy_process_group()  # only rank 0 has work left
    if log.last_step < last:
        raise RequeueError(f"after step {log.last_step} of {last}, with a checkpoint")
    if trainer.accelerator.is_main_process:
        write_done(
            job,
            first_step=log.first_step,
            last_step=log.last_step,
            packages=packages,
            hardware=job.hardware(torch.get_num_threads()) | ({"processes": ranks} if ranks > 1 else {}),
            trainer={**trainer.args.to_dict(), **further},
            engine=engine,
        )


def _seed_generation(trainer: Any, resumed_from: int) -> None:
    """Seed this process as an engine; its trainer's own seed is the run's plus its rank. A checkpoint replaces it."""
    from accelerate.utils import set_seed

    set_seed(engine_seed(trainer.args.seed, resumed_from, trainer.accelerator.process_index))


def _continue_data_order(trainer: Any, checkpoint: Path) -> None:
    """Give a resumed run the data order of its own pass over the data.

    TRL's RepeatSampler (trainer/utils.py), which ms-swift uses, shuffles each pass with a generator that no checkpoint
    has: transformers skips the steps of the current pass, but in the order of the first one. The generator starts from
    the same seed in each attempt: drawing the complete passes sets it as in the uninterrupted run.
    """
    state = retry_io(lambda: read_json(checkpoint / "trainer_state.json"), "the run's checkpoints")
    original = trainer._get_train_sampler

    def sampler(*args: Any, **named: Any) -> Any:
        # Only for the loader that trains: ms-swift makes more of them to sample again.
        trainer._get_train_sampler = original
        made = original(*args, **named)
        for _ in range(int(state["epoch"])):
            next(iter(made), None)  # draws the whole pass
        return made

    trainer._get_train_sampler = sampler


def _common_step(folder: Path, ranks: int) -> int:
    """The step of rank 0's newest checkpoint for all processes; `UserError` if another process does not find it."""
    newest = newest_checkpoint(folder, ranks)
    step = rank0_value(newest, ranks)
    path = folder / f"checkpoint-{step}"
    if step not in (0, newest) and not retry_io(path.is_dir, "the run's checkpoints"):
        raise UserError(f"{path} is missing on this node, but rank 0 resumes from it; check the shared file system")
    return step


def _step_log(
    job: Job,
    stop: StopRequest,
    trainer: Any,
    rewards: Sequence[RewardFunction],
    hook: Callable[[PhaseClock, Any], None],
    resumed_from: int,
) -> Any:
    import torch
    from transformers import PrinterCallback

    from node.step_log import StepLog

    load = OtherLoad(sorted(os.sched_getaffinity(0)))
    on_gpu = trainer.args.device.type == "cuda"
    clock = StepClock(load, clock_after(torch.cuda.synchronize)) if on_gpu else StepClock(load)
    workload = job.spec["workload"]
    samples = StepSamples(rewards, workload, job.folder) if workload.get("samples") else None
    log = StepLog(clock, trainer, job.folder / "metrics.jsonl", resumed_from, stop, samples)
    hook(clock, log)
    trainer.remove_callback(PrinterCallback)  # it prints a dict for each step; ours prints one line
    trainer.add_callback(log)
    return log


_NAME = re.compile(r"checkpoint-(\d+)")
_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "adapter_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_OF_FSDP = ("pytorch_model_fsdp.bin", "optimizer.bin")
"""FSDP also saves the full model and its optimizer (accelerate 1.15 utils/fsdp_utils.py)."""


def newest_checkpoint(folder: Path, processes: int = 1) -> int:
    """The step of the newest complete checkpoint; 0 if there is none. One that cannot be read now is read again."""
    return retry_io(lambda: _newest(folder, processes), "the run's checkpoints")


def _newest(folder: Path, processes: int) -> int:
    named = ((_NAME.fullmatch(path.name), path) for path in (folder.iterdir() if exists(folder) else ()))
    steps = ((int(match[1]), path) for match, path in named if match)
    return max((step for step, path in steps if is_complete(path, step, processes)), default=0)


def is_complete(path: Path, step: int, processes: int = 1) -> bool:
    """Whether all training processes finished writing a checkpoint.

    transformers 5.17 Trainer._save_checkpoint writes the model, the optimizer, the scheduler, the random states of each
    process, and trainer_state.json last. So a readable trainer_state.json of the right step completes it.
    """
    try:
        state = json.loads((path / "trainer_state.json").read_text(encoding="utf-8"))
    except ValueError:
        return False
    except OSError as error:
        if is_transient(error):
            raise
        return False
    return (
        isinstance(state, dict)
        and state.get("global_step") == step
        and any(_has_content(path / name) for name in _WEIGHTS)
        and (_has_content(path / "optimizer.pt") or all(_has_content(path / name) for name in _OF_FSDP))
        and _has_content(path / "scheduler.pt")
        and sum(_has_content(file) for file in path.glob("rng_state*.pth")) >= processes
    )


def _has_content(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0
