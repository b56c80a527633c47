"""Translates a workload into the arguments of transformers' Trainer, for TRL and ms-swift."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from common.errors import UserError
from trainers.cases import Case
from trainers.described import lists
from trainers.protocol import StackFacts
from trainers.workload import TrainedArm, Workload, require_words

HF = tomllib.loads(Path(__file__).with_name("hf.toml").read_text(encoding="utf-8"))
KEYS = lists(HF["keys"])
"""A workload's word -> the settings with its value."""

BOOKKEEPING = frozenset(HF["bookkeeping"])
"""Names, trackers, places, and what only a resumed run reads: nothing that changes a step."""

FSDP = ("fsdp", "fsdp_config")
RESHARD = "reshard_after_forward"
HALF = ("bfloat16", "float16")
OWNED = frozenset(HF["owned"])
"""Options that no arm has: the job, the batch or the engine decides them."""


def workload_arguments(workload: Workload, seed: int, processes: int) -> dict[str, Any]:
    """The arguments that the workload sets for every arm; each process learns from its share of the batch."""
    # Settings are resolved in one process, which would generate for its own share only.
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
    """An arm's arguments: the `fixed` ones, and its options over the `defaults`.

    `UserError` for an option that is fixed or `owned`: it would make the arms unequal without notice.
    """
    for option, value in arm.options.items():
        if option in OWNED.union(fixed, owned):
            raise UserError(
                f"options.{option} of an arm is not free: the workload, the engine or the run's folder sets it. "
                f"Change the workload instead, which is the same for every arm (got {value!r})"
            )
    on_cpu = {"use_cpu": True, "gradient_checkpointing": False} if stack.accelerator == "cpu" else {}
    return fixed | defaults | on_cpu | arm.options


def require_one_update(trainer: str, workload: Workload) -> None:
    """`UserError` for words that need several updates per step, validation, or groups of one."""
    rules = (
        ("num_generations", workload.num_generations < 2, "at least 2", "it compares completions"),
        (
            "mini_batch_size",
            workload.mini_batch_size not in (None, workload.batch_size),
            f"null or batch_size ({workload.batch_size})",
            "one update per step",
        ),
        ("test_steps", workload.test_steps > 0, "0", "it has no validation"),
    )
    require_words(trainer, workload, rules)


def require_one_process(trainer: str, workload: Workload) -> None:
    """`UserError` for several nodes or GPUs."""
    if workload.processes > 1:
        raise UserError(
            f"trainer {trainer} trains in one process: workload.nodes must be 1 and workload.gpus_per_node at most 1 "
            f"(got {workload.nodes} and {workload.gpus_per_node}). Other trainers allow more"
        )


def require_equal_shares(trainer: str, workload: Workload, processes: int) -> None:
    """`UserError` if the processes cannot share the batch equally, or the passes a process's share."""
    share, rest = divmod(workload.batch_size, processes)
    if rest:
        raise UserError(
            f"workload.batch_size must be a multiple of the {processes} processes that trainer {trainer} "
            f"trains in, one per GPU (on a CPU one per node), got {workload.batch_size}"
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
    """`UserError` if the processes cannot shard the model as the options ask.

    `weights` is the number format of the optimizer's weights; `untried` are options that are not tried with FSDP.
    """
    for option in ("deepspeed", "parallelism_config"):
        if arm.options.get(option) and processes > 1:
            raise UserError(
                f"options.{option} cannot be used with trainer {trainer} on several GPUs: its checkpoints cannot be "
                f"read yet (got {arm.options[option]!r}). Use options.{FSDP[0]}: true to shard the model"
            )
    on, config = (arm.options.get(option) for option in FSDP)
    conflict = next((option for option in untried if arm.options.get(option)), None)
    problems = {
        "only true turns it on, as FSDP2": bool(on) and on is not True,
        f"options.{FSDP[1]} needs it": bool(config) and not on,
        "one process cannot shard the model": on and processes == 1,
        "accelerate shards on GPUs only, and trains with DDP on a CPU": on and stack.accelerator == "cpu",
        f"it is not tried with options.{conflict}": on and conflict,
        f"accelerate turns {weights} weights into float32; remove that option": on and weights in HALF,
        f"{RESHARD} is the only supported key of {FSDP[1]}": on and config and [*config] != [RESHARD],
    }
    for problem, applies in problems.items():
        if applies:
            given = {option: arm.options[option] for option in FSDP if option in arm.options}
            raise UserError(
                f"options.{FSDP[0]} cannot be used so with trainer {trainer}: {problem} (got {given}); "
                f"docs/{trainer}.md"
            )


def half_format(case: Case, setting: str) -> str | None:
    """The 16-bit number format that a setting gives the optimizer's weights, with its name; None for another."""
    dtype = case.settings.get(setting)
    return f"{dtype} ({setting})" if dtype in HALF else None
