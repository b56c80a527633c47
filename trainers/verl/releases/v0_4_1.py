"""verl 0.4.1: its settings, its limits, what vLLM 0.8.5 and SGLang 0.4.6.post5 make of settings, and its timers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from common.model_facts import ModelFacts, model_facts
from trainers.cases import Case, Effect, Rule
from trainers.verl import behaviours as read
from trainers.verl import hooks, timers
from trainers.verl.driver.overrides import ACTOR, MODEL, ROLLOUT
from trainers.verl.releases.release import CHANGES, JOB_KEYS, RESERVED_KEYS, TRL_DEFAULTS, DerivedSettings, Release

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
    return read.rollout(case, "enforce_eager") is False and read.rollout(case, "free_cache_engine") is True


def _lora_on_sglang(case: Case) -> int | None:
    return case.lora if case.lora and case.engine.name == "sglang" else None


def _dummy_base(case: Case) -> str | None:
    load = str(read.rollout(case, "load_format"))
    return load if case.lora and read.rollout(case, "layered_summon") and load.startswith("dummy") else None


def _dropped_remainder(case: Case) -> str | None:
    mini = case.settings.int(f"{ACTOR}.ppo_mini_batch_size") * case.settings.int(f"{ROLLOUT}.n", 1)
    groups = case.gpus // max(1, case.settings.int(f"{ACTOR}.ulysses_sequence_parallel_size", 1))
    return f"{mini} completions over {groups} data-parallel groups" if groups and mini % groups else None


def _engine_options(case: Case) -> list[str]:
    """The engine's own options that the run sets; those of the packaged configuration do not count."""
    section = f"{ROLLOUT}.engine_kwargs.{case.engine.name}"
    return [key for key in case.settings.under(section) if f"{section}.{key}" in case.settings.given]


def _ignored_options(case: Case) -> str | None:
    given, ignored = _engine_options(case), case.engine.name == "sglang" or read.rollout(case, "mode") == "async"
    return f"{case.engine.name} ({', '.join(given)})" if given and ignored else None


def _added_to_rollout(case: Case) -> str | None:
    """Keys directly in the rollout's section that verl's own configuration lacks."""
    start = f"+{ROLLOUT}."
    keys = [text.partition("=")[0] for text in case.overrides]
    return ", ".join(key for key in keys if key.startswith(start) and "." not in key.removeprefix(start)) or None


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

# sglang 0.4.6.post5, srt/utils.py:2096: architectures for which it chooses FlashAttention 3 on Hopper.
_FLASH_ATTENTION_3 = (
    *("Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "LlamaForCausalLM"),
    *("Llama4ForConditionalGeneration", "Gemma2ForCausalLM", "Gemma3ForConditionalGeneration"),
)
_HOPPER = ("h100", "h200", "h800", "h20-", "gh200")


def _attention_of_vllm(case: Case) -> str | None:
    backend = case.env.get("VLLM_ATTENTION_BACKEND")
    return read.attention_name(backend) if backend else "FlashAttention"


def _attention_of_sglang(case: Case) -> str | None:
    model = model_facts(str(case.workload["model"]["source"]))
    if model is None:
        return None
    if model.architecture not in _FLASH_ATTENTION_3:
        return "flashinfer"
    gpu = str(case.workload.get("gpu") or "").lower()
    return None if not gpu else "FlashAttention" if gpu.startswith(_HOPPER) else "flashinfer"


def _sequences_of_vllm(case: Case) -> str | None:
    """verl passes no limit, so vLLM 0.8.5 chooses one by the GPU's memory."""
    given = None if read.rollout(case, "mode") == "async" else read.engine_option(case, "max_num_seqs")
    chosen = read.by_memory(case, ((70, 256), (read.ANY_GPU, 1024))) or "vLLM's own (256 or 1024)"
    return str(given) if given else chosen


def _captured_by_sglang(case: Case) -> str | None:
    few = 8 if case.tensor_parallel < 4 else 80
    return read.by_memory(case, ((24.5, few), (96.5, 160), (read.ANY_GPU, 256)))


def _seed_of_vllm(case: Case) -> str | None:
    if read.rollout(case, "mode") == "async":
        return "fixed: the replica's number"
    # The engine runs in the worker's process, where verl sets the random state before each rollout: the engine's own
    # seed of 0 has no effect. rollout.seed would be the seed of every request: the adapter refuses it.
    return "fixed: 1000 + the replica's number, whatever the run's seed"


def _mode(case: Case) -> str | None:
    value = read.rollout(case, "mode")
    return None if value is None else str(value)


_OF_VLLM = {
    "cuda-graphs": Effect(
        read.graphs, f"{_VLLM}:155; default True in ppo_trainer.yaml; on by default since 0.6.0 (verl PR 2956)"
    ),
    "graph-sizes": Effect("512", "vLLM 0.8.5, vllm/config.py, _set_cudagraph_sizes"),
    "attention-kernels": Effect(
        _attention_of_vllm,
        "vLLM 0.8.5, vllm/platforms/cuda.py:220: FlashAttention from Ampere on, unless VLLM_ATTENTION_BACKEND is set",
    ),
    "custom-all-reduce": Effect("off", f"{_VLLM}:157, hard-coded"),
    "memory-share": Effect(
        read.share("all memory", "num_gpu_blocks_override", 16),
        f"{_VLLM}:156; vLLM 0.8.5, vllm/v1/worker/gpu_worker.py:208",
    ),
    "sequence-limit": Effect(
        _sequences_of_vllm,
        f"{_VLLM}:149, which passes no max_num_seqs; vLLM 0.8.5, vllm/engine/arg_utils.py:1596: 1024 from 70 GiB on",
    ),
    "prefill-limit": Effect(read.prefill_limit, f"{_VLLM}:162"),
    "prefix-cache": Effect("on", f"{_VLLM}:164, hard-coded"),
    "sampling-seed": Effect(
        _seed_of_vllm,
        f"{_WORKERS}/sharding_manager/fsdp_vllm.py:90 and :204; vLLM 0.8.5, vllm/config.py:1726 (no process of its "
        f"own); in mode async {_ASYNC_VLLM}:183",
    ),
    "sleep": Effect(
        read.COPIED, f"{_WORKERS}/sharding_manager/fsdp_vllm.py:215, whatever free_cache_engine is (level 1)"
    ),
    "ignore-eos": Effect(read.end_token, f"{_VLLM}:185"),
    "rollout-mode": Effect(_mode, f"{_FSDP}:430"),
}
_OF_SGLANG = {
    "cuda-graphs": Effect("on", f"{_SGLANG}:390, which never passes the flag (only asserted on, :288; verl PR 3456)"),
    "graph-sizes": Effect(
        _captured_by_sglang, f"{_SGLANG_CODE}/model_executor/cuda_graph_runner.py:127, srt/server_args.py:298"
    ),
    "attention-kernels": Effect(
        _attention_of_sglang, f"{_SGLANG_CODE}/model_executor/model_runner.py:317 and srt/utils.py:2096"
    ),
    "custom-all-reduce": Effect(read.all_reduce, f"{_SGLANG}:390, SGLang's default"),
    "memory-share": Effect(
        read.share("the memory free at its start"),
        f"{_SGLANG}:393 as mem_fraction_static; {_SGLANG_CODE}/model_executor/model_runner.py:816",
    ),
    "sequence-limit": Effect("SGLang's own (2048 or more)", f"{_SGLANG}:390; sglang 0.4.6.post5, model_runner.py:845"),
    "prefill-limit": Effect(
        lambda case: read.by_memory(case, ((24.5, 2048), (read.ANY_GPU, 8192))),
        f"{_SGLANG}:390, which passes none; {_SGLANG_CODE}/server_args.py:271",
    ),
    "prefix-cache": Effect("on", f"{_SGLANG}:390, SGLang's default (radix cache)"),
    "sampling-seed": Effect("random at each start", f"{_SGLANG}:390; {_SGLANG_CODE}/server_args.py:241"),
    "sleep": Effect(read.DROPPED, f"{_WORKERS}/sharding_manager/fsdp_sglang.py:187, whatever free_cache_engine is"),
    "ignore-eos": Effect(read.end_token, f"{_SGLANG}:430"),
    "rollout-mode": Effect(_mode, "verl 0.4.1, trainer/main_ppo.py:105"),
}


_FEWER = "fewer completions per replica and step (a smaller batch_size, or more GPUs): 0.4.1 passes SGLang no"
_CHANGES = {
    **CHANGES,
    "cuda-graphs": f"in the arms without graphs: {ROLLOUT}.enforce_eager: False, with {ROLLOUT}.free_cache_engine: "
    "False (an assertion of 0.4.1 requires both; vLLM sleeps between rollouts in both cases). SGLang of 0.4.1 has no "
    "setting that turns graphs off",
    "graph-sizes": f"{_FEWER} size",
    "attention-kernels": "verl 0.9.1, which passes a choice to both engines: 0.4.1 passes SGLang none. In the vLLM "
    "arms' env, VLLM_ATTENTION_BACKEND: FLASHINFER needs a stack of your own that pins flashinfer-python; with "
    "verl04-vllm, which does not, vLLM ends with an error",
    "custom-all-reduce": f"{ROLLOUT}.tensor_model_parallel_size: 1, where the model fits one GPU: nothing is reduced "
    "then. 0.4.1 has no setting for it, 0.9.1 leaves it on in both engines",
    "memory-share": f"choose {ROLLOUT}.gpu_memory_utilization in each arm so that the engines report about the same "
    "number of cached tokens in their first lines, or lower the batch until every sequence fits",
    "sequence-limit": f"{_FEWER} limit; vLLM's is +{ROLLOUT}.engine_kwargs.vllm.max_num_seqs",
    "prefill-limit": f"{ROLLOUT}.max_num_batched_tokens in the vLLM arms at SGLang's own choice (8192 on GPUs of 80 "
    "GB)",
    "sampling-seed": "several seeds, and read response lengths with every time: 0.4.1 passes SGLang no seed",
    "sleep": "nothing: 0.4.1 has no setting for it. reshard is timed separately, the copy to the CPU only within gen",
}

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
    validation=_validation,
    checks=_CHECKS,
    effects={"vllm": _OF_VLLM, "sglang": _OF_SGLANG},
    changes=_CHANGES,
    engines_without_options=("sglang",),
    context=_context,
    cpus_with_gpu=1,
    trees=(
        timers.loop_before_v1(
            "0.4.1",
            "verl 0.4.1 trainer/ppo/ray_trainer.py (fit), workers/fsdp_workers.py, workers/sharding_manager/",
            "Driver wall clock; its own time is the wait for the slowest rank, putting the engine to sleep and moving "
            "the batch.",
            (timers.GENERATE_SEQUENCES, timers.RESHARD),
            timers.INSIDE_FIRST,
        ),
    ),
)
