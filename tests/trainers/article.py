"""The settings of the article's script, as data.

The article: Qiita, 2025-10-11, on making GRPO faster, its section 6, step 11: `phi4-grpo_8gpu_sglang-fast.sh`, for verl
0.4.1; its vLLM run differs in `rollout.name`. Values are what Hydra reads; paths of the authors' cluster are shortened.
"""

SCRIPT = {
    "algorithm.adv_estimator": "grpo", "data.train_files": "/dataset/Omni-MATH_difficulty5plus_qa_rl/train.parquet",
    "data.val_files": "/dataset/Omni-MATH_difficulty5plus_qa_rl/test.parquet", "data.train_batch_size": 16,
    "data.max_prompt_length": 1020, "data.max_response_length": 31744, "+data.dataloader_num_workers": 8,
    "reward_model.enable": False, "custom_reward_function.path": "/deps/verl/verl/utils/reward_score/phi4_reward.py",
    "actor_rollout_ref.rollout.name": "sglang", "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 4,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 2, "actor_rollout_ref.rollout.gpu_memory_utilization": 0.7,
    "actor_rollout_ref.rollout.enable_chunked_prefill": True, "actor_rollout_ref.rollout.max_num_batched_tokens": 33792,
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 4,
    "actor_rollout_ref.actor.fsdp_config.param_offload": True,
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload": True,
    "+actor_rollout_ref.ref.fsdp_config.optimizer_offload": True,
    "actor_rollout_ref.ref.fsdp_config.param_offload": True,
    "actor_rollout_ref.model.path": "/model/Phi-4-reasoning-plus", "actor_rollout_ref.model.use_remove_padding": True,
    "actor_rollout_ref.model.enable_gradient_checkpointing": True, "actor_rollout_ref.actor.strategy": "fsdp2",
    "actor_rollout_ref.actor.optim.lr": 1e-6, "actor_rollout_ref.actor.optim.lr_warmup_steps": 10,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 64, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
    "actor_rollout_ref.actor.use_dynamic_bsz": True, "actor_rollout_ref.actor.use_kl_loss": True,
    "actor_rollout_ref.actor.kl_loss_coef": 0.001, "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 39904,
    "actor_rollout_ref.actor.fsdp_config.forward_prefetch": True, "actor_rollout_ref.rollout.n": 1,
    "+actor_rollout_ref.ref.fsdp_config.model_dtype": "bf16",
    "+actor_rollout_ref.actor.fsdp_config.model_dtype": "bf16", "algorithm.use_kl_in_reward": False,
    "trainer.val_before_train": False, "trainer.n_gpus_per_node": 8, "trainer.nnodes": 1, "trainer.save_freq": 10,
    "trainer.test_freq": 100, "trainer.default_local_dir": "/training/grpo/ckpt_phi4_rplus_SGLang_Omni-MATH_reward0813",
    "trainer.logger": ["console", "wandb"], "trainer.project_name": "competition_verl_grpo_fast",
    "trainer.experiment_name": "Phi4_rplus_SGLang_Omini-MATH_reward0813", "trainer.total_epochs": 2,
}  # fmt: skip

# The reasons are for the reader of a failing test.
_ON_THE_NODE = "a path or a name that the job fills in on the node"
ELSEWHERE = {
    "data.train_files": _ON_THE_NODE,
    "data.val_files": _ON_THE_NODE,
    "custom_reward_function.path": "the reward is the workload's `phi4`, in a file of ours",
    "actor_rollout_ref.model.path": _ON_THE_NODE,
    "trainer.default_local_dir": _ON_THE_NODE,
    "trainer.project_name": _ON_THE_NODE,
    "trainer.experiment_name": _ON_THE_NODE,
    "trainer.total_epochs": "a run's length is workload.steps; the article's own runs were measured at step 3",
}
"""Settings of the script that a workload and an arm do not give, and why."""
