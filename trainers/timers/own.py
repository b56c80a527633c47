"""Builds a timer tree from the parents that a table of phases gives."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from common.errors import UserError
from trainers.logs.record import TablePhase
from trainers.timers.tree import CATEGORIES, Phase, TimerTree

# The paths of all trees begin with it; the table's own word for it is the label.
ROOT = "step"
MODE = "own tree"
# Marks a row that is no part of the step's sum: a count, a length, a statistic over ranks, work outside the step.
NOT_SUMMED = "-"
# No step has as many timers; each is a row of the report.
MOST_PHASES, MOST_DEEP, LONGEST_NAME = 500, 50, 200

_HOW = "The whole step has an empty parent, a phase the name of the one that holds it, and what is in no sum has -"


Own = Mapping[str, TablePhase]


def add_phase(found: dict[str, TablePhase], name: str, phase: TablePhase) -> None:
    """Add one row's phase; `UserError` where an earlier row gives it another parent or category."""
    first = found.setdefault(name, phase)
    if first.parent != phase.parent:
        one, other = (f"{p.parent or 'none'} on {p.place}" for p in (first, phase))
        raise UserError(f"phase {name} has two parents: {one} and {other}. A phase has one place in the step")
    if phase.category and first.category and first.category != phase.category:
        one, other = (f"{p.category} on {p.place}" for p in (first, phase))
        raise UserError(f"phase {name} has two categories: {one} and {other}. Give it one")
    if phase.category and not first.category:
        found[name] = replace(first, category=phase.category)


def own_tree(trainer: str, version: str, engine: str, tables: Sequence[Own | None]) -> TimerTree:
    """The tree of a run's tables; `UserError` where their parents make no tree with one root."""
    phases: dict[str, TablePhase] = {}
    for table in filter(None, tables):
        for name, phase in table.items():
            add_phase(phases, name, phase)
    file = next((phase.file for phase in phases.values()), None)
    if len(phases) > MOST_PHASES:
        raise UserError(f"{file} has {len(phases):,} phases, of at most {MOST_PHASES}: phase is a timer's name")
    for name, phase in phases.items():
        _require_parent(name, phase, phases)
    roots = [(name, phase) for name, phase in phases.items() if not phase.parent]
    if not roots:
        raise UserError(f"{file or 'the table'}: no phase of it is the whole step. {_HOW}")
    if len(roots) > 1:
        (one, first), (other, second) = roots[:2]
        raise UserError(
            f"two phases have no parent: {one} on {first.place} and {other} on {second.place}. One is the whole step; "
            f"give the other its parent, or - if it is outside the step"
        )
    paths = {name: _path(name, phases) for name in phases}
    _require_different(paths)
    made = [
        Phase(
            paths[name],
            name,
            "The whole step, as its table has it." if not phase.parent else f"As its table has it, in {phase.parent}.",
            phase.category or "other",
            (name,),
        )
        for name, phase in sorted(phases.items(), key=lambda one: paths[one[0]].count("/"))
    ]
    return TimerTree(trainer, version, (engine,), tuple(made), f"the column parent of {file}", MODE)


def _require_parent(name: str, phase: TablePhase, phases: Own) -> None:
    """A `UserError` where a phase's parents do not lead to the whole step."""
    seen, at = [name], phase
    while at.parent:
        if at.parent not in phases:
            near = difflib.get_close_matches(at.parent, [p for p in phases if p != seen[-1]], n=1, cutoff=0.6)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise UserError(
                f"{at.file}:{at.line}: phase {seen[-1]} has the parent {at.parent}, and no row has that phase in the "
                f"step{hint}. {_HOW}"
            )
        if at.parent in seen:
            ring = [*seen[seen.index(at.parent) :], at.parent]
            start = phases[ring[0]]
            raise UserError(
                f"{start.file}:{start.line}: phase {ring[0]} lies in itself: {', in '.join(ring)}. Correct one of "
                "these parents"
            )
        if len(seen) > MOST_DEEP:
            raise UserError(f"{phase.file}:{phase.line}: phase {name} lies deeper than {MOST_DEEP} phases in the step")
        seen.append(at.parent)
        at = phases[at.parent]


def _path(name: str, phases: Own) -> str:
    parent = phases[name].parent
    # A slash parts the segments of a path.
    return f"{_path(parent, phases)}/{name.replace('/', '.')}" if parent else ROOT


def _require_different(paths: Mapping[str, str]) -> None:
    taken: dict[str, str] = {}
    for name, path in paths.items():
        if (other := taken.setdefault(path, name)) != name:
            raise UserError(f"phases {other} and {name} would both be shown as {path}. Rename one")


def require_name(name: str, where: str) -> None:
    """A `UserError` for a phase's name that cannot be shown, or that a tree of ours would take for a pattern."""
    if "*" in name or not name.isprintable() or len(name) > LONGEST_NAME:
        raise UserError(
            f"{where}: phase {name[:LONGEST_NAME]!r} cannot be a name: it may hold no * and no control characters, and "
            f"{LONGEST_NAME} characters at most"
        )


def category_of(text: str, where: str) -> str:
    """A category as a table gives it, empty for none; `UserError` that lists those that there are."""
    if text and text not in CATEGORIES:
        near = difflib.get_close_matches(text, CATEGORIES, n=1, cutoff=0.6)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise UserError(f"{where} has the category {text}{hint}; allowed: {', '.join(CATEGORIES)}")
    return text


def tree_to_json(tree: TimerTree) -> dict[str, Any]:
    """A tree as JSON, for the metadata of a run's table."""
    return asdict(tree)


def tree_from_json(told: Mapping[str, Any]) -> TimerTree:
    """The tree back from its JSON."""
    phases = tuple(Phase(**{name: _tuples(value) for name, value in phase.items()}) for phase in told["phases"])
    return TimerTree(**{**{name: _tuples(value) for name, value in told.items()}, "phases": phases})


def _tuples(value: Any) -> Any:
    """JSON has lists where a tree has tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
