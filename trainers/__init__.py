"""The trainers, a folder each: how a workload reads in a trainer's words, what runs in its stack, what it logs.

Loaded in the stacks, too: this file takes the standard library alone. The registry is in `registry.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

# What a run's specification calls the module that trains it. These names are hashed into fingerprints, so they stay
# as they were when the modules had them; a finished run is never trained again because a file was moved.
_DRIVERS = {
    "workflow.jobs.trl_grpo": "trainers.trl.driver.train",
    "workflow.jobs.verl_grpo": "trainers.verl.driver.train",
}


SERVERS = ("server", "scorer")
"""What a specification calls the servers beside a trainer, in the order of their GPUs: an engine's, and that of reward
models, which have the last ones."""


class Spread(StrEnum):
    """How a trainer spreads over a job's GPUs and nodes."""

    ALONE = "alone"
    """One process."""
    TORCHRUN = "torchrun"
    """A process for each GPU, on a CPU for each node, with the variables that torchrun gives."""
    RAY = "ray"
    """One process, which spreads over a Ray cluster of the job's own."""
    SERVER = "server"
    """As `torchrun`, with some of `SERVERS` beside it: on GPUs of the same node, or an engine's on the last node."""

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Spread:
        """As a specification or a job's order tells it; those of before the word say only whether it is Ray."""
        return cls(spec.get("spread") or (cls.RAY if spec.get("ray") else cls.ALONE))

    def to_spec(self, processes: int, *servers: Mapping[str, Any] | None) -> dict[str, Any]:
        """What a specification says of it: of one process the same, however its trainer could spread.

        `servers` tell of those beside it, in the order of `SERVERS`: `module`, `gpus`, and `patience_s` for its first
        answer; None where there is none.
        """
        if beside := {name: dict(one) for name, one in zip(SERVERS, servers, strict=False) if one is not None}:
            return {"ray": False, "spread": Spread.SERVER.value, **beside}
        word = {"spread": self.value} if self is Spread.TORCHRUN and processes > 1 else {}
        return {"ray": self is Spread.RAY, **word}


def driver_module(job_module: str) -> str:
    """The module that a specification's `job_module` means today."""
    return _DRIVERS.get(job_module, job_module)
