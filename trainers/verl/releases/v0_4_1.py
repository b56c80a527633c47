"""verl 0.4.1: its settings and its limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from common.model_facts import ModelFacts
from trainers.verl import hooks
from trainers.verl.driver.overrides import ACTOR, ROLLOUT
from trainers.verl.releases.release import JOB_KEYS, RESERVED_KEYS, TRL_DEFAULTS, DerivedSettings, Release

if TYPE_CHECKING:
    from trainers.cases import Case
    from trainers.workload import Workload

_WORKERS = "verl 0.4.1, workers"
_VLLM = f"{_WORKERS}/rollout/vllm_rollout/vllm_rollout_spmd.py"
_SGLANG = f"{_WORKERS}/rollout/sglang_rollout/sglang_rollout.py"


def _derived(workload: Workload, seed: int) -> DerivedSettings:
    return {
        f"{ACTOR}.optim.warmup_style": ("lr_warmup_steps", "constant"),
        "reward_model.enable": ("rewards", False),
        "reward_model.reward_manager": ("rewards", "naive"),
        "+data.seed": ("seeds", seed),
    }


def _validate(config: Any) -> None:
    reference = config.actor_rollout_ref.actor.use_kl_loss or config.algorithm.use_kl_in_reward
    hooks.CHECK.get()(SimpleNamespace(config=config, use_reference_policy=reference, use_critic=False))


def _context(case: Case, model: ModelFacts) -> tuple[str, str]:
    """It checks the model's context for any max_model_len, with vLLM not if the model has rope_scaling."""
    source = {"vllm": f"{_VLLM}:124", "sglang": f"{_SGLANG}:358"}.get(case.engine.name, "the check of max_model_len")
    if case.engine.name == "vllm" and model.rope_scaling:
        return "verl 0.4.1 skips the check for a model with rope_scaling; the rest depends on the model", source
    return "", source


V0_4_1 = Release(
    "0.4.1",
    job_keys=(*JOB_KEYS, "ray_init.num_cpus"),
    reward_key="custom_reward_function",
    sums_micro_batch=("dr_grpo",),
    derived=_derived,
    # rollout.seed would become the seed of every single request: all prompts would draw the same random numbers.
    # It also passes on each key that an engine's sampling parameters have: vLLM has one limit, SGLang the other.
    reserved_keys={
        **RESERVED_KEYS,
        f"{ROLLOUT}.seed": "seeds",
        **dict.fromkeys((f"{ROLLOUT}.max_tokens", f"{ROLLOUT}.max_new_tokens"), "max_response_length"),
    },
    trl_defaults={**TRL_DEFAULTS, f"{ACTOR}.grad_clip": 1.0},
    # trainer/config/ppo_trainer.yaml
    defaults={
        f"{ROLLOUT}.enforce_eager": True,
        f"{ROLLOUT}.free_cache_engine": True,
        f"{ROLLOUT}.tensor_model_parallel_size": 2,
    },
    validate=_validate,
    engines_without_options=("sglang",),
    serves=False,
    context=_context,
    cpus_with_gpu=1,
)
