"""Which declared tree belongs to a trainer's version and engine."""

from analysis.errors import UserError
from analysis.timers.tree import TimerTree
from analysis.timers.trl import TRL_1_16

_TREES: tuple[TimerTree, ...] = (TRL_1_16,)


def declared_trees() -> tuple[TimerTree, ...]:
    """All the timer trees that are declared."""
    return _TREES


def tree_for(trainer: str, version: str, engine: str) -> TimerTree:
    """The tree of a trainer's version with an engine; `UserError` that says how to declare a missing one."""
    known = ", ".join(f"{t.name} with {'/'.join(t.engines)}" for t in _TREES)
    for tree in _TREES:
        if tree.trainer == trainer and tree.matches(version) and engine in tree.engines:
            return tree
    raise UserError(
        f"no timer tree is declared for trainer {trainer} {version} with engine {engine} (declared: {known}). "
        "How its timers nest is not guessed: read where that version starts and stops them, add a TimerTree "
        "beside those in analysis/timers/, list it in analysis/timers/declared.py, and collect again"
    )
