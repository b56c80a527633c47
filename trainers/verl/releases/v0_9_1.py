"""verl 0.9.1: its settings and its limits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from trainers.cases import Case, Rule
from trainers.verl import hooks
from trainers.verl.driver.overrides import ACTOR, MODEL, ROLLOUT
from trainers.verl.releases.release import (
    JOB_KEYS,
    RESERVED_KEYS,
    TRL_DEFAULTS,
    DerivedSettings,
    Release,
    context_by_length,
    engine_option,
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


def _validation() -> Callable[[Any], object]:
    check, as_dataclass = hooks.VALIDATE.get(), hooks.AS_DATACLASS.get()

    def validate(config: Any) -> None:
        reference = config.actor_rollout_ref.actor.use_kl_loss or config.algorithm.use_kl_in_reward
        check(config, use_reference_policy=reference, use_critic=False)
        as_dataclass(config.actor_rollout_ref.rollout)  # the actor's is part of the check

    return validate


def _adapter_served(case: Case) -> int | None:
    served = case.engine.name == "sglang" and not case.settings.true(f"{MODEL}.lora.merge")
    return case.lora if served and case.lora else None


def _ignores_ignore_eos(case: Case) -> bool:
    asked = case.engine.name == "sglang" and case.settings.true(f"{ROLLOUT}.ignore_eos")
    return asked and not engine_option(case, "preferred_sampling_params.ignore_eos")


def _compiles_kernels(case: Case) -> str | None:
    """The stack, if its engine compiles a kernel in every run; the stack's own checks do not look for its compiler."""
    return (
        case.stack if case.engine.name == "vllm" and engine_option(case, "attention_backend") == "FLASHINFER" else None
    )


_CHECKS = (
    Rule(
        "ignore-eos",
        "unequal",
        _ignores_ignore_eos,
        "ignore_eos: True does not reach SGLang",
        "it still stops at the end token, so its lengths are not the fixed ones that you asked for; vLLM's are",
        "verl 0.9.1, trainer/ppo/v1/agent_loop_tq.py:64: no ignore_eos among the sampling parameters",
        f"{ROLLOUT}.ignore_eos: False in all arms, and compare at equal work; or, beside it, "
        f"+{ROLLOUT}.engine_kwargs.sglang.preferred_sampling_params: {{{{ignore_eos: true}}}}",
    ),
    Rule(
        "lora-sglang",
        "odd",
        _adapter_served,
        "LoRA (rank {got}) served by SGLang as an adapter",
        "every token computes the adapter too, with different kernels in vLLM and SGLang",
        f"{_SGLANG}:344",
        f"{MODEL}.lora.merge: True in all arms",
    ),
    Rule(
        "kernel-compiler",
        "odd",
        _compiles_kernels,
        "attention_backend FLASHINFER compiles its kernels in the run, with nvcc of CUDA 13",
        "stack {got} does not require it: vLLM's own kernels need no compiler. Without one the engine build fails",
        "envs/verl09-vllm/stack.yaml: run_needs; docs/verl.md",
        "nvcc on the compute nodes (`module load cuda/13.0` in the profile's setup.sh, or the stack's conda layer)",
        on_imported=False,
    ),
)


V0_9_1 = Release(
    "0.9.1",
    job_keys=(
        *(*JOB_KEYS, "reward.custom_reward_function"),
        *("ray_kwargs.ray_init.num_cpus", "ray_kwargs.ray_init.runtime_env"),
    ),
    # It also composes the key of 0.4.1, and may ignore it.
    reward_key="reward.custom_reward_function",
    loggers=("console", "wandb", "file"),
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
    validation=_validation,
    checks=_CHECKS,
    context=partial(context_by_length, sources={"vllm": f"{_VLLM}:1107 and :593", "sglang": f"{_SGLANG}:170 and :588"}),
    storage_units=8,
)
