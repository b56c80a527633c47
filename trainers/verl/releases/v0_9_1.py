"""verl 0.9.1: its settings, its limits, what vLLM 0.24 and SGLang 0.5.12 make of settings, and its timers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from trainers.cases import Case, Describe, Effect, Rule
from trainers.verl import behaviours as read
from trainers.verl import hooks, timers
from trainers.verl.driver.overrides import ACTOR, MODEL, ROLLOUT
from trainers.verl.releases.release import (
    CHANGES,
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
_BLACKWELL = ("b100", "b200", "b300", "gb200", "gb300")


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
    return case.lora if case.engine.name == "sglang" and read.with_adapter(case) else None


def _ignores_ignore_eos(case: Case) -> bool:
    asked = case.engine.name == "sglang" and case.settings.true(f"{ROLLOUT}.ignore_eos")
    return asked and case.behaviour("ignore-eos") == read.STOPS


def _compiles_kernels(case: Case) -> str | None:
    """The stack, if its engine compiles a kernel in every run; the stack's own checks do not look for its compiler."""
    return (
        case.stack
        if case.engine.name == "vllm" and read.engine_option(case, "attention_backend") == "FLASHINFER"
        else None
    )


_CHECKS = (
    Rule(
        "ignore-eos",
        "unequal",
        _ignores_ignore_eos,
        "ignore_eos: True does not reach SGLang",
        "it still stops at the end token, so its lengths are not the fixed ones that you asked for; vLLM's are",
        "verl 0.9.1, trainer/ppo/v1/agent_loop_tq.py:64: no ignore_eos among the sampling parameters",
        f"{ROLLOUT}.ignore_eos: False in all arms, and compare at equal work; or, beside it, {read.PREFERRED}",
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


def _graphs_of_vllm(case: Case) -> str | None:
    """engine_kwargs come after verl's own arguments and override them."""
    mode = read.engine_option(case, "compilation_config.cudagraph_mode")
    if isinstance(mode, str) and mode.upper() == "NONE":
        return "off"
    return read.switch(read.engine_option(case, "enforce_eager"), "on", "off") or read.graphs(case)


def _attention_of_vllm(case: Case) -> str | None:
    backend = read.engine_option(case, "attention_backend") or read.engine_option(case, "attention_config.backend")
    if backend and str(backend).lower() != "auto":
        return read.attention_name(str(backend))
    return "flashinfer" if str(case.workload.get("gpu") or "").lower().startswith(_BLACKWELL) else "FlashAttention"


def _attention_of_sglang(case: Case) -> str | None:
    backend = read.engine_option(case, "attention_backend")
    if backend:
        return read.attention_name(str(backend))
    release = case.pins.packages.get("sglang")
    if release is None:
        return None
    return "flashinfer" if tuple(map(int, re.findall(r"\d+", release)[:3])) >= (0, 5, 12) else "FlashAttention"


def _all_reduce(case: Case) -> str:
    return "off" if read.engine_option(case, "disable_custom_all_reduce") is True else read.all_reduce(case)


_sequences_of_vllm = read.limit("max_num_seqs", "max_num_seqs")


def _prefill_of_sglang(case: Case) -> str | None:
    given = read.engine_option(case, "chunked_prefill_size")
    return str(given) if given else read.by_memory(case, ((35, 2048), (60, 4096), (160, 8192), (read.ANY_GPU, 16384)))


def _captured_by_vllm(case: Case) -> str | None:
    sizes = read.rollout(case, "cudagraph_capture_sizes")
    if isinstance(sizes, list) and sizes:
        return str(max(sizes))
    sequences, tokens = _sequences_of_vllm(case) or "", read.prefill_limit(case) or ""
    return str(min(2 * int(sequences), 512, int(tokens))) if sequences.isdigit() and tokens.isdigit() else None


def _captured_by_sglang(case: Case) -> str | None:
    if given := read.engine_option(case, "cuda_graph_max_bs"):
        return str(given)
    sizes = (80, 160, 512, 512) if case.tensor_parallel >= 4 else (24, 32, 256, 512)
    return read.by_memory(case, tuple(zip((35, 60, 160, read.ANY_GPU), sizes, strict=True)))


def _prefix_of_vllm(case: Case) -> str | None:
    name = "enable_prefix_caching"
    return read.switch(read.engine_option(case, name)) or read.switch(read.rollout(case, name))


def _seed(option: str, default: str) -> Describe:
    def describe(case: Case) -> str:
        given = read.engine_option(case, option)
        return default if given is None else f"fixed: {given} in every replica"

    return describe


def _sleep(asleep: str, with_adapter: str) -> Describe:
    def describe(case: Case) -> str | None:
        text = with_adapter if read.with_adapter(case) else asleep
        return read.switch(read.rollout(case, "free_cache_engine"), "stays awake", text)

    return describe


def _end_token_of_sglang(case: Case) -> str | None:
    """verl does not pass ignore_eos on; SGLang's preferred parameters apply to requests without it."""
    wanted = read.engine_option(case, "preferred_sampling_params.ignore_eos")
    preferred = read.engine_option(case, "preferred_sampling_params")
    if isinstance(preferred, str):
        try:
            parsed = json.loads(preferred)
        except ValueError:
            return None
        wanted = parsed.get("ignore_eos") if isinstance(parsed, Mapping) else None
    return read.GOES_ON if wanted is True else read.STOPS


_SERVER_ONLY = Effect("async", "verl 0.9.1, workers/config/rollout.py: sync has been removed")
_OF_VLLM = {
    "cuda-graphs": Effect(_graphs_of_vllm, f"{_VLLM}:339"),
    "graph-sizes": Effect(_captured_by_vllm, f"{_VLLM}:321; vLLM, vllm/config/vllm.py, _set_cudagraph_sizes"),
    "attention-kernels": Effect(
        _attention_of_vllm,
        "vLLM 0.24.0, vllm/platforms/cuda.py:144: FlashAttention, on Blackwell flashinfer; "
        f"{_VLLM}:349 passes another one on. VLLM_ATTENTION_BACKEND is no longer read",
    ),
    "custom-all-reduce": Effect(_all_reduce, f"{_VLLM}:325, vLLM's default"),
    "memory-share": Effect(
        read.share("all memory", "num_gpu_blocks_override", 16),
        f"{_VLLM}:340; vLLM 0.24.0, vllm/v1/worker/utils.py:410",
    ),
    "sequence-limit": Effect(_sequences_of_vllm, f"{_VLLM}:333"),
    "prefill-limit": Effect(read.prefill_limit, f"{_VLLM}:335"),
    "prefix-cache": Effect(_prefix_of_vllm, f"{_VLLM}:336"),
    "sampling-seed": Effect(
        # The adapter sets rollout.seed to the run's seed; no option may change it.
        _seed("seed", "fixed: the run's seed + the replica's number"),
        f"{_VLLM}:343",
    ),
    "sleep": Effect(_sleep(read.DROPPED, read.COPIED), f"{_VLLM}:853 and :1289 (level 2; with an adapter level 1)"),
    "ignore-eos": Effect(read.end_token, f"{_VLLM}:624"),
    "rollout-mode": _SERVER_ONLY,
}
_OF_SGLANG = {
    "cuda-graphs": Effect(
        lambda case: read.switch(read.engine_option(case, "disable_cuda_graph"), "on", "off") or read.graphs(case),
        f"{_SGLANG}:318",
    ),
    "graph-sizes": Effect(_captured_by_sglang, "sglang 0.5.12, srt/server_args.py:1401"),
    "attention-kernels": Effect(_attention_of_sglang, f"{_SGLANG}:289: flashinfer from sglang 0.5.12 on"),
    "custom-all-reduce": Effect(_all_reduce, f"{_SGLANG}:314, SGLang's default"),
    "memory-share": Effect(
        read.share("the memory free at its start", "max_total_tokens"),
        f"{_SGLANG}:317; sglang 0.5.12, srt/model_executor/model_runner_kv_cache_mixin.py:70",
    ),
    "sequence-limit": Effect(
        read.limit("max_running_requests", "max_num_seqs"), f"{_SGLANG}:329 as max_running_requests"
    ),
    "prefill-limit": Effect(
        _prefill_of_sglang, f"{_SGLANG}:314, which maps none; sglang 0.5.12, srt/server_args.py:1459"
    ),
    "prefix-cache": Effect(
        lambda case: "off" if read.engine_option(case, "disable_radix_cache") is True else "on",
        f"{_SGLANG}:314, which does not map enable_prefix_caching: SGLang's default (radix cache)",
    ),
    "sampling-seed": Effect(
        _seed("random_seed", "random at each start"), f"{_SGLANG}:314; sglang 0.5.12, srt/server_args.py:1174"
    ),
    "sleep": Effect(_sleep(read.COPIED, read.WEIGHTS_STAY), f"{_SGLANG}:387 and :516"),
    "ignore-eos": Effect(
        _end_token_of_sglang,
        "verl 0.9.1, trainer/ppo/v1/agent_loop_tq.py:64: no ignore_eos in it; sglang 0.5.12, "
        "srt/managers/tokenizer_manager.py:983",
    ),
    "rollout-mode": _SERVER_ONLY,
}


_CHANGES = {
    **CHANGES,
    "cuda-graphs": f"{ROLLOUT}.enforce_eager: the same in all arms",
    "graph-sizes": f"{ROLLOUT}.max_num_seqs or cudagraph_capture_sizes: the same in all arms; in the SGLang arms "
    f"+{ROLLOUT}.engine_kwargs.sglang.cuda_graph_max_bs: what a replica decodes at once, or more",
    "attention-kernels": f"+{ROLLOUT}.engine_kwargs.<engine>.attention_backend: the same kernel in all arms "
    "(FLASHINFER and flashinfer)",
    "custom-all-reduce": f"+{ROLLOUT}.engine_kwargs.<engine>.disable_custom_all_reduce: the same in all arms",
    "memory-share": (
        f"the same cache by number: +{ROLLOUT}.engine_kwargs.vllm.num_gpu_blocks_override (blocks of 16 tokens) and "
        f"+{ROLLOUT}.engine_kwargs.sglang.max_total_tokens"
    ),
    "sequence-limit": f"{ROLLOUT}.max_num_seqs: the same in all arms",
    "prefill-limit": f"+{ROLLOUT}.engine_kwargs.sglang.chunked_prefill_size: {ROLLOUT}.max_num_batched_tokens of the "
    "others",
    "sampling-seed": f"+{ROLLOUT}.engine_kwargs.sglang.random_seed: a number; and several seeds of the experiment",
    "sleep": f"{ROLLOUT}.free_cache_engine: False, where the engine fits beside the trainer",
}

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
    validation=_validation,
    checks=_CHECKS,
    effects={"vllm": _OF_VLLM, "sglang": _OF_SGLANG},
    changes=_CHANGES,
    context=partial(context_by_length, sources={"vllm": f"{_VLLM}:1107 and :593", "sglang": f"{_SGLANG}:170 and :588"}),
    storage_units=8,
    trees=timers.OF_0_9_1,
)
