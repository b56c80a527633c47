"""Lists the trainers, and finds the one that an arm or a run names, and the scalars under which they log a quantity."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from common.errors import UserError
from common.messages import did_you_mean
from engines import UNKNOWN
from trainers.benchmark.trainer import BATCH, REQUEST
from trainers.command.trainer import COMMAND
from trainers.imported.trainers import IMPORTED
from trainers.protocol import Driver, StackFacts, Trainer
from trainers.replay.trainer import REPLAY
from trainers.section import NAME_PATTERN
from trainers.swift.trainer import SWIFT
from trainers.trl.trainer import TRL
from trainers.verl.trainer import VERL
from trainers.workload import TrainedArm

__all__ = [
    "Driver",
    "StackFacts",
    "Trainer",
    "brings_work",
    "driver_of",
    "require_importable",
    "trainer_named",
    "trainers",
]

_DRIVEN = (TRL, VERL, SWIFT, REPLAY, COMMAND)
_IMPORTED = (*IMPORTED, REQUEST, BATCH)
_TRAINERS: dict[str, Trainer] = {one.name: one for one in (*_DRIVEN, *_IMPORTED)}


def trainers() -> tuple[Trainer, ...]:
    """All registered trainers."""
    return tuple(_TRAINERS.values())


def trainer_named(name: str) -> Trainer:
    """The trainer of that name; an unknown one has all defaults."""
    return _TRAINERS.get(name) or Trainer(name)


def driver_of(arm_name: str, arm: TrainedArm) -> Driver:
    """How to run an arm's trainer; a `UserError` if the trainer or its engine is unknown."""
    driven = {one.name: one.engines for one in trainers() if one.driver is not None}
    if arm.trainer not in driven:
        raise _not_driven(arm_name, arm.trainer, list(driven))
    _require_engine(arm_name, arm, driven)
    driver = trainer_named(arm.trainer).driver
    assert driver is not None
    return driver


def brings_work(trainer: str) -> bool:
    """Whether a trainer's runs bring their environment and their work: no stack, no workload, steps from their log."""
    driver = trainer_named(trainer).driver
    return driver is not None and driver.own_work is not None


def require_importable(arm_name: str, arm: TrainedArm) -> None:
    """A `UserError` for an invalid name in an imported arm, or an engine that its registered trainer lacks.

    Runs of an unregistered trainer bring their own timer tree (analysis/imports/source_check.py).
    """
    engines = {one.name: (*one.engines, UNKNOWN) for one in trainers()}
    if arm.trainer in engines:
        _require_engine(arm_name, arm, engines)
    elif arm.trainer.lower() in engines:
        raise UserError(f"arms.{arm_name}.trainer must be written {arm.trainer.lower()} (got {arm.trainer!r})")
    for key, name in (("trainer", arm.trainer), ("engine", arm.engine)):
        if not re.fullmatch(NAME_PATTERN, name):
            raise UserError(
                f"arms.{arm_name}.{key} may hold letters (A-Z, a-z), digits, '_', '.' and '-' (got {name!r})"
            )


def _not_driven(arm_name: str, trainer: str, driven: list[str]) -> UserError:
    # Only close matches are typos: rllm is another trainer than trl.
    if trainer not in _TRAINERS and difflib.get_close_matches(trainer, driven, cutoff=0.75):
        return _unknown(f"arms.{arm_name}.trainer", trainer, driven)
    read = (
        "(docs/import.md)"
        if trainer in _TRAINERS
        else "of a table with a column parent (docs/import.md#a-trainer-of-your-own)"
    )
    can = f"{', '.join(driven[:-1])} and {driven[-1]} can"
    return UserError(
        f"arms.{arm_name}.trainer is {trainer}, which cannot be trained from here ({can}). Its runs can be compared by "
        f"an import {read}"
    )


def _require_engine(arm_name: str, arm: TrainedArm, engines: Mapping[str, tuple[str, ...]]) -> None:
    if arm.engine not in engines[arm.trainer]:
        raise _unknown(f"arms.{arm_name}.engine (of trainer {arm.trainer})", arm.engine, list(engines[arm.trainer]))


def _unknown(where: str, got: str, allowed: list[str]) -> UserError:
    return UserError(f"{where} must be one of: {', '.join(allowed)} (got {got!r}){did_you_mean(got, allowed)}")


# verl's score is the reward before any KL penalty, like TRL's. rollout_kl, rollout_logp_gap and
# rollout_probability_gap are three different measures of how far the engine's probabilities are from the trainer's for
# the same tokens.
QUANTITIES = (
    *("reward", "mean_response_length", "max_response_length", "truncated_share", "reference_kl", "policy_entropy"),
    *("rollout_kl", "rollout_logp_gap", "rollout_probability_gap", "gradient_norm"),
)


def discarded() -> tuple[str, ...]:
    """Scalars that count discarded completions: in a step's seconds, not in its tokens and lengths."""
    return tuple(name for one in trainers() for name in one.logs.discarded)


def generation_batches() -> tuple[str, ...]:
    """Scalars that count a step's batches of completions; with several, tokens and lengths are not of all of them."""
    return tuple(name for one in trainers() for name in one.logs.generation_batches)


def discards_if() -> tuple[str, ...]:
    """Settings with which a trainer discards completions, in a number that only its counts tell."""
    return tuple(name for one in trainers() for name in one.logs.discards_if)


# TRL under wandb's train/; ms-swift, and verl by the driver's hooks, without.
_OF_A_REWARD = re.compile(r"(?:train/)?rewards/([^/]+)/(mean|failed)")


def single_rewards(names: Iterable[str], kind: str = "mean") -> dict[str, list[str]]:
    """Each reward's name -> its scalars of one kind: `mean`, or `failed`, the number of failed completions."""
    found: dict[str, list[str]] = {}
    for name in names:
        if (match := _OF_A_REWARD.fullmatch(name)) and match[2] == kind:
            found.setdefault(match[1], []).append(name)
    return found


def scalars_of(quantity: str) -> tuple[str, ...]:
    """The scalars of a quantity, of all trainers."""
    return tuple(dict.fromkeys(name for one in trainers() for name in one.logs.quantities.get(quantity, ())))


def logged_as(quantity: str, names: Iterable[str]) -> str | None:
    """The scalar among `names` that is a quantity; None if there is none."""
    have = set(names)
    return next((name for name in scalars_of(quantity) if name in have), None)
