"""Lists the trainers, and finds by name: a trainer, its timer tree, and the scalars under which it logs a quantity."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from common.dotted import flatten, overrides_by_key
from common.errors import UserError
from common.messages import did_you_mean
from engines import UNKNOWN
from trainers import Spread
from trainers.command.trainer import COMMAND
from trainers.imported.benchmarks import BENCHMARK
from trainers.imported.trainers import IMPORTED
from trainers.protocol import Driver, Trainer
from trainers.replay.trainer import REPLAY
from trainers.section import NAME_PATTERN
from trainers.swift.trainer import SWIFT
from trainers.timers.tree import NATIVE, TimerTree, release_distance, release_numbers
from trainers.trl.trainer import TRL
from trainers.verl.trainer import VERL
from trainers.workload import TrainedArm

_DRIVEN = (TRL, VERL, SWIFT, REPLAY, COMMAND)
_IMPORTED = (*IMPORTED, BENCHMARK)
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
    return driver is not None and driver.spread is Spread.OWN


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


# verl's score is the reward before any KL penalty, like TRL's. The rollout_ ones are measures of how far the engine's
# probabilities are from the trainer's for the same tokens: the mean of log(engine) - log(trainer), its k3 estimate, the
# mean absolute difference of log-probabilities, and that of probabilities.
QUANTITIES = (
    *("reward", "mean_response_length", "max_response_length", "truncated_share", "reference_kl", "policy_entropy"),
    *("rollout_kl", "rollout_k3", "rollout_logp_gap", "rollout_probability_gap"),
    *("rollout_kl_kept", "rollout_kl_geometric"),
    *("gradient_norm", "mean_prompt_length", "turns", "tool_seconds", "aborted_share"),
    # Of loops that generate beside training: policy versions between sampling and training, the share of responses that
    # several versions sampled, what the trainer and the engines waited.
    *("staleness", "partial_share", "trainer_wait_s", "trainer_wait_share", "engine_wait_s", "engine_wait_share"),
    *("trained_tokens", "slowest_generation_s", "acceptance_length", "prefix_hit_rate"),
)


def discards() -> dict[str, int]:
    """Scalars that tell of discarded completions, in a step's seconds and not in its tokens: above this number."""
    return {name: most for one in trainers() for name, most in one.logs.ledger.discards.items() if most is not None}


def discards_if() -> tuple[str, ...]:
    """Settings with which a trainer discards completions, in a number that only its counts tell."""
    return tuple(name for one in trainers() for name, most in one.logs.ledger.discards.items() if most is None)


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


def declared_trees() -> tuple[TimerTree, ...]:
    """All declared timer trees."""
    return tuple(tree for trainer in trainers() for tree in trainer.logs.trees)


def trees_of(trainer: str) -> tuple[TimerTree, ...]:
    """A trainer's declared timer trees; none of an unknown one."""
    return trainer_named(trainer).logs.trees


def mode_of(trainer: str, version: str, spec: Mapping[str, Any], done: Mapping[str, Any]) -> str:
    """The mode of a run's tree; "" is the default loop.

    The trainer's resolved settings take precedence over the overrides that it was given.
    """
    resolved = done.get("resolved")
    final = resolved.get("trainer") if isinstance(resolved, Mapping) else None
    settings: dict[str, Any] = dict(overrides_by_key(spec.get("trainer_args")))
    if isinstance(final, Mapping):
        settings |= {key: value for key, value in flatten(final).items() if value is not None}
    return trainer_named(trainer).logs.loop(version, settings)


def tree_for(trainer: str, version: str, engine: str, mode: str = "") -> TimerTree:
    """The tree of a trainer's version with an engine; the `UserError` names those that are declared."""
    of_trainer = trees_of(trainer)
    of_release = [tree for tree in of_trainer if tree.matches(version)]
    for tree in of_release:
        if tree.has(engine) and tree.mode == mode:
            return tree
    known = ", ".join(f"{one.name} with {'/'.join(one.engines)}" for one in of_release or of_trainer)
    raise UserError(
        f"no timers are declared for {trainer} {version}{f' in mode {mode}' if mode else ''} with engine {engine} "
        f"(declared: {known or 'none of this trainer'}). Give the release that ran as import.version (of `compare`: "
        "--release), correct the arm's engine (--names), or declare its timers (docs/timers.md)"
    )


def nearest_tree(trainer: str, version: str, engine: str, mode: str = "") -> TimerTree:
    """The tree of a version; of an undeclared one that of the nearest declared release, the newer of two.

    A release that is declared without this mode counts as undeclared: our driver's timers are not its own. The default
    loop is used if no release has the mode, and another engine's tree if none has it with that engine. `UserError` if
    the trainer has no trees.
    """
    if not (of_trainer := trees_of(trainer)):
        return tree_for(trainer, version, engine, mode)

    def apart(tree: TimerTree) -> tuple[bool, bool, bool, tuple[float, tuple[int, ...]]]:
        other = tree.mode != mode
        return other, other and bool(tree.mode), not tree.has(engine), release_distance(version, tree.series)

    return min(of_trainer, key=apart)


def releases_near(trainer: str, version: str) -> list[str]:
    """The declared releases, the nearest to a version first; the newest first for one without numbers."""
    return sorted(releases(trainer), key=lambda series: release_distance(version, series))


def releases(trainer: str) -> list[str]:
    """A trainer's releases with declared timers, the oldest first."""
    return sorted({tree.series for tree in trees_of(trainer)}, key=release_numbers)


def driven_trees(trainer: str) -> list[TimerTree]:
    """The trees of a trainer's runs under our driver."""
    return [tree for tree in trees_of(trainer) if tree.mode != NATIVE]


def driven_releases(trainer: str) -> list[str]:
    """The releases that these trees are of, the oldest first."""
    return sorted({tree.series for tree in driven_trees(trainer)}, key=release_numbers)


def tree_named(name: str) -> TimerTree | None:
    """The declared tree of that name."""
    return next((t for t in declared_trees() if t.name == name), None)
