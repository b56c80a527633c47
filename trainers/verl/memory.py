"""Estimates verl's memory at its two peaks on one GPU."""

from __future__ import annotations

from common.model_facts import ModelFacts
from trainers.cases import Case
from trainers.memory_estimate import CONTEXT_GIB, GIB, MemoryEstimate, Part, pass_parts
from trainers.verl.driver.overrides import ACTOR, MODEL, REF, ROLLOUT
from trainers.verl.engine_settings import WEIGHTS_STAY
from trainers.verl.releases import release_named

_BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}


def memory(case: Case, gib: float, model: ModelFacts) -> MemoryEstimate:
    """The estimate of FSDP's shards and the engine's share, which take turns."""
    pool, rollout, awake = _rollout(case, gib, model)
    per_token = model.kv_bytes / min(case.tensor_parallel, model.kv_heads)
    return MemoryEstimate(
        gpu=str(case.workload.get("gpu")),
        gib=gib,
        update=(*_update(case, model), *awake, *_reference(case, model)),
        rollout=rollout,
        kv_tokens=int(max(0.0, pool) * GIB / per_token),
        kv_wanted=min(case.per_replica, _sequences_at_once(case)) * case.longest,
        model=model,
        update_advice=(
            f"more GPUs to share the weights, a smaller micro_batch_size or {ACTOR}.ppo_max_token_len_per_gpu, or "
            f"{ACTOR}.strategy: fsdp2 with {ACTOR}.fsdp_config.offload_policy: True"
        ),
        rollout_advice=(
            f"{ROLLOUT}.gpu_memory_utilization: less; or {ACTOR}.fsdp_config.param_offload and optimizer_offload: True"
        ),
    )


def shards(case: Case) -> int:
    """GPUs that share the weights."""
    ways = case.settings.int(f"{ACTOR}.fsdp_config.fsdp_size", -1)
    return case.gpus if ways < 1 else min(ways, case.gpus)


def _width(case: Case) -> int:
    """Bytes of a weight in the optimizer (fsdp_workers.py:216 of 0.4.1)."""
    return _BYTES.get(str(case.settings.get(f"{ACTOR}.fsdp_config.model_dtype") or "fp32"), 4)


def _update(case: Case, model: ModelFacts) -> list[Part]:
    """The parts while the policy is updated; verl's own offload has brought weights and moments back."""
    ways, width = shards(case), _width(case)
    shard = (model.parameters or 0) * width / ways / GIB
    streamed = case.settings.true(f"{ACTOR}.fsdp_config.offload_policy")
    parts = [] if streamed else [Part(f"weights, 1/{ways}, {width} bytes each", shard, True)]
    if not case.lora:
        where = [] if streamed else [Part(f"AdamW's two moments, 1/{ways}", 2 * shard, True)]
        parts += [Part(f"gradients, 1/{ways}", 0 if streamed else shard, True), *where]
    checkpointed = case.settings.get(f"{MODEL}.enable_gradient_checkpointing", True) is not False
    return [*parts, *pass_parts(model, _tokens_per_pass(case), checkpointed)]


def _rollout(case: Case, gib: float, model: ModelFacts) -> tuple[float, tuple[Part, ...], list[Part]]:
    """GiB for keys and values, all parts while the engine generates, and the parts that stay for the update."""
    settings, parameters, release = case.settings, model.parameters or 0, release_named(case.version)
    shard = parameters * _width(case) / shards(case) / GIB
    streamed = settings.true(f"{ACTOR}.fsdp_config.offload_policy")
    share = settings.number(f"{ROLLOUT}.gpu_memory_utilization") or 0.5
    weights = parameters * 2 / case.tensor_parallel / GIB
    left = []
    if not settings.true(f"{ACTOR}.fsdp_config.param_offload") and not streamed:
        left.append(Part("the trainer's weights, not offloaded", shard, True))
    # AdamW allocates its moments in the first update, after the engine is built.
    at_start = MemoryEstimate.sum(tuple(left)) + CONTEXT_GIB
    if not settings.true(f"{ACTOR}.fsdp_config.optimizer_offload") and not streamed and not case.lora:
        left.append(Part("the trainer's moments, not offloaded", 2 * shard, True))
    # vLLM's share is of all memory, SGLang's of the memory free at its start. vLLM subtracts what it uses beside the
    # weights; 0.8.5 also the trainer's memory, whose process it is in (vllm/v1/worker/gpu_worker.py:203).
    budget = share * (gib if case.engine.name != "sglang" else max(0.0, gib - at_start))
    prefill = 0.0
    pool = budget - weights
    if case.engine.name == "vllm":
        # vLLM reserves memory for its largest possible pass.
        prefill = settings.int(f"{ROLLOUT}.max_num_batched_tokens", 8192) * model.hidden * 2 * 12 / GIB
        pool -= prefill + (at_start if release.engine_in_worker else CONTEXT_GIB)
    rollout = (
        Part(f"the engine's weights, 1/{case.tensor_parallel}", weights, True),
        Part("room for keys and values", max(0.0, pool), False),
        *([Part("vLLM's largest pass", prefill, False)] if prefill else []),
        *left,
        Part("CUDA context, NCCL, graphs", CONTEXT_GIB, False),
    )
    awake = []
    if not release.engine_in_worker and not settings.true(f"{ROLLOUT}.free_cache_engine"):
        awake = [Part("the engine, always awake (free_cache_engine: False)", max(0.0, budget), True)]
    elif case.behaviour("sleep") == WEIGHTS_STAY:
        awake = [Part("the engine's weights, which stay with an adapter", weights, True)]
    return pool, rollout, awake


def _reference(case: Case, model: ModelFacts) -> list[Part]:
    """The reference's weights if they stay on the GPU; with LoRA the policy without its adapter is the reference."""
    settings, ways = case.settings, shards(case)
    kept = release_named(case.version).reference_stays and not case.lora and settings.true(f"{ACTOR}.use_kl_loss")
    if not kept or settings.get(f"{ACTOR}.strategy") == "fsdp2" or settings.true(f"{REF}.fsdp_config.param_offload"):
        return []
    return [Part(f"the reference's weights, 1/{ways}", (model.parameters or 0) * 4 / ways / GIB, False)]


def _sequences_at_once(case: Case) -> int:
    """Sequences that an engine decodes at once; all of them if verl passes no limit."""
    release = release_named(case.version)
    if case.engine.name in release.engines_without_options:
        return case.per_replica
    limits = (f"{ROLLOUT}.engine_kwargs.{case.engine.name}.{case.engine.max_sequences_option}", release.sequence_limit)
    return next((limit for key in limits if (limit := case.settings.int(key))), case.per_replica)


def _tokens_per_pass(case: Case) -> int:
    """The most tokens of one forward and backward pass on one GPU."""
    settings = case.settings
    parallel = max(1, settings.int(f"{ACTOR}.ulysses_sequence_parallel_size", 1))
    if settings.true(f"{ACTOR}.use_dynamic_bsz"):
        return settings.int(f"{ACTOR}.ppo_max_token_len_per_gpu", case.longest)
    micro = settings.int(f"{ACTOR}.ppo_micro_batch_size_per_gpu", 1)
    return micro * case.longest // parallel
