"""Settings, choices and refusals that all releases of verl share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from trainers.verl.driver.overrides import ACTOR, BOOKKEEPING, REF, ROLLOUT
from trainers.verl.releases.release import RefusedSetting

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

# utils/torch_dtypes.py
_PRECISIONS = ("fp32", "float32", "bf16", "bfloat16", "fp16", "float16")
_CONTENTS = ("model", "optimizer", "extra", "hf_model")
# trainer/ppo/core_algos.py: kl_penalty; "full" is in the comments, and raises NotImplementedError.
PENALTIES = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
LOSS_MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
LOADS = ("auto", "safetensors", "pt", "npcache", "dummy")
CHOICES: Mapping[str, tuple[Any, ...]] = {
    # The arm's engine. verl has others (hf, trtllm), which no stack here can run.
    f"{ROLLOUT}.name": ("vllm", "sglang"),
    # megatron and its like are not in the stacks.
    f"{ACTOR}.strategy": ("fsdp", "fsdp2"),
    f"{REF}.strategy": ("fsdp", "fsdp2"),
    f"{ROLLOUT}.dtype": ("bfloat16", "float16", "half", "auto"),
    f"{ACTOR}.fsdp_config.model_dtype": _PRECISIONS,
    f"{REF}.fsdp_config.model_dtype": _PRECISIONS,
    "algorithm.adv_estimator": ("grpo",),
    "algorithm.kl_ctrl.type": ("fixed", "adaptive"),
    "data.truncation": ("error", "left", "right", "middle"),
    f"{ACTOR}.checkpoint.save_contents": _CONTENTS,
    f"{ACTOR}.checkpoint.load_contents": _CONTENTS,
    "trainer.resume_mode": ("auto", "disable", "resume_path"),
    "trainer.device": ("cuda",),
}

# Refusals that several rules make.
micro_batch = partial(
    RefusedSetting,
    "micro-batch",
    why="an assertion ends verl's workers; in 0.4.1 also with use_dynamic_bsz, which does not use the number",
    change="workload.micro_batch_size: a divisor of the completions per GPU and mini-batch",
)
dynamic_tokens = partial(
    RefusedSetting,
    "dynamic-tokens",
    why="an assertion ends verl: 0.4.1 in the first step, 0.9.1 as soon as a sequence is longer",
    change=f"{ACTOR}.ppo_max_token_len_per_gpu: prompt and response at their longest, or more",
)
tensor_parallel = partial(
    RefusedSetting,
    "tensor-parallel-gpus",
    why="an assertion ends verl",
    change=f"{ROLLOUT}.tensor_model_parallel_size: a divisor of the GPUs; or more GPUs (workload.gpus_per_node)",
)
