"""Writes a workload's words in those of verl, so that they mean the same as in TRL."""

from __future__ import annotations

from common.errors import UserError
from trainers.verl.driver.overrides import ACTOR, REF, ROLLOUT
from trainers.verl.releases import Release
from trainers.verl.releases.release import Words
from trainers.workload import Workload


def settings(
    workload: Workload, engine: str, seed: int, release: Release, sequence_parallel: int, dynamic: bool
) -> Words:
    """The settings that follow from the workload, the engine and the seed; a `UserError` for what verl cannot do.

    `sequence_parallel` and `dynamic` are the arm's Ulysses group size and whether it packs micro-batches by tokens.
    """
    _require_what_verl_can(workload, release, dynamic)
    generations = workload.num_generations
    mini = workload.mini_batch_size or workload.batch_size
    devices = workload.nodes * workload.gpus_per_node
    micro = workload.micro_batch_size or max(1, mini * sequence_parallel // devices)
    found: Words = {
        "algorithm.adv_estimator": ("", "grpo"),
        "algorithm.use_kl_in_reward": ("beta", False),
        "data.train_batch_size": ("batch_size", workload.batch_size // generations),
        "data.max_prompt_length": ("max_prompt_length", workload.max_prompt_length),
        "data.max_response_length": ("max_response_length", workload.max_response_length),
        f"{ACTOR}.ppo_mini_batch_size": ("mini_batch_size", mini // generations),
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": ("micro_batch_size", micro),
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": ("micro_batch_size", micro),
        f"{REF}.log_prob_micro_batch_size_per_gpu": ("micro_batch_size", micro),
        f"{ACTOR}.loss_agg_mode": ("loss_type", release.losses[workload.loss_type].mode),
        f"{ACTOR}.use_kl_loss": ("beta", workload.beta > 0),
        f"{ACTOR}.kl_loss_coef": ("beta", workload.beta),
        f"{ACTOR}.kl_loss_type": ("beta", "low_var_kl"),
        f"{ACTOR}.optim.lr": ("learning_rate", workload.learning_rate),
        f"{ACTOR}.optim.lr_warmup_steps": ("lr_warmup_steps", workload.lr_warmup_steps),
        f"{ROLLOUT}.name": ("engine", engine),
        f"{ROLLOUT}.n": ("num_generations", generations),
        f"{ROLLOUT}.temperature": ("temperature", workload.temperature),
        f"{ROLLOUT}.top_p": ("top_p", workload.top_p),
        f"{ROLLOUT}.dtype": ("dtype", workload.dtype),
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
    return found | release.words(workload, seed)


def _require_what_verl_can(workload: Workload, release: Release, dynamic: bool) -> None:
    """`UserError` for words that this release of verl has no answer to."""
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
    if release.losses[workload.loss_type].sums_micro_batch and (workload.micro_batch_size != 1 or dynamic):
        raise UserError(
            f"workload.loss_type {workload.loss_type} needs micro_batch_size 1, and no use_dynamic_bsz, with verl "
            f"{release.version}: it sums over the completions of a micro-batch where it should average, so that the "
            f"gradient grows with micro_batch_size (got {workload.micro_batch_size}); set it to 1, or take a stack "
            "with verl 0.9.1"
        )
