"""Which declared tree belongs to a trainer's version, engine and mode?"""

from analysis.errors import UserError
from analysis.timers.swift import SWIFT_4_6
from analysis.timers.tree import TimerTree
from analysis.timers.trl import TRL_1_16, TRL_NATIVE
from analysis.timers.verl import (
    VERL_0_4_1,
    VERL_0_9_1,
    VERL_0_9_1_COLOCATE_ASYNC,
    VERL_0_9_1_LEGACY,
    VERL_0_9_1_OVERLAPPING,
)
from analysis.timers.verl_earlier import VERL_BEFORE_0_4_1, VERL_BETWEEN, VERL_EARLIER_OVERLAPPING

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
    """The tree of a trainer's version with an engine; `UserError` that says how to declare a missing one."""
    for tree in _TREES:
        if tree.trainer == trainer and tree.matches(version) and engine in tree.engines and tree.mode == mode:
            return tree
    in_mode = f" in mode {mode}" if mode else ""
    of_trainer = [t for t in _TREES if t.trainer == trainer]
    if not of_trainer:
        known = f"those of trainers {', '.join(dict.fromkeys(t.trainer for t in _TREES))}"
    else:
        # The nearest that there are: of that release, else of that mode.
        of_release = [t for t in of_trainer if t.matches(version)]
        near = of_release or [t for t in of_trainer if t.mode == mode] or of_trainer
        known = ", ".join(f"{t.name} with {'/'.join(t.engines)}" for t in near)
        if modes := [t.mode or "the default" for t in of_release if engine in t.engines]:
            known += f": that release with {engine} in mode {' or '.join(modes)} alone, not in {mode or 'the default'}"
    raise UserError(
        f"no timer tree is declared for trainer {trainer} {version}{in_mode} with engine {engine} (declared: {known}). "
        "How its timers nest is not guessed: read where that version starts and stops them, add a TimerTree "
        "beside those in analysis/timers/, list it in analysis/timers/declared.py, and collect again "
        "(docs/timers.md shows how)"
    )


def tree_named(name: str) -> TimerTree | None:
    """The declared tree of that name."""
    return next((t for t in _TREES if t.name == name), None)
