"""What are a trainer's defaults for the settings that matter here, by version?

Copied by name from each version's packaged configuration, with the file that has it; the tests compare every row
with that file. A setting that is neither here nor in a run's overrides is unknown until the stack has composed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ROLLOUT = "actor_rollout_ref.rollout"
_ACTOR = "actor_rollout_ref.actor"
_REF = "actor_rollout_ref.ref"
_MODEL = "actor_rollout_ref.model"
_MISSING = object()

_YAML = {"0.4.1": "verl/trainer/config/ppo_trainer.yaml", "0.9.1": "verl/trainer/config/_generated_ppo_trainer.yaml"}
VERSIONS = tuple(_YAML)

# key, default of 0.4.1, default of 0.9.1
_ROWS: tuple[tuple[str, Any, Any], ...] = (
    ("algorithm.adv_estimator", "gae", "gae"),
    ("algorithm.norm_adv_by_std_in_grpo", True, True),
    ("algorithm.use_kl_in_reward", False, False),
    ("data.max_prompt_length", 512, 512),
    ("data.max_response_length", 512, 512),
    ("data.shuffle", True, True),
    ("data.train_batch_size", 1024, 1024),
    ("data.truncation", "error", "error"),
    (f"{_ACTOR}.entropy_coeff", 0, 0),
    (f"{_ACTOR}.fsdp_config.forward_prefetch", False, False),
    (f"{_ACTOR}.fsdp_config.fsdp_size", -1, -1),
    (f"{_ACTOR}.fsdp_config.model_dtype", _MISSING, "fp32"),
    (f"{_ACTOR}.fsdp_config.offload_policy", False, False),
    (f"{_ACTOR}.fsdp_config.optimizer_offload", False, False),
    (f"{_ACTOR}.fsdp_config.param_offload", False, False),
    (f"{_ACTOR}.fsdp_config.reshard_after_forward", True, True),
    (f"{_ACTOR}.grad_clip", 1.0, 1.0),
    (f"{_ACTOR}.kl_loss_coef", 0.001, 0.001),
    (f"{_ACTOR}.loss_agg_mode", "token-mean", "token-mean"),
    (f"{_ACTOR}.optim.lr_warmup_steps", -1, -1),
    (f"{_ACTOR}.ppo_epochs", 1, 1),
    (f"{_ACTOR}.ppo_max_token_len_per_gpu", 16384, 16384),
    (f"{_ACTOR}.ppo_micro_batch_size", None, None),
    (f"{_ACTOR}.ppo_micro_batch_size_per_gpu", None, None),
    (f"{_ACTOR}.ppo_mini_batch_size", 256, 256),
    (f"{_ACTOR}.strategy", "fsdp", "fsdp"),
    (f"{_ACTOR}.ulysses_sequence_parallel_size", 1, 1),
    (f"{_ACTOR}.use_dynamic_bsz", False, False),
    (f"{_ACTOR}.use_kl_loss", False, False),
    (f"{_ACTOR}.use_torch_compile", True, True),
    (f"{_MODEL}.enable_activation_offload", False, False),
    (f"{_MODEL}.enable_gradient_checkpointing", True, True),
    (f"{_MODEL}.lora.merge", _MISSING, False),
    (f"{_MODEL}.lora.rank", _MISSING, 0),
    (f"{_MODEL}.lora_rank", 0, 0),
    (f"{_MODEL}.use_fused_kernels", False, False),
    (f"{_MODEL}.use_remove_padding", False, True),
    (f"{_REF}.fsdp_config.param_offload", False, False),
    (
        f"{_REF}.log_prob_max_token_len_per_gpu",
        f"${{{_ACTOR}.ppo_max_token_len_per_gpu}}",
        f"${{oc.select:{_ACTOR}.ppo_max_token_len_per_gpu,16384}}",
    ),
    (f"{_REF}.log_prob_micro_batch_size", None, None),
    (f"{_REF}.log_prob_micro_batch_size_per_gpu", None, None),
    (
        f"{_REF}.log_prob_use_dynamic_bsz",
        f"${{{_ACTOR}.use_dynamic_bsz}}",
        f"${{oc.select:{_ACTOR}.use_dynamic_bsz,false}}",
    ),
    (f"{_ROLLOUT}.calculate_log_probs", False, True),
    (f"{_ROLLOUT}.cudagraph_capture_sizes", _MISSING, None),
    (f"{_ROLLOUT}.data_parallel_size", _MISSING, 1),
    (f"{_ROLLOUT}.do_sample", True, True),
    (f"{_ROLLOUT}.dtype", "bfloat16", "bfloat16"),
    (f"{_ROLLOUT}.enable_chunked_prefill", True, True),
    (f"{_ROLLOUT}.enable_prefix_caching", _MISSING, True),
    (f"{_ROLLOUT}.enforce_eager", True, False),
    (f"{_ROLLOUT}.free_cache_engine", True, True),
    (f"{_ROLLOUT}.gpu_memory_utilization", 0.5, 0.5),
    (f"{_ROLLOUT}.ignore_eos", False, False),
    (f"{_ROLLOUT}.load_format", "dummy_dtensor", "dummy"),
    (
        f"{_ROLLOUT}.log_prob_max_token_len_per_gpu",
        f"${{{_ACTOR}.ppo_max_token_len_per_gpu}}",
        f"${{oc.select:{_ACTOR}.ppo_max_token_len_per_gpu,16384}}",
    ),
    (f"{_ROLLOUT}.log_prob_micro_batch_size", None, None),
    (f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu", None, None),
    (
        f"{_ROLLOUT}.log_prob_use_dynamic_bsz",
        f"${{{_ACTOR}.use_dynamic_bsz}}",
        f"${{oc.select:{_ACTOR}.use_dynamic_bsz,false}}",
    ),
    (f"{_ROLLOUT}.max_model_len", None, None),
    (f"{_ROLLOUT}.max_num_batched_tokens", 8192, 8192),
    (f"{_ROLLOUT}.max_num_seqs", 1024, 256),
    (f"{_ROLLOUT}.mode", "sync", "async"),
    (f"{_ROLLOUT}.n", 1, 1),
    (f"{_ROLLOUT}.seed", _MISSING, 42),
    (f"{_ROLLOUT}.temperature", 1.0, 1.0),
    (f"{_ROLLOUT}.tensor_model_parallel_size", 2, 2),
    (f"{_ROLLOUT}.top_k", -1, -1),
    (f"{_ROLLOUT}.top_p", 1, 1),
    ("reward_model.enable", False, None),
    ("reward_model.launch_reward_fn_async", False, _MISSING),
    ("trainer.balance_batch", True, True),
    ("trainer.n_gpus_per_node", 8, 8),
    ("trainer.nnodes", 1, 1),
    ("trainer.save_freq", -1, -1),
    ("trainer.test_freq", -1, -1),
    ("trainer.use_v1", _MISSING, True),
    ("trainer.v1.trainer_mode", _MISSING, "sync"),
    ("trainer.val_before_train", True, True),
)

DEFAULTS: Mapping[str, Mapping[str, tuple[Any, str]]] = {
    version: {row[0]: (row[column], file) for row in _ROWS if row[column] is not _MISSING}
    for column, (version, file) in enumerate(_YAML.items(), start=1)
}
"""verl's version -> key -> (default, the file of its wheel that has it)"""
