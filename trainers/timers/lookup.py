"""Finds the declared tree of a trainer's release, engine and loop."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from common.dotted import flatten, overrides_by_key
from common.errors import UserError
from trainers.registry import trainer_named, trainers
from trainers.timers.tree import TimerTree, release_of


def declared_trees() -> tuple[TimerTree, ...]:
    """All the timer trees that are declared."""
    return tuple(tree for trainer in trainers() for tree in trainer.trees)


def mode_of(trainer: str, version: str, spec: Mapping[str, Any], done: Mapping[str, Any]) -> str:
    """The mode whose tree is to be used: "" for the default loop.

    The settings that the trainer finally held count; where they are silent, the overrides that it was given.
    """
    resolved = done.get("resolved")
    held = resolved.get("trainer") if isinstance(resolved, Mapping) else None
    settings: dict[str, Any] = dict(overrides_by_key(spec.get("trainer_args")))
    if isinstance(held, Mapping):
        settings |= {key: value for key, value in flatten(held).items() if value is not None}
    return trainer_named(trainer).loop(version, settings)


def tree_for(trainer: str, version: str, engine: str, mode: str = "") -> TimerTree:
    """The tree of a trainer's version with an engine; `UserError` that says which release may be meant, or how to
    declare a missing one."""
    for tree in declared_trees():
        if tree.trainer == trainer and tree.matches(version) and engine in tree.engines and tree.mode == mode:
            return tree
    if not any(tree.trainer == trainer and tree.matches(version) for tree in declared_trees()):
        if fits := releases_like(trainer, version):
            raise UserError(
                f"{trainer} {version} is no release whose timers are declared. Which is meant: {' or '.join(fits)}? "
                "Give the one that ran as import.version (of `compare`: --release)"
            )
        if releases(trainer) and not re.match(r"\d", release_of(version)):
            raise UserError(
                f"{trainer} {version} names no release, and releases' timers nest differently. Give the one that "
                "the run's code was nearest to as import.version (of `compare`: --release; declared: "
                f"{', '.join(releases(trainer))})"
            )
    folder = trainer.replace("-", "_")
    raise UserError(
        f"no timer tree is declared for trainer {trainer} {version}{f' in mode {mode}' if mode else ''} with engine "
        f"{engine} (declared: {_near(trainer, version, engine, mode)}). "
        "How its timers nest is not guessed: read where that version starts and stops them, add a TimerTree "
        f"beside those in trainers/{folder}/, list it in that folder's trainer.py, and collect again "
        "(docs/timers.md shows how)"
    )


def _near(trainer: str, version: str, engine: str, mode: str) -> str:
    """The trees that are nearest to one that is missing: of that release, else of that mode."""
    of_trainer = [t for t in declared_trees() if t.trainer == trainer]
    if not of_trainer:
        return f"those of trainers {', '.join(dict.fromkeys(t.trainer for t in declared_trees()))}"
    of_release = [t for t in of_trainer if t.matches(version)]
    near = of_release or [t for t in of_trainer if t.mode == mode] or of_trainer
    known = ", ".join(f"{t.name} with {'/'.join(t.engines)}" for t in near)
    if modes := [t.mode or "the default" for t in of_release if engine in t.engines]:
        known += f": that release with {engine} in mode {' or '.join(modes)} alone, not in {mode or 'the default'}"
    return known


def releases(trainer: str) -> list[str]:
    """The releases of a trainer whose timers are declared, the oldest first."""
    series = {tree.series for tree in declared_trees() if tree.trainer == trainer}
    return sorted(series, key=lambda one: [int(part) for part in one.split(".")])


def releases_like(trainer: str, version: str) -> list[str]:
    """The declared releases that a version such as `0.7` or `0.7.1rc1` may mean."""
    numbers = re.match(r"\d+(?:\.\d+)*", release_of(version))
    given = numbers[0] if numbers else ""
    return [
        one for one in releases(trainer) if given and (f"{one}.".startswith(f"{given}.") or given.startswith(f"{one}."))
    ]


def tree_named(name: str) -> TimerTree | None:
    """The declared tree of that name."""
    return next((t for t in declared_trees() if t.name == name), None)
