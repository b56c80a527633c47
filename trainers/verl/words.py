"""How does a workload's word read in verl, by its version, and what makes it mean the same as in TRL?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from common.errors import UserError
from trainers.workload import Workload

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_REF = "actor_rollout_ref.ref"

Settings = dict[str, tuple[str, Any]]
"""Hydra key -> the word it follows from, and its value."""


@dataclass(frozen=True, slots=True)
class Loss:
    """How a `loss_type` is had from a version, and where it is not what TRL computes."""

    mode: str
    differs: str = ""
    """Empty where it is TRL's."""


_LOCAL = "the mean over the tokens of each micro-batch, averaged over micro-batches and devices"
_GLOBAL = "the mean over all tokens of the optimizer step"

LOSSES: Mapping[str, Mapping[str, Loss]] = {
    "0.4.1": {
        "grpo": Loss("seq-mean-token-mean"),
        "dr_grpo": Loss("seq-mean-token-sum-norm"),
        "bnpo": Loss("token-mean"),
        "dapo": Loss("token-mean", f"verl 0.4.1 takes {_LOCAL}; TRL takes {_GLOBAL}"),
    },
    "0.9.1": {
        "grpo": Loss("seq-mean-token-mean"),
        "dr_grpo": Loss("seq-mean-token-sum-norm"),
        "bnpo": Loss("token-mean", f"verl 0.9.1 takes {_GLOBAL}; TRL takes {_LOCAL}"),
        "dapo": Loss("token-mean"),
    },
}
"""By version and `loss_type` (read in `agg_loss` of verl's core_algos.py and in TRL 1.16's GRPOTrainer)."""

VERSIONS = tuple(LOSSES)


def settings(
    workload: Workload, engine: str, seed: int, version: str, sequence_parallel: int, dynamic: bool
) -> Settings:
    """The settings that follow from the workload, the engine and the seed; a `UserError` for what verl cannot do.

    `sequence_parallel` and `dynamic` are the arm's Ulysses group size and whether it packs micro-batches by tokens.
    """
    _require_what_verl_can(workload, version, dynamic)
    generations = workload.num_generations
    mini = workload.mini_batch_size or workload.batch_size
    devices = workload.nodes * workload.gpus_per_node
    micro = workload.micro_batch_size or max(1, mini * sequence_parallel // devices)
    found: Settings = {
        "algorithm.adv_estimator": ("", "grpo"),
        "algorithm.use_kl_in_reward": ("beta", False),
        "data.train_batch_size": ("batch_size", workload.batch_size // generations),
        "data.max_prompt_length": ("max_prompt_length", workload.max_prompt_length),
        "data.max_response_length": ("max_response_length", workload.max_response_length),
        f"{_ACTOR}.ppo_mini_batch_size": ("mini_batch_size", mini // generations),
        f"{_ACTOR}.ppo_micro_batch_size_per_gpu": ("micro_batch_size", micro),
        f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu": ("micro_batch_size", micro),
        f"{_REF}.log_prob_micro_batch_size_per_gpu": ("micro_batch_size", micro),
        f"{_ACTOR}.loss_agg_mode": ("loss_type", LOSSES[version][workload.loss_type].mode),
        f"{_ACTOR}.use_kl_loss": ("beta", workload.beta > 0),
        f"{_ACTOR}.kl_loss_coef": ("beta", workload.beta),
        f"{_ACTOR}.kl_loss_type": ("beta", "low_var_kl"),
        f"{_ACTOR}.optim.lr": ("learning_rate", workload.learning_rate),
        f"{_ACTOR}.optim.lr_warmup_steps": ("lr_warmup_steps", workload.lr_warmup_steps),
        f"{_ROLLOUT}.name": ("engine", engine),
        f"{_ROLLOUT}.n": ("num_generations", generations),
        f"{_ROLLOUT}.temperature": ("temperature", workload.temperature),
        f"{_ROLLOUT}.top_p": ("top_p", workload.top_p),
        f"{_ROLLOUT}.dtype": ("dtype", workload.dtype),
        "trainer.n_gpus_per_node": ("gpus_per_node", workload.gpus_per_node),
        "trainer.nnodes": ("nodes", workload.nodes),
        "trainer.total_training_steps": ("steps", workload.steps),
        # An epoch has one step at least, so that the steps end before the epochs do, however small the data.
        "trainer.total_epochs": ("steps", workload.steps),
        "trainer.save_freq": ("save_steps", workload.save_steps or -1),
        "trainer.test_freq": ("test_steps", workload.test_steps or -1),
        "trainer.val_before_train": ("test_steps", False),
        # 0.4.1 deletes the old checkpoint before it writes the new one.
        "trainer.max_actor_ckpt_to_keep": ("save_steps", 2),
        "trainer.critic_warmup": ("", 0),
    }
    return found | _ONLY_IN[version](workload, seed)


def _in_0_4_1(workload: Workload, seed: int) -> Settings:
    return {
        f"{_ACTOR}.optim.warmup_style": ("lr_warmup_steps", "constant"),
        "reward_model.enable": ("rewards", False),
        "reward_model.reward_manager": ("rewards", "naive"),
        "+data.seed": ("seeds", seed),
    }


def _in_0_9_1(workload: Workload, seed: int) -> Settings:
    return {
        f"{_ACTOR}.optim.lr_scheduler_type": ("lr_warmup_steps", "constant"),
        f"{_ACTOR}.loss_scale_factor": (
            "loss_type",
            workload.max_response_length if workload.loss_type == "dr_grpo" else None,
        ),
        "reward.reward_model.enable": ("rewards", False),
        "reward.reward_manager.name": ("rewards", "naive"),
        "data.seed": ("seeds", seed),
        f"{_ACTOR}.data_loader_seed": ("seeds", seed),
        f"{_ROLLOUT}.seed": ("seeds", seed),
    }


_ONLY_IN: Mapping[str, Callable[[Workload, int], Settings]] = {"0.4.1": _in_0_4_1, "0.9.1": _in_0_9_1}

_OVERRULING_ALIKE = {
    f"{_ACTOR}.ppo_micro_batch_size": "micro_batch_size",
    f"{_ROLLOUT}.log_prob_micro_batch_size": "micro_batch_size",
    f"{_REF}.log_prob_micro_batch_size": "micro_batch_size",
    f"{_ROLLOUT}.prompt_length": "max_prompt_length",
    f"{_ROLLOUT}.response_length": "max_response_length",
    f"{_ROLLOUT}.do_sample": "temperature",
    f"{_ACTOR}.optim.total_training_steps": "steps",
    "data.gen_batch_size": "batch_size",
    "trainer.remove_previous_ckpt_in_save": "save_steps",
}
OVERRULING: Mapping[str, Mapping[str, str]] = {
    # There it would become the seed of every single request, and all prompts would draw the same random numbers.
    "0.4.1": {**_OVERRULING_ALIKE, f"{_ROLLOUT}.seed": "seeds"},
    "0.9.1": {
        **_OVERRULING_ALIKE,
        # Composed for old scripts; when verl starts it moves what they hold over what stands in `reward`.
        "reward_model": "rewards",
        "sandbox_fusion": "rewards",
        f"{_ACTOR}.optim.warmup_style": "lr_warmup_steps",
        "data.train_max_samples": "data.rows",
        "critic.enable": "",
    },
}
"""Further keys, and what lies below them, that would overrule a word, and the word."""


def made_equal(version: str) -> dict[str, Any]:
    """Where verl's own default is not TRL's, or might come to differ; an arm's options may say otherwise."""
    return _MADE_EQUAL[version]


_EQUAL_ALIKE: dict[str, Any] = {
    f"{_ACTOR}.entropy_coeff": 0.0,
    f"{_ACTOR}.clip_ratio": 0.2,
    f"{_ACTOR}.clip_ratio_low": 0.2,
    f"{_ACTOR}.clip_ratio_high": 0.2,
    f"{_ACTOR}.ppo_epochs": 1,
    # verl's default is 0.01, that of TRL (and transformers) 0.
    f"{_ACTOR}.optim.weight_decay": 0.0,
    # TRL divides by a group's standard deviation whatever the loss_type.
    "algorithm.norm_adv_by_std_in_grpo": True,
    f"{_ROLLOUT}.top_k": -1,
}
_MADE_EQUAL: Mapping[str, dict[str, Any]] = {
    "0.4.1": {**_EQUAL_ALIKE, f"{_ACTOR}.grad_clip": 1.0},
    # 0.9.1 still composes actor.grad_clip, and reads optim.clip_grad (workers/engine/fsdp).
    "0.9.1": {**_EQUAL_ALIKE, f"{_ACTOR}.optim.clip_grad": 1.0, f"{_ACTOR}.optim.betas": [0.9, 0.999]},
}


def _require_what_verl_can(workload: Workload, version: str, dynamic: bool) -> None:
    """`UserError` for words that this version of verl has no answer to."""
    if not workload.gpus_per_node:
        raise UserError("workload.gpus_per_node must be at least 1 with trainer verl, which needs GPUs (got 0)")
    if workload.dtype != "bfloat16":
        raise UserError(
            f"workload.dtype must be bfloat16 with trainer verl: its actor runs FlashAttention, which has no float32 "
            f"(got {workload.dtype})"
        )
    mini, batch, generations = workload.mini_batch_size, workload.batch_size, workload.num_generations
    if mini is not None and (mini % generations or (mini < batch and batch % mini)):
        raise UserError(
            f"workload.mini_batch_size must be a multiple of num_generations and divide batch_size with trainer verl, "
            f"which counts it in prompts (got {mini}, with num_generations {generations} and batch_size {batch})"
        )
    if workload.loss_type == "dr_grpo" and version == "0.4.1" and (workload.micro_batch_size != 1 or dynamic):
        raise UserError(
            "workload.loss_type dr_grpo needs micro_batch_size 1, and no use_dynamic_bsz, with verl 0.4.1: it sums "
            "over the completions of a micro-batch where it should average, so that the gradient grows with "
            f"micro_batch_size (got {workload.micro_batch_size}); set it to 1, or take a stack with verl 0.9.1"
        )
