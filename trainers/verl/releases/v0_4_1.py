"""verl 0.4.1: its settings and its limits."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from common.model_facts import ModelFacts
from trainers.cases import Case, Rule
from trainers.verl import hooks
from trainers.verl.driver.overrides import ACTOR, MODEL, ROLLOUT
from trainers.verl.releases.release import JOB_KEYS, RESERVED_KEYS, TRL_DEFAULTS, DerivedSettings, Release, rollout

if TYPE_CHECKING:
    from trainers.workload import Workload

_WORKERS = "verl 0.4.1, workers"
_VLLM = f"{_WORKERS}/rollout/vllm_rollout/vllm_rollout_spmd.py"
_SGLANG = f"{_WORKERS}/rollout/sglang_rollout/sglang_rollout.py"
_ASYNC_VLLM = f"{_WORKERS}/rollout/vllm_rollout/vllm_async_server.py"
_FSDP = f"{_WORKERS}/fsdp_workers.py"
_TRAINER = "verl 0.4.1, trainer/ppo/ray_trainer.py"
_SGLANG_CODE = "sglang 0.4.6.post5, srt"


def _derived(workload: Workload, seed: int) -> DerivedSettings:
    return {
        f"{ACTOR}.optim.warmup_style": ("lr_warmup_steps", "constant"),
        "reward_model.enable": ("rewards", False),
        "reward_model.reward_manager": ("rewards", "naive"),
        "+data.seed": ("seeds", seed),
    }


def _validation() -> Callable[[Any], object]:
    check = hooks.CHECK.get()

    def validate(config: Any) -> None:
        reference = config.actor_rollout_ref.actor.use_kl_loss or config.algorithm.use_kl_in_reward
        trainer = SimpleNamespace(config=config, use_reference_policy=reference, use_critic=False)
        check(trainer)

    return validate


def _context(case: Case, model: ModelFacts) -> tuple[str, str]:
    """It checks the model's context for any max_model_len, with vLLM not if the model has rope_scaling."""
    source = {"vllm": f"{_VLLM}:124", "sglang": f"{_SGLANG}:358"}.get(case.engine.name, "the check of max_model_len")
    if case.engine.name == "vllm" and model.rope_scaling:
        return "verl 0.4.1 skips the check for a model with rope_scaling; the rest depends on the model", source
    return "", source


def _validation_in_step(case: Case) -> str | None:
    freq, steps = case.settings.int("trainer.test_freq", -1), int(case.workload["steps"])
    # The last step is validated too, also where `freq` does not divide it.
    every = (
        f"every {freq} steps is part of those steps' time ({-(-steps // max(1, freq))} of {steps}, always the last one)"
    )
    return every if freq > 0 else None


def _eager_and_cache(case: Case) -> bool:
    return rollout(case, "enforce_eager") is False and rollout(case, "free_cache_engine") is True


def _lora_on_sglang(case: Case) -> int | None:
    return case.lora if case.lora and case.engine.name == "sglang" else None


def _dummy_base(case: Case) -> str | None:
    load = str(rollout(case, "load_format"))
    return load if case.lora and rollout(case, "layered_summon") and load.startswith("dummy") else None


def _dropped_remainder(case: Case) -> str | None:
    mini = case.settings.int(f"{ACTOR}.ppo_mini_batch_size") * case.settings.int(f"{ROLLOUT}.n", 1)
    groups = case.gpus // max(1, case.settings.int(f"{ACTOR}.ulysses_sequence_parallel_size", 1))
    return f"{mini} completions over {groups} data-parallel groups" if groups and mini % groups else None


def _engine_options(case: Case) -> list[str]:
    """The engine's own options that the run sets; those of the packaged configuration do not count."""
    section = f"{ROLLOUT}.engine_kwargs.{case.engine.name}"
    return [key for key in case.settings.under(section) if f"{section}.{key}" in case.settings.given]


def _ignored_options(case: Case) -> str | None:
    given, ignored = _engine_options(case), case.engine.name == "sglang" or rollout(case, "mode") == "async"
    return f"{case.engine.name} ({', '.join(given)})" if given and ignored else None


def _added_to_rollout(case: Case) -> str | None:
    """Keys directly in the rollout's section that verl's own configuration lacks."""
    start = f"+{ROLLOUT}."
    keys = [text.partition("=")[0] for text in case.overrides]
    return ", ".join(key for key in keys if key.startswith(start) and "." not in key.removeprefix(start)) or None


def _without_mismatch(case: Case) -> str | None:
    temperature = case.settings.number(f"{ROLLOUT}.temperature")
    if case.settings.true(f"{ROLLOUT}.multi_turn.enable"):
        return "multi_turn"
    return None if temperature in (None, 1) else f"temperature {temperature:g}"


_CHECKS = (
    Rule(
        "eager-and-cache",
        "impossible",
        _eager_and_cache,
        f"{ROLLOUT}.free_cache_engine must be false where {ROLLOUT}.enforce_eager is, in verl 0.4.1 (got true)",
        "verl 0.4.1 ends with an assertion when the engine is built",
        f"{_VLLM}:90; {_SGLANG}:288; verl issue 995",
        f"{ROLLOUT}.free_cache_engine: False. It costs no memory in 0.4.1: with the vLLM and SGLang pinned here the "
        "engine sleeps between rollouts in both cases",
    ),
    Rule(
        "lora-sglang",
        "impossible",
        _lora_on_sglang,
        f"{MODEL}.lora_rank must be 0 with SGLang in verl 0.4.1, which has no LoRA there (got {{got}})",
        "verl 0.4.1 gives SGLang the adapter's weights under unknown names, and no check refuses them: the engine "
        "would generate from dummy weights or fail. First supported in 0.8.0",
        f"{_WORKERS}/sharding_manager/fsdp_sglang.py:114, which has no LoRA",
        f"the vLLM engine for LoRA, or a stack of 0.9.1 with {MODEL}.lora.merge: True",
    ),
    Rule(
        "lora-weights",
        "impossible",
        _dummy_base,
        f"{ROLLOUT}.load_format must be safetensors with {ROLLOUT}.layered_summon and LoRA (got {{got}})",
        "only the adapter is sent then, and no check refuses it: vLLM keeps its dummy base weights",
        f"{_WORKERS}/sharding_manager/fsdp_vllm.py",
        f"{ROLLOUT}.load_format: safetensors",
    ),
    Rule(
        "mini-batch",
        "odd",
        _dropped_remainder,
        "{got} leave a remainder",
        "verl 0.4.1 drops it: each update has fewer completions than the mini-batch",
        f"{_FSDP}:158",
        "workload.mini_batch_size: a multiple of the GPUs and of num_generations",
    ),
    Rule(
        "sampling-added",
        "unequal",
        _added_to_rollout,
        "{got} in the rollout's section, which verl's configuration lacks",
        "verl 0.4.1 passes such a key on to an engine whose sampling parameters have it, and ignores it in the others",
        f"{_VLLM}:185; {_SGLANG}:430",
        "remove it, or look for it among the sampling parameters of both engines",
    ),
    Rule(
        "engine-kwargs-ignored",
        "unequal",
        _ignored_options,
        "engine_kwargs.{got} has no effect",
        "verl 0.4.1 never reads it for SGLang, nor in mode async for vLLM: the engine runs with its own defaults",
        f"{_SGLANG}:390; in mode async {_ASYNC_VLLM}:165",
        "remove it, or compare with verl 0.9.1, which passes it on",
    ),
    Rule(
        "mismatch-not-logged",
        "odd",
        _without_mismatch,
        "no mismatch of engine and actor is logged with {got}",
        "vLLM 0.8.5 takes its log-probabilities before it divides by the temperature, and verl {version} keeps none of "
        "several turns",
        f"{_VLLM}:301; docs/trl.md#mismatch",
        "temperature 1 and single turns, or compare with verl 0.9.1",
        on_imported=False,
    ),
    Rule(
        "validation-in-step",
        "odd",
        _validation_in_step,
        "validation {got}",
        "verl {version} runs it inside timing_s/step (from 0.6.0 on it is outside); the report excludes these steps "
        "from the timings in all arms",
        "verl 0.4.1, trainer/ppo/ray_trainer.py:1151; verl PR 3117",
        "workload.test_steps: 0 while timing",
        on_imported=False,
    ),
)

V0_4_1 = Release(
    "0.4.1",
    job_keys=(*JOB_KEYS, "ray_init.num_cpus"),
    reward_key="custom_reward_function",
    loggers=("console", "wandb"),  # none of its loggers writes a file
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
    validation=_validation,
    checks=_CHECKS,
    engines_without_options=("sglang",),
    context=_context,
    cpus_with_gpu=1,
)
