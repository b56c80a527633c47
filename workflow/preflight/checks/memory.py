"""Does it fit the GPU's memory? What is counted can be impossible; what is assumed can only be odd."""

from __future__ import annotations

from collections.abc import Iterator

from common.findings import Finding
from trainers.cases import ACTOR, ROLLOUT, Case
from trainers.memory_estimate import MemoryEstimate, Part, estimate_of
from workflow.preflight.surroundings import Surroundings

_SOURCE = "docs/preflight.md#memory: the estimate, and what of it is assumed"


def told(parts: tuple[Part, ...]) -> str:
    """An estimate's parts in one line, the largest first; `~` before what is assumed."""
    largest = sorted((part for part in parts if part.gib >= 0.05), key=lambda part: -part.gib)
    return " + ".join(f"{'' if part.counted else '~'}{part.gib:.1f} {part.name}" for part in largest)


def memory(case: Case, place: Surroundings) -> Iterator[Finding]:
    """Weights, optimizer, activations and cache against the GPU's memory."""
    estimate = estimate_of(case)
    if not isinstance(estimate, MemoryEstimate):
        return
    for moment, parts, change in (
        ("while the policy is updated", estimate.update, _change_update(case)),
        ("while the engine generates", estimate.rollout, _change_rollout(case)),
    ):
        counted, whole = MemoryEstimate.sum(parts, counted_only=True), MemoryEstimate.sum(parts)
        if whole <= estimate.gib:
            continue
        sure = counted > estimate.gib
        yield Finding(
            level="impossible" if sure else "odd",
            code="memory",
            arms=(case.arm,),
            what=f"{moment}: {counted if sure else whole:.0f} GiB of a GPU's {estimate.gib:.0f}"
            + ("" if sure else ", by estimate"),
            why=told(parts),
            source=_SOURCE,
            change=change,
        )
    weights = estimate.rollout[0].gib
    if case.trainer == "verl" and estimate.kv_tokens is not None and estimate.kv_tokens < case.longest:
        share = case.settings.number(f"{ROLLOUT}.gpu_memory_utilization") or 0.0
        none = weights >= share * estimate.gib
        yield Finding(
            level="impossible" if none else "odd",
            code="memory-cache",
            arms=(case.arm,),
            what=f"the engine's cache has room for {estimate.kv_tokens} tokens, by estimate, and one sequence may have "
            f"{case.longest}",
            why=f"gpu_memory_utilization {share:g} of {estimate.gib:.0f} GiB, less {weights:.1f} GiB of weights",
            source=_SOURCE,
            change=f"{ROLLOUT}.gpu_memory_utilization: more; or {ROLLOUT}.tensor_model_parallel_size: more",
        )


def _change_update(case: Case) -> str:
    if case.trainer != "verl":
        return "a smaller model or micro_batch_size, vllm_enable_sleep_mode: True, or trainer verl on more GPUs"
    return (
        f"more GPUs to share the weights, a smaller micro_batch_size or {ACTOR}.ppo_max_token_len_per_gpu, or "
        f"{ACTOR}.strategy: fsdp2 with {ACTOR}.fsdp_config.offload_policy: True"
    )


def _change_rollout(case: Case) -> str:
    if case.trainer != "verl":
        return "vllm_gpu_memory_utilization: less"
    return f"{ROLLOUT}.gpu_memory_utilization: less; or {ACTOR}.fsdp_config.param_offload and optimizer_offload: True"


CHECKS = (memory,)
