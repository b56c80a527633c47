"""Estimates a GPU's memory in parts, each said to be counted or assumed.

Per GPU, in GiB, at the two peaks of a step: while the engine generates, and while the policy is updated.
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
# What CUDA's context, NCCL's buffers and captured graphs take beside the tensors: seen as 2 to 4 GiB.
CONTEXT_GIB = 3.0
# A cache is called never full only with a fifth to spare: its room is an estimate.
_SPARE = 1.2


@dataclass(frozen=True, slots=True)
class Part:
    """One thing in memory, GiB; `counted` follows from sizes, the others are assumptions."""

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
    """Tokens that the engine's cache has room for, over its GPUs; None where the engine decides in its own way."""
    kv_wanted: int
    """Tokens that the sequences which it decodes at once hold at their longest."""
    model: ModelFacts
    update_advice: str
    """What would take less memory in the update."""
    rollout_advice: str
    """The same while the engine generates."""

    @property
    def kv_never_full(self) -> bool:
        """Whether every sequence fits the cache at full length, so that its size cannot change the speed."""
        return self.kv_tokens is not None and self.kv_tokens >= _SPARE * self.kv_wanted

    @staticmethod
    def sum(parts: tuple[Part, ...], counted_only: bool = False) -> float:
        return sum(part.gib for part in parts if part.counted or not counted_only)

    def as_dict(self) -> dict[str, object]:
        return {
            "gpu": self.gpu,
            "gib": self.gib,
            "update": [{"part": part.name, "gib": round(part.gib, 2), "counted": part.counted} for part in self.update],
            "rollout": [
                {"part": part.name, "gib": round(part.gib, 2), "counted": part.counted} for part in self.rollout
            ],
            "kv_tokens": self.kv_tokens,
            "kv_wanted": self.kv_wanted,
            "model": self.model.source,
        }


def estimate_of(case: Case) -> MemoryEstimate | str:
    """A case's estimate, or what is not known that it would need."""
    if not case.on_gpu:
        return "it trains on the CPU"
    gpu = gpu_of(case.workload.get("gpu"))
    if gpu is None:
        said = case.workload.get("gpu")
        return (
            f"workload.gpu {'is not given' if said is None else f'{said!r} is unknown'}; known: {', '.join(KNOWN_GPUS)}"
        )
    source = str(case.workload["model"]["source"])
    model = model_facts(source)
    if model is None or model.parameters is None:
        return (
            f"the sizes of model {source} are not known here; point workload.model.source to a local folder with "
            "its config.json"
        )
    if case.trainer.memory is None:
        return f"no estimate is known for trainer {case.trainer.name}"
    found, more = case.trainer.memory(case, gpu.memory_gib, model), _reward_models(case)
    return replace(found, update=(*found.update, *more), rollout=(*found.rollout, *more)) if more else found


def reward_models_of(workload: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Those of a workload's rewards that are models."""
    return [one for one in workload.get("rewards") or () if isinstance(one, Mapping) and "model" in one]


def weights_gib(reward: Mapping[str, Any]) -> float | None:
    """The memory of a reward model's weights; None where its files are not here, or are no safetensors."""
    folder = Path(reward["model"]).expanduser()
    count = None if reward.get("revision") or not folder.is_dir() else parameter_count(folder)
    return count and count * (4 if reward["dtype"] == "float32" else 2) / GIB


def _reward_models(case: Case) -> tuple[Part, ...]:
    """The weights of those that stay on each of the trainer's GPUs, all the time."""
    there = [one for one in reward_models_of(case.workload) if one["device"] == "trainer"]
    sizes = [(one["name"], weights_gib(one)) for one in there]
    return tuple(Part(f"the weights of reward model {name}", gib, True) for name, gib in sizes if gib is not None)


def pass_parts(model: ModelFacts, tokens: int, checkpointed: bool = True) -> list[Part]:
    """What a pass needs beside the weights: rough, and said to be."""
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
