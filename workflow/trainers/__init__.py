"""Which trainers are there? One module each; all offer what `protocol.Trainer` says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from analysis.errors import UserError
from workflow.config import Arm
from workflow.messages import did_you_mean
from workflow.trainers import trl, verl
from workflow.trainers.protocol import StackFacts, Trainer

__all__ = ["StackFacts", "Trainer", "trainer_of"]


_TRAINERS: Mapping[str, Trainer] = {"trl": cast(Trainer, trl), "verl": cast(Trainer, verl)}


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
