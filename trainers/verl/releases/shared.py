"""Settings that all releases of verl share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainers.verl.driver.overrides import ACTOR, BOOKKEEPING, REF, ROLLOUT

JOB_KEYS = (
    *("data.train_files", "data.val_files", "actor_rollout_ref.model.path"),
    *(*BOOKKEEPING, "trainer.val_only", "custom_reward_function"),
    *("data.prompt_key", "data.reward_fn_key", "data.custom_cls"),
)
RESERVED_KEYS: Mapping[str, str] = {
    f"{ACTOR}.ppo_micro_batch_size": "micro_batch_size",
    f"{ROLLOUT}.log_prob_micro_batch_size": "micro_batch_size",
    f"{REF}.log_prob_micro_batch_size": "micro_batch_size",
    f"{ROLLOUT}.prompt_length": "max_prompt_length",
    f"{ROLLOUT}.response_length": "max_response_length",
    f"{ROLLOUT}.do_sample": "temperature",
    f"{ACTOR}.optim.total_training_steps": "steps",
    "data.gen_batch_size": "batch_size",
    "trainer.remove_previous_ckpt_in_save": "save_steps",
}
TRL_DEFAULTS: Mapping[str, Any] = {
    f"{ACTOR}.entropy_coeff": 0.0,
    f"{ACTOR}.clip_ratio": 0.2,
    f"{ACTOR}.clip_ratio_low": 0.2,
    f"{ACTOR}.clip_ratio_high": 0.2,
    f"{ACTOR}.ppo_epochs": 1,
    # verl's default is 0.01, that of TRL (and transformers) 0.
    f"{ACTOR}.optim.weight_decay": 0.0,
    # TRL divides by a group's standard deviation whatever the loss_type.
    "algorithm.norm_adv_by_std_in_grpo": True,
    f"{ROLLOUT}.top_k": -1,
}
