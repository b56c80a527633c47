"""verl 0.9.1: its settings and its limits."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from trainers.verl import hooks
from trainers.verl.driver.overrides import ACTOR, ROLLOUT
from trainers.verl.releases.release import (
    JOB_KEYS,
    RESERVED_KEYS,
    TRL_DEFAULTS,
    DerivedSettings,
    Release,
    context_by_length,
)

if TYPE_CHECKING:
    from trainers.workload import Workload

_VLLM = "verl 0.9.1, workers/rollout/vllm_rollout/vllm_async_server.py"
_SGLANG = "verl 0.9.1, workers/rollout/sglang_rollout/async_sglang_server.py"


def _derived(workload: Workload, seed: int) -> DerivedSettings:
    longest = workload.max_response_length if workload.loss_type == "dr_grpo" else None
    return {
        f"{ACTOR}.optim.lr_scheduler_type": ("lr_warmup_steps", "constant"),
        f"{ACTOR}.loss_scale_factor": ("loss_type", longest),
        "reward.reward_model.enable": ("rewards", False),
        "reward.reward_manager.name": ("rewards", "naive"),
        "data.seed": ("seeds", seed),
        f"{ACTOR}.data_loader_seed": ("seeds", seed),
        f"{ROLLOUT}.seed": ("seeds", seed),
    }


def _validate(config: Any) -> None:
    reference = config.actor_rollout_ref.actor.use_kl_loss or config.algorithm.use_kl_in_reward
    hooks.VALIDATE.get()(config, use_reference_policy=reference, use_critic=False)
    hooks.AS_DATACLASS.get()(config.actor_rollout_ref.rollout)  # the actor's is part of the check


V0_9_1 = Release(
    "0.9.1",
    job_keys=(
        *(*JOB_KEYS, "reward.custom_reward_function"),
        *("ray_kwargs.ray_init.num_cpus", "ray_kwargs.ray_init.runtime_env"),
    ),
    # It also composes the key of 0.4.1, and may ignore it.
    reward_key="reward.custom_reward_function",
    derived=_derived,
    reserved_keys={
        **RESERVED_KEYS,
        # Composed for old scripts; at its start verl copies these over the settings of `reward`.
        "reward_model": "rewards",
        "sandbox_fusion": "rewards",
        f"{ACTOR}.optim.warmup_style": "lr_warmup_steps",
        "data.train_max_samples": "data.rows",
        "critic.enable": "",
    },
    # It still composes actor.grad_clip, but reads optim.clip_grad (workers/engine/fsdp).
    trl_defaults={**TRL_DEFAULTS, f"{ACTOR}.optim.clip_grad": 1.0, f"{ACTOR}.optim.betas": [0.9, 0.999]},
    # trainer/config/ppo_trainer.yaml and trainer/config/rollout/rollout.yaml
    defaults={
        f"{ROLLOUT}.enforce_eager": False,
        f"{ROLLOUT}.free_cache_engine": True,
        f"{ROLLOUT}.tensor_model_parallel_size": 2,
    },
    validate=_validate,
    context=partial(context_by_length, sources={"vllm": f"{_VLLM}:1107 and :593", "sglang": f"{_SGLANG}:170 and :588"}),
    storage_units=8,
)
