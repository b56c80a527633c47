"""Finds the declared tree of a trainer's release, engine and loop."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from common.dotted import flatten, overrides_by_key
from common.errors import UserError
from engines import UNKNOWN
from trainers.registry import trainer_named, trainers
from trainers.timers.tree import TimerTree, release_distance, release_numbers, release_of


def declared_trees() -> tuple[TimerTree, ...]:
    """All declared timer trees."""
    return tuple(tree for trainer in trainers() for tree in trainer.logs.trees)


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
    """The tree of a trainer's version with an engine; `UserError` with similar releases or how to declare one."""
    for tree in declared_trees():
        if tree.trainer == trainer and tree.matches(version) and tree.has(engine) and tree.mode == mode:
            return tree
    if not any(tree.trainer == trainer and tree.matches(version) for tree in declared_trees()):
        if fits := releases_like(trainer, version):
            raise UserError(
                f"no timers are declared for {trainer} {version}. Did you mean {' or '.join(fits)}? Give the release "
                "that ran as import.version (of `compare`: --release)"
            )
        if releases(trainer) and not re.match(r"\d", release_of(version)):
            raise UserError(
                f"{trainer} {version} is no release, and releases nest their timers differently. Give the release "
                "closest to the run's code as import.version (of `compare`: --release; declared: "
                f"{', '.join(releases(trainer))})"
            )
    _require_engine(trainer, version, engine)
    raise UserError(
        f"no timer tree is declared for trainer {trainer} {version}{f' in mode {mode}' if mode else ''} with engine "
        f"{engine} (declared: {_near(trainer, version, engine, mode)}). "
        "Nesting is not guessed: read where that version starts and stops its timers, declare its tree in trainers/ "
        "and collect again (docs/timers.md shows how)"
    )


def nearest_tree(trainer: str, version: str, engine: str, mode: str = "") -> TimerTree:
    """The tree of a version; of an undeclared one that of the nearest declared release, the newer of two.

    A release that is declared without this mode counts as undeclared: our driver's timers are not its own. The default
    loop is used if no release has the mode, and another engine's tree if none has it with that engine. `UserError` if
    the trainer has no trees.
    """
    of_trainer = [tree for tree in declared_trees() if tree.trainer == trainer]
    if not of_trainer or any(tree.matches(version) and tree.mode == mode for tree in of_trainer):
        return tree_for(trainer, version, engine, mode)
    fitting = (
        [tree for tree in of_trainer if tree.mode == mode and tree.has(engine)],
        [tree for tree in of_trainer if tree.mode == mode],
        [tree for tree in of_trainer if not tree.mode],
    )
    near = next(filter(None, fitting))
    return min(near, key=lambda tree: release_distance(version, tree.series))


def releases_near(trainer: str, version: str) -> list[str]:
    """The declared releases, the nearest to a version first; the newest first for one without numbers."""
    return sorted(releases(trainer), key=lambda series: release_distance(version, series))


def _require_engine(trainer: str, version: str, engine: str) -> None:
    """`UserError` if a declared release does not have the engine, and another declared one has it."""
    of_trainer = [tree for tree in declared_trees() if tree.trainer == trainer]
    engines = dict.fromkeys(one for tree in of_trainer if tree.matches(version) for one in tree.engines)
    others = [one for one in releases(trainer) if any(t.series == one and t.has(engine) for t in of_trainer)]
    if engines and others and engine not in (UNKNOWN, *engines):
        raise UserError(
            f"{trainer} {version} has no {engine} (declared: {', '.join(engines)}; {engine} is declared for {trainer} "
            f"{', '.join(others)}). Correct the arm's engine (of `compare`: --names), or give the release that ran as "
            "import.version (of `compare`: --release)"
        )


def _near(trainer: str, version: str, engine: str, mode: str) -> str:
    """The trees closest to a missing one: of its release, else of its mode, else of its trainer."""
    of_trainer = [t for t in declared_trees() if t.trainer == trainer]
    if not of_trainer:
        return f"those of trainers {', '.join(dict.fromkeys(t.trainer for t in declared_trees()))}"
    of_release = [t for t in of_trainer if t.matches(version)]
    near = of_release or [t for t in of_trainer if t.mode == mode] or of_trainer
    known = ", ".join(f"{t.name} with {'/'.join(t.engines)}" for t in near)
    if modes := [t.mode or "the default" for t in of_release if t.has(engine)]:
        known += f": that release with {engine} only in mode {' or '.join(modes)}, not in {mode or 'the default'}"
    return known


def releases(trainer: str) -> list[str]:
    """A trainer's releases with declared timers, the oldest first."""
    series = {tree.series for tree in declared_trees() if tree.trainer == trainer}
    return sorted(series, key=release_numbers)


def driven_trees(trainer: str) -> list[TimerTree]:
    """The trees of a trainer's runs under our driver."""
    logs = trainer_named(trainer).logs
    return [tree for tree in logs.trees if tree.mode != logs.native or not logs.native]


def driven_releases(trainer: str) -> list[str]:
    """The releases that these trees are of, the oldest first."""
    return sorted({tree.series for tree in driven_trees(trainer)}, key=release_numbers)


def releases_like(trainer: str, version: str) -> list[str]:
    """The declared releases that match a version such as `0.7` or `0.7.1rc1`."""
    numbers = re.match(r"\d+(?:\.\d+)*", release_of(version))
    given = numbers[0] if numbers else ""
    return [
        one for one in releases(trainer) if given and (f"{one}.".startswith(f"{given}.") or given.startswith(f"{one}."))
    ]


def tree_named(name: str) -> TimerTree | None:
    """The declared tree of that name."""
    return next((t for t in declared_trees() if t.name == name), None)
