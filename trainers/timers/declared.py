"""Which declared tree belongs to a trainer's version, engine and mode?"""

import re

from common.errors import UserError
from trainers.swift.timers import SWIFT_4_6
from trainers.timers.tree import TimerTree, release_of
from trainers.trl.timers import TRL_1_16, TRL_NATIVE
from trainers.verl.timers import (
    VERL_0_4_1,
    VERL_0_9_1,
    VERL_0_9_1_COLOCATE_ASYNC,
    VERL_0_9_1_LEGACY,
    VERL_0_9_1_OVERLAPPING,
)
from trainers.verl.timers_earlier import VERL_BEFORE_0_4_1, VERL_BETWEEN, VERL_EARLIER_OVERLAPPING

_TREES: tuple[TimerTree, ...] = (
    TRL_1_16,
    *TRL_NATIVE,
    SWIFT_4_6,
    *VERL_BEFORE_0_4_1,
    VERL_0_4_1,
    *VERL_BETWEEN,
    *VERL_EARLIER_OVERLAPPING,
    VERL_0_9_1,
    VERL_0_9_1_COLOCATE_ASYNC,
    VERL_0_9_1_LEGACY,
    *VERL_0_9_1_OVERLAPPING,
)


def declared_trees() -> tuple[TimerTree, ...]:
    """All the timer trees that are declared."""
    return _TREES


def tree_for(trainer: str, version: str, engine: str, mode: str = "") -> TimerTree:
    """The tree of a trainer's version with an engine; `UserError` that says which release may be meant, or how to
    declare a missing one."""
    for tree in _TREES:
        if tree.trainer == trainer and tree.matches(version) and engine in tree.engines and tree.mode == mode:
            return tree
    if not any(tree.trainer == trainer and tree.matches(version) for tree in _TREES):
        if fits := releases_like(trainer, version):
            raise UserError(
                f"{trainer} {version} is no release whose timers are declared. Which is meant: {' or '.join(fits)}? "
                "Give the one that ran as import.version"
            )
        if releases(trainer) and not re.match(r"\d", release_of(version)):
            raise UserError(
                f"{trainer} {version} names no release, and releases' timers nest differently. Give the one that "
                f"the run's code was nearest to as import.version (declared: {', '.join(releases(trainer))})"
            )
    raise UserError(
        f"no timer tree is declared for trainer {trainer} {version}{f' in mode {mode}' if mode else ''} with engine "
        f"{engine} (declared: {_near(trainer, version, engine, mode)}). "
        "How its timers nest is not guessed: read where that version starts and stops them, add a TimerTree "
        "beside those in trainers/<trainer>/timers.py, list it in trainers/timers/declared.py, and collect again "
        "(docs/timers.md shows how)"
    )


def _near(trainer: str, version: str, engine: str, mode: str) -> str:
    """The trees that are nearest to one that is missing: of that release, else of that mode."""
    of_trainer = [t for t in _TREES if t.trainer == trainer]
    if not of_trainer:
        return f"those of trainers {', '.join(dict.fromkeys(t.trainer for t in _TREES))}"
    of_release = [t for t in of_trainer if t.matches(version)]
    near = of_release or [t for t in of_trainer if t.mode == mode] or of_trainer
    known = ", ".join(f"{t.name} with {'/'.join(t.engines)}" for t in near)
    if modes := [t.mode or "the default" for t in of_release if engine in t.engines]:
        known += f": that release with {engine} in mode {' or '.join(modes)} alone, not in {mode or 'the default'}"
    return known


def releases(trainer: str) -> list[str]:
    """The releases of a trainer whose timers are declared, the oldest first."""
    series = {tree.series for tree in _TREES if tree.trainer == trainer}
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
    return next((t for t in _TREES if t.name == name), None)
