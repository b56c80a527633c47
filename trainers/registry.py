"""Which trainers are there? One module each; all offer what `protocol.Trainer` says."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import cast

from common.errors import UserError
from common.messages import did_you_mean
from trainers.logs.foreign import known_as
from trainers.protocol import StackFacts, Trainer
from trainers.trl import settings as trl
from trainers.verl import settings as verl
from trainers.workload import NAME_PATTERN, TrainedArm

__all__ = ["StackFacts", "Trainer", "adapter_of", "require_importable", "trainer_of"]


_TRAINERS: Mapping[str, Trainer] = {"trl": cast(Trainer, trl), "verl": cast(Trainer, verl)}
# Trainers that cannot be driven from here, but whose runs can be read; with the engines that they have.
_ONLY_IMPORTED: Mapping[str, tuple[str, ...]] = {"swift": ("vllm", "transformers")}


def trainer_of(arm_name: str, arm: TrainedArm) -> Trainer:
    """The module of an arm's trainer; a `UserError` if the trainer or its engine is unknown."""
    _require_known(arm_name, arm, {name: trainer.ENGINES for name, trainer in _TRAINERS.items()})
    return _TRAINERS[arm.trainer]


def adapter_of(arm: TrainedArm) -> Trainer | None:
    """The module of an arm's trainer; None where there is none, and its runs can only be imported."""
    return _TRAINERS.get(arm.trainer)


def require_importable(arm_name: str, arm: TrainedArm) -> None:
    """A `UserError` if an imported arm's trainer is ours and its engine is not, or its name is none.

    Any other trainer's runs come with a timer tree of their own (analysis/imports/source_check.py).
    """
    engines = {**{name: trainer.ENGINES for name, trainer in _TRAINERS.items()}, **_ONLY_IMPORTED}
    if arm.trainer in engines:
        _require_engine(arm_name, arm, engines)
    elif arm.trainer.lower() in engines:
        raise UserError(f"arms.{arm_name}.trainer must be written {arm.trainer.lower()} (got {arm.trainer!r})")
    for key, name in (("trainer", arm.trainer), ("engine", arm.engine)):
        if not re.fullmatch(NAME_PATTERN, name):
            raise UserError(
                f"arms.{arm_name}.{key} may hold letters (A-Z, a-z), digits, '_', '.' and '-' (got {name!r})"
            )


def _require_known(arm_name: str, arm: TrainedArm, engines: Mapping[str, tuple[str, ...]]) -> None:
    if arm.trainer not in engines:
        elsewhere = arm.trainer in _ONLY_IMPORTED or known_as(arm.trainer) is not None
        # Near enough to be a slip of the keyboard: rllm is another trainer than trl.
        if not elsewhere and difflib.get_close_matches(arm.trainer, engines, cutoff=0.75):
            raise _unknown(f"arms.{arm_name}.trainer", arm.trainer, list(engines))
        read = (
            "(docs/import.md)"
            if arm.trainer in _ONLY_IMPORTED
            else "of a table with a column parent (docs/import.md#a-trainer-of-your-own)"
        )
        raise UserError(
            f"arms.{arm_name}.trainer is {arm.trainer}, which cannot be trained from here ({' and '.join(engines)} "
            f"can). Its runs can be compared by an import {read}"
        )
    _require_engine(arm_name, arm, engines)


def _require_engine(arm_name: str, arm: TrainedArm, engines: Mapping[str, tuple[str, ...]]) -> None:
    if arm.engine not in engines[arm.trainer]:
        where = f"arms.{arm_name}.engine (of trainer {arm.trainer})"
        raise _unknown(where, arm.engine, list(engines[arm.trainer]))


def _unknown(where: str, got: str, allowed: list[str]) -> UserError:
    return UserError(f"{where} must be one of: {', '.join(allowed)} (got {got!r}){did_you_mean(got, allowed)}")
