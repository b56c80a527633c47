"""The trainers, one folder each: how a workload becomes a trainer's settings, what runs in its stack, what it logs.

Also loaded in the stacks: this file imports only the standard library. The registry is in `registry.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

# The names of training modules in runs' specs -> their present names. The old names are hashed into fingerprints: they
# stay, so that no finished run is trained again because a file was moved.
_DRIVERS = {
    "workflow.jobs.trl_grpo": "trainers.trl.driver.train",
    "workflow.jobs.verl_grpo": "trainers.verl.driver.train",
}


class Spread(str, Enum):  # noqa: UP042 - Python 3.10 of an environment as found has no StrEnum
    """How a trainer spreads over a job's GPUs and nodes."""

    __str__ = str.__str__

    ALONE = "alone"
    """One process."""
    TORCHRUN = "torchrun"
    """One process per GPU (on CPUs: per node), with torchrun's variables."""
    RAY = "ray"
    """One process, which uses the job's own Ray cluster."""
    SERVER = "server"
    """`torchrun` beside an engine's server, which has GPUs of the same node or the last node."""
    OWN = "own"
    """The user's own command on the first node, in the user's environment: it starts everything else itself."""

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Spread:
        """From a spec or a job's request; old ones without `spread` only have `ray`."""
        return cls(spec.get("spread") or (cls.RAY if spec.get("ray") else cls.ALONE))

    def to_spec(self, processes: int, server: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Its entries in a spec; one process has the same entries for every trainer.

        `server` has `module`, `gpus`, and `patience_s` (the limit for its first answer).
        """
        if server is not None:
            return {"ray": False, "spread": Spread.SERVER.value, "server": dict(server)}
        named = self is Spread.OWN or (self is Spread.TORCHRUN and processes > 1)
        spread = {"spread": self.value} if named else {}
        return {"ray": self is Spread.RAY, **spread}


def driver_module(job_module: str) -> str:
    """The present module of a spec's `job_module`."""
    return _DRIVERS.get(job_module, job_module)
