"""Which trainers are there? One module each; all offer what `Trainer` says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

from analysis.errors import UserError
from workflow.config import Arm, Workload
from workflow.messages import did_you_mean
from workflow.trainers import trl


class Trainer(Protocol):
    """A trainer's module: how a run's trainer-neutral words become its settings and its command."""

    ENGINES: tuple[str, ...]
    """The rollout engines that it can drive."""
    JOB_MODULE: str
    """The module that runs inside the stack, given one argument: the path of attempt.json."""
    RAY: bool
    """Whether it spreads over a job's nodes by Ray; a trainer that does not trains on one node."""

    def trainer_args(self, arm: Arm, workload: Workload, seed: int, accelerator: str) -> dict[str, Any]:
        """The trainer's own settings; a `UserError` where words and options contradict each other."""


_TRAINERS: Mapping[str, Trainer] = {"trl": cast(Trainer, trl)}


def trainer_of(arm_name: str, arm: Arm) -> Trainer:
    """The module of an arm's trainer; a `UserError` if the trainer or its engine is unknown."""
    if arm.trainer not in _TRAINERS:
        raise _unknown(f"arms.{arm_name}.trainer", arm.trainer, list(_TRAINERS))
    trainer = _TRAINERS[arm.trainer]
    if arm.engine not in trainer.ENGINES:
        raise _unknown(f"arms.{arm_name}.engine (of trainer {arm.trainer})", arm.engine, list(trainer.ENGINES))
    return trainer


def _unknown(where: str, got: str, allowed: list[str]) -> UserError:
    return UserError(f"{where} must be one of: {', '.join(allowed)} (got {got!r}){did_you_mean(got, allowed)}")
