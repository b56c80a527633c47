"""What does the plan ask of a trainer's module?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from trainers.workload import TrainedArm, Workload


@dataclass(frozen=True, slots=True)
class StackFacts:
    """What the plan needs to know of a stack."""

    trainer: str
    engine: str
    accelerator: str
    """`cpu` or `cuda`."""
    trainer_version: str
    """The version of the trainer that the stack's lock pins."""
    lock_id: str


class Trainer(Protocol):
    """A trainer's module: how a run's trainer-neutral words become its settings and its command."""

    ENGINES: tuple[str, ...]
    """The rollout engines that it can drive."""
    JOB_MODULE: str
    """The module that runs inside the stack, given one argument: the path of attempt.json."""
    RAY: bool
    """Whether it spreads over a job's nodes by Ray; a trainer that does not trains on one node."""

    def trainer_args(self, arm: TrainedArm, workload: Workload, seed: int, stack: StackFacts) -> dict[str, Any]:
        """The trainer's own settings; a `UserError` where words and options contradict each other."""

    def least_cpus(self, args: dict[str, Any], workload: Workload) -> int:
        """CPUs, of all nodes together, that the trainer with these settings needs to start at all."""
