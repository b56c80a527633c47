"""Estimates the memory of one GPU in GiB, in parts that are counted or assumed.

A step has two peaks: while the engine generates, and while the policy is updated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from common.gpus import KNOWN_GPUS, gpu_of
from common.model_facts import ModelFacts, model_facts
from node.policy import parameter_count
from trainers.cases import Case

GIB = 2**30
# CUDA's context, NCCL's buffers and captured graphs; 2 to 4 GiB were observed.
CONTEXT_GIB = 3.0
# The cache size is an estimate: the cache counts as never full only with a fifth to spare.
_SPARE = 1.2


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the memory in GiB; `counted` if it follows from sizes, else an assumption."""

    name: str
    gib: float
    counted: bool


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """A GPU's memory at both peaks of a step."""

    gpu: str
    gib: float
    update: tuple[Part, ...]
    rollout: tuple[Part, ...]
    kv_tokens: int | None
    """Tokens that fit the engine's cache, over its GPUs; None if the engine sizes it by other rules."""
    kv_wanted: int
    """Tokens of all sequences that it decodes at once, at full length."""
    model: ModelFacts
    update_advice: str
    """How to reduce memory in the update."""
    rollout_advice: str
    """How to reduce memory while the engine generates."""

    @property
    def kv_never_full(self) -> bool:
        """Whether all sequences fit the cache at full length, so that its size cannot change the speed."""
        return self.kv_tokens is not None and self.kv_tokens >= _SPARE * self.kv_wanted

    @staticmethod
    def sum(parts: tuple[Part, ...], counted_only: bool = False) -> float:
        return sum(part.gib for part in parts if part.counted or not counted_only)

    def as_dict(self) -> dict[str, object]:
        def rows(parts: tuple[Part, ...]) -> list[dict[str, object]]:
            return [{"part": part.name, "gib": round(part.gib, 2), "counted": part.counted} for part in parts]

        return {
            "gpu": self.gpu,
            "gib": self.gib,
            "update": rows(self.update),
            "rollout": rows(self.rollout),
            "kv_tokens": self.kv_tokens,
            "kv_wanted": self.kv_wanted,
            "model": self.model.source,
        }


def estimate_of(case: Case) -> MemoryEstimate | str:
    """A case's estimate, or the reason why there is none."""
    if not case.on_gpu:
        return "it trains on the CPU"
    gpu = gpu_of(case.workload.get("gpu"))
    if gpu is None:
        name = case.workload.get("gpu")
        problem = "is not given" if name is None else f"{name!r} is unknown"
        return f"workload.gpu {problem}; known: {', '.join(KNOWN_GPUS)}"
    source = str(case.workload["model"]["source"])
    model = model_facts(source)
    if model is None or model.parameters is None:
        return (
            f"the sizes of model {source} are unknown; set workload.model.source to a local folder with its config.json"
        )
    if case.trainer.memory is None:
        return f"trainer {case.trainer.name} has no memory estimate"
    found, more = case.trainer.memory(case, gpu.memory_gib, model), _reward_models(case)
    return replace(found, update=(*found.update, *more), rollout=(*found.rollout, *more)) if more else found


def reward_models_of(workload: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The reward models of a workload."""
    return [one for one in workload.get("rewards") or () if isinstance(one, Mapping) and "model" in one]


def weights_gib(reward: Mapping[str, Any]) -> float | None:
    """The memory of a reward model's weights; None if its files are not local, or not safetensors."""
    folder = Path(reward["model"]).expanduser()
    count = None if reward.get("revision") or not folder.is_dir() else parameter_count(folder)
    return count and count * (4 if reward["dtype"] == "float32" else 2) / GIB


def _reward_models(case: Case) -> tuple[Part, ...]:
    """The weights of reward models that stay on each of the trainer's GPUs."""
    resident = [one for one in reward_models_of(case.workload) if one["device"] == "trainer"]
    sizes = [(one["name"], weights_gib(one)) for one in resident]
    return tuple(Part(f"the weights of reward model {name}", gib, True) for name, gib in sizes if gib is not None)


def pass_parts(model: ModelFacts, tokens: int, checkpointed: bool = True) -> list[Part]:
    """The memory of a pass beside the weights, roughly; all parts are marked as assumptions."""
    layer = (model.parameters or 0) / model.layers * 2 * 2 / GIB
    kept = 1 if checkpointed else 16
    activations = tokens * model.hidden * 2 * (model.layers * kept + 34) / GIB
    logits = tokens * model.vocabulary * 2 * 2 / GIB
    return [
        Part("two layers' whole weights, bfloat16", layer, False),
        Part(f"activations of {tokens:,} tokens" + ("" if checkpointed else ", all kept"), activations, False),
        Part(f"logits of {tokens:,} tokens and their gradient, bfloat16", logits, False),
        Part("CUDA context, NCCL", CONTEXT_GIB, False),
    ]
