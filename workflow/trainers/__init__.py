"""Which trainers are there? One module each; all offer what `protocol.Trainer` says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from analysis.errors import UserError
from workflow.config import Arm
from workflow.messages import did_you_mean
from workflow.trainers import trl, verl
from workflow.trainers.protocol import StackFacts, Trainer

__all__ = ["StackFacts", "Trainer", "adapter_of", "require_importable", "trainer_of"]


_TRAINERS: Mapping[str, Trainer] = {"trl": cast(Trainer, trl), "verl": cast(Trainer, verl)}
# Trainers that cannot be driven from here, but whose runs can be read; with the engines that they have.
_ONLY_IMPORTED: Mapping[str, tuple[str, ...]] = {"swift": ("vllm", "transformers")}


def trainer_of(arm_name: str, arm: Arm) -> Trainer:
    """The module of an arm's trainer; a `UserError` if the trainer or its engine is unknown."""
    _require_known(arm_name, arm, {name: trainer.ENGINES for name, trainer in _TRAINERS.items()})
    return _TRAINERS[arm.trainer]


def adapter_of(arm: Arm) -> Trainer | None:
    """The module of an arm's trainer; None where there is none, and its runs can only be imported."""
    return _TRAINERS.get(arm.trainer)


def require_importable(arm_name: str, arm: Arm) -> None:
    """A `UserError` if nothing is known of the trainer or the engine of an imported arm."""
    _require_known(arm_name, arm, {**{name: trainer.ENGINES for name, trainer in _TRAINERS.items()}, **_ONLY_IMPORTED})


def _require_known(arm_name: str, arm: Arm, engines: Mapping[str, tuple[str, ...]]) -> None:
    if arm.trainer not in engines:
        raise _unknown(f"arms.{arm_name}.trainer", arm.trainer, list(engines))
    if arm.engine not in engines[arm.trainer]:
        where = f"arms.{arm_name}.engine (of trainer {arm.trainer})"
        raise _unknown(where, arm.engine, list(engines[arm.trainer]))


def _unknown(where: str, got: str, allowed: list[str]) -> UserError:
    return UserError(f"{where} must be one of: {', '.join(allowed)} (got {got!r}){did_you_mean(got, allowed)}")
