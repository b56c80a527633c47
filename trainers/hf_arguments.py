"""Turns a workload into the arguments of transformers' Trainer that TRL and ms-swift share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from common.errors import UserError
from trainers.protocol import StackFacts
from trainers.workload import TrainedArm, Workload

KEYS = {
    "model": ("model_name_or_path", "_name_or_path", "model"),
    "steps": ("max_steps",),
    "num_generations": ("num_generations",),
    "max_prompt_length": ("max_prompt_length",),
    "max_response_length": ("max_completion_length",),
    "temperature": ("temperature",),
    "top_p": ("top_p",),
    "learning_rate": ("learning_rate",),
    "tensor_parallel": ("vllm_tensor_parallel_size",),
    "server_engines": ("vllm_data_parallel_size",),
}
"""Word -> the settings that say it."""

_NAMES_AND_PLACES = frozenset({"output_dir", "report_to", "run_name", "disable_tqdm"})
BOOKKEEPING = _NAMES_AND_PLACES | {
    *("logging_dir", "overwrite_output_dir"),
    *("hub_model_id", "hub_token", "hub_private_repo", "hub_revision", "log_completions_hub_repo"),
    *("project", "trackio_space_id", "trackio_static_space_id", "trackio_bucket_id"),
    *("vllm_server_base_url", "vllm_server_host", "vllm_server_port", "vllm_group_port"),
    *("resume_from_checkpoint", "ignore_data_skip", "resume_only_model"),
    *("swanlab_project", "swanlab_workspace", "swanlab_exp_name", "swanlab_mode", "add_version"),
}
"""Names, trackers, places, and what only a resumed run reads: no work of a step."""

FSDP = ("fsdp", "fsdp_config")
RESHARD = "reshard_after_forward"
HALF = ("bfloat16", "float16")
# What the job sets itself on the node, and what follows from the batch or the engine. An option of such a name would
# break the paths that the collector reads, or silently turn the engine into another.
_OWNED = _NAMES_AND_PLACES | {
    *("logging_steps", "logging_strategy", "logging_first_step", "logging_nan_inf_filter"),
    *("generation_batch_size", "steps_per_generation", "use_vllm", "use_cpu"),
}


def workload_arguments(workload: Workload, seed: int, processes: int = 1) -> dict[str, Any]:
    """What the workload decides for every arm alike; each of several processes learns from its share of the batch."""
    # Where the settings are resolved there is one process, which would take its share for all that is generated.
    together = {"generation_batch_size": workload.batch_size} if processes > 1 else {}
    share = workload.batch_size // processes
    micro = min(workload.micro_batch_size or share, share)
    return {
        "max_steps": workload.steps,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": share // micro,
        "num_generations": workload.num_generations,
        "max_completion_length": workload.max_response_length,
        "temperature": workload.temperature,
        "top_p": workload.top_p,
        "learning_rate": workload.learning_rate,
        "lr_scheduler_type": "constant_with_warmup" if workload.lr_warmup_steps else "constant",
        "warmup_steps": workload.lr_warmup_steps,
        "beta": workload.beta,
        "loss_type": workload.loss_type,
        "reward_weights": [reward.weight for reward in workload.rewards],
        "bf16": workload.dtype == "bfloat16",
        "seed": seed,
        "save_strategy": "steps" if workload.save_steps else "no",
        "save_steps": workload.save_steps or workload.steps,
        "save_total_limit": 2,
        **together,
    }


def completed(
    fixed: dict[str, Any], defaults: dict[str, Any], arm: TrainedArm, stack: StackFacts, owned: Iterable[str]
) -> dict[str, Any]:
    """An arm's arguments: those that are `fixed`, the `defaults`, and its options over them.

    `UserError` for an option that is fixed or `owned`: it would make the arms unequal behind the reader's back.
    """
    for option in arm.options:
        if option in _OWNED.union(fixed, owned):
            raise UserError(
                f"options.{option} of an arm is not free: it follows from the workload, the engine or the run's "
                "folder. Change the workload's own word instead, so that it holds for every arm alike "
                f"(got {arm.options[option]!r})"
            )
    on_cpu = {"use_cpu": True, "gradient_checkpointing": False} if stack.accelerator == "cpu" else {}
    return fixed | defaults | on_cpu | arm.options


def require_one_update(trainer: str, workload: Workload) -> None:
    """`UserError` for words that a trainer with one update each step, and no validation, has no answer to."""
    if workload.num_generations < 2:
        raise UserError(
            f"workload.num_generations must be at least 2 with trainer {trainer}: it compares completions (got 1)"
        )
    if workload.mini_batch_size not in (None, workload.batch_size):
        raise UserError(
            f"workload.mini_batch_size must be null or batch_size ({workload.batch_size}) with trainer {trainer}: one "
            f"update each step (got {workload.mini_batch_size})"
        )
    if workload.test_steps:
        raise UserError(
            f"workload.test_steps must be 0 with trainer {trainer}: no validation (got {workload.test_steps})"
        )


def require_one_process(trainer: str, workload: Workload) -> None:
    """`UserError` for several nodes or GPUs."""
    if workload.processes > 1:
        raise UserError(
            f"trainer {trainer} trains in one process: workload.nodes must be 1 and workload.gpus_per_node at most 1 "
            f"(got {workload.nodes} and {workload.gpus_per_node}); other trainers take more"
        )


def require_equal_shares(trainer: str, workload: Workload, processes: int | None = None) -> None:
    """`UserError` where the batch cannot be shared out among the processes (None: the workload's), or a share among its
    passes."""
    processes = processes or workload.processes
    share, rest = divmod(workload.batch_size, processes)
    if rest:
        raise UserError(
            f"workload.batch_size must be a multiple of the {processes} processes that trainer {trainer} "
            f"trains in, one for each GPU (on a CPU for each node), got {workload.batch_size}"
        )
    micro = min(workload.micro_batch_size or share, share)
    if share % micro:
        raise UserError(
            f"workload.micro_batch_size must divide a process's share of the batch, {share} completions, with trainer "
            f"{trainer} (got {micro}; try {math.gcd(micro, share)})"
        )


def require_sharing(
    trainer: str, arm: TrainedArm, stack: StackFacts, processes: int, weights: Any, untried: Iterable[str]
) -> None:
    """`UserError` where several processes cannot share the model in the way that the options ask for.

    `weights` is the number format of the optimizer's weights, and `untried` are options that FSDP has not met.
    """
    for option in ("deepspeed", "parallelism_config"):
        if arm.options.get(option) and processes > 1:
            raise UserError(
                f"options.{option} cannot be used with trainer {trainer} on several GPUs from here: its checkpoints "
                f"are not read yet (got {arm.options[option]!r}). options.{FSDP[0]}: true shares the model"
            )
    on, config = (arm.options.get(option) for option in FSDP)
    beside = next((option for option in untried if arm.options.get(option)), None)
    refused = {
        "true alone turns it on, as FSDP2": bool(on) and on is not True,
        f"options.{FSDP[1]} needs it": bool(config) and not on,
        "one process has none to share the model with": on and processes == 1,
        "accelerate shards on GPUs alone, and trains with DDP on a CPU": on and stack.accelerator == "cpu",
        f"with options.{beside} it has not been tried": on and beside,
        f"accelerate makes float32 of weights in {weights}; take that out of the options": on and weights in HALF,
        f"{RESHARD} is the one word of {FSDP[1]} that is driven": on and config and [*config] != [RESHARD],
    }
    for why, is_so in refused.items():
        if is_so:
            told = {option: arm.options[option] for option in FSDP if option in arm.options}
            raise UserError(
                f"options.{FSDP[0]} cannot be used so with trainer {trainer}: {why} (got {told}); docs/{trainer}.md"
            )
