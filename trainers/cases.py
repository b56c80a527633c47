"""What a run would be, for all its seeds: a case, which trainers and engines judge before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from trainers.case_settings import Settings

ROLLOUT = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
MODEL = "actor_rollout_ref.model"

ENGINE_NAMES = {"vllm": "vLLM", "sglang": "SGLang", "transformers": "transformers"}


@dataclass(frozen=True, slots=True)
class StackTold:
    """What a stack's definition says without being built."""

    accelerator: str
    trainer_version: str
    packages: Mapping[str, str] = field(default_factory=dict)
    """Package -> version, of its lock."""


@dataclass(frozen=True, eq=False)
class Case:
    """What a run would be, for all its seeds."""

    arm: str
    label: str
    """The arm's name, with the factors that are its own."""
    trainer: str
    engine: str
    stack: str
    version: str
    """Of the trainer."""
    told: StackTold
    workload: Mapping[str, Any]
    env: Mapping[str, str]
    settings: Settings
    overrides: tuple[str, ...] = ()
    point: str = ""
    """The combination of the factors that all arms share."""
    imported: bool = False
    """Whether it has run elsewhere already: nothing about it can be impossible any more."""

    @property
    def engine_name(self) -> str:
        return ENGINE_NAMES.get(self.engine, self.engine)

    @property
    def place(self) -> str:
        """Trainer, version and engine, as the tables of behaviours name them."""
        return f"{self.trainer} {self.version} {self.engine}"

    @property
    def on_gpu(self) -> bool:
        return self.told.accelerator == "cuda"

    @property
    def gpus(self) -> int:
        """GPUs of one run, over all its nodes."""
        if self.trainer == "verl":
            return self.settings.int("trainer.n_gpus_per_node", 1) * self.settings.int("trainer.nnodes", 1)
        return int(self.workload.get("gpus_per_node") or 0) * int(self.workload.get("nodes") or 1)

    @property
    def tensor_parallel(self) -> int:
        if self.trainer == "verl":
            return max(1, self.settings.int(f"{ROLLOUT}.tensor_model_parallel_size", 1))
        return max(1, self.settings.int("vllm_tensor_parallel_size", 1))

    @property
    def lora(self) -> bool:
        """Whether only an adapter is trained."""
        return max(self.settings.int(f"{MODEL}.lora_rank"), self.settings.int(f"{MODEL}.lora.rank")) > 0

    @property
    def longest(self) -> int:
        """Prompt and response at their longest, in tokens."""
        return int(self.workload["max_prompt_length"]) + int(self.workload["max_response_length"])

    @cached_property
    def per_replica(self) -> int:
        """Sequences that one engine of `tensor_parallel` GPUs generates in a step, if they are dealt out evenly."""
        replicas = max(1, self.gpus // self.tensor_parallel)
        return -(-int(self.workload["batch_size"]) // replicas)


def names_of(spec: Mapping[str, Any]) -> tuple[str, str]:
    """A run's arm with the factors that are its own, and the combination of those that all arms share."""
    own = {path: value for path, value in spec["factors"].items() if path.startswith("arms.")}
    shared = sorted((path, value) for path, value in spec["factors"].items() if path not in own)
    words = ", ".join(f"{path.split('.', 3)[-1]}={value}" for path, value in own.items())
    label = f"{spec['arm']} ({words})" if words else spec["arm"]
    return label, ", ".join(f"{path}={value}" for path, value in shared)


def points_of(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """The cases that are compared with one another: of all arms, at one combination of the shared factors."""
    for point in dict.fromkeys(case.point for case in cases):
        yield [case for case in cases if case.point == point]
