"""Builds a timer tree from a user's table with a column `parent`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from common.dotted import frozen
from common.errors import UserError
from common.messages import did_you_mean
from trainers.logs.record import TablePhase
from trainers.timers.tree import CATEGORIES, Phase, TimerTree

# The root of all paths; the table's own name of it is the label.
ROOT = "step"
MODE = "own tree"
# The parent of a row outside the step's sum: a count, a length, a statistic over ranks, work outside the step.
NOT_SUMMED = "-"
# Each phase is a row of the report.
MOST_PHASES, MOST_DEEP, LONGEST_NAME = 500, 50, 200

_HOW = "The whole step has an empty parent, a phase the name of its parent, and a row outside the sum has -"


def add_phase(found: dict[str, TablePhase], name: str, phase: TablePhase) -> None:
    """Add one row's phase; `UserError` if an earlier row gives it another parent or category."""
    first = found.setdefault(name, phase)
    if first.parent != phase.parent:
        one, other = (f"{p.parent or 'none'} on {p.place}" for p in (first, phase))
        raise UserError(f"phase {name} has two parents: {one} and {other}. A phase has one place in the step")
    if phase.category and first.category and first.category != phase.category:
        one, other = (f"{p.category} on {p.place}" for p in (first, phase))
        raise UserError(f"phase {name} has two categories: {one} and {other}. Give it one")
    if phase.category and not first.category:
        found[name] = replace(first, category=phase.category)


def own_tree(trainer: str, version: str, engine: str, tables: Sequence[Mapping[str, TablePhase] | None]) -> TimerTree:
    """The tree of a run's tables; `UserError` if their parents do not form a tree with one root."""
    phases: dict[str, TablePhase] = {}
    for table in filter(None, tables):
        for name, phase in table.items():
            add_phase(phases, name, phase)
    file = next((phase.file for phase in phases.values()), None)
    if len(phases) > MOST_PHASES:
        raise UserError(
            f"{file} has {len(phases):,} phases; at most {MOST_PHASES} are allowed. The column phase has timer names"
        )
    paths = {name: _path(name, phases) for name in phases}
    roots = [(name, phase) for name, phase in phases.items() if not phase.parent]
    if not roots:
        raise UserError(f"{file or 'the table'}: no phase of it is the whole step. {_HOW}")
    if len(roots) > 1:
        (one, first), (other, second) = roots[:2]
        raise UserError(
            f"two phases have no parent: {one} on {first.place} and {other} on {second.place}. One is the whole step; "
            f"give the other its parent, or - if it is outside the step"
        )
    names: dict[str, str] = {}
    for name, path in paths.items():
        if (other := names.setdefault(path, name)) != name:
            raise UserError(f"phases {other} and {name} would both be shown as {path}. Rename one")
    made = [
        Phase(
            paths[name],
            name,
            f"A phase of the table, in {phase.parent}." if phase.parent else "The whole step of the table.",
            phase.category or "other",
            (name,),
        )
        for name, phase in sorted(phases.items(), key=lambda item: paths[item[0]].count("/"))
    ]
    return TimerTree(trainer, version, (engine,), tuple(made), f"the column parent of {file}", MODE)


def _path(name: str, phases: Mapping[str, TablePhase]) -> str:
    """The path of a phase; `UserError` if its chain of parents does not end at the whole step."""
    chain = [name]
    while parent := (at := phases[chain[-1]]).parent:
        if parent not in phases:
            raise UserError(
                f"{at.file}:{at.line}: phase {chain[-1]} has the parent {parent}, and no row has that phase in the "
                f"step{did_you_mean(parent, [p for p in phases if p != chain[-1]])}. {_HOW}"
            )
        if parent in chain:
            ring, start = [*chain[chain.index(parent) :], parent], phases[parent]
            raise UserError(
                f"{start.file}:{start.line}: phase {parent} lies in itself: {', in '.join(ring)}. Correct one of these "
                "parents"
            )
        if len(chain) > MOST_DEEP:
            of = phases[name]
            raise UserError(f"{of.file}:{of.line}: phase {name} lies deeper than {MOST_DEEP} phases in the step")
        chain.append(parent)
    # A slash separates the segments of a path.
    return "/".join([ROOT, *(one.replace("/", ".") for one in reversed(chain[:-1]))])


def require_name(name: str, where: str) -> None:
    """`UserError` for a phase's name that cannot be shown, or that a declared tree would treat as a pattern."""
    if "*" in name or not name.isprintable() or len(name) > LONGEST_NAME:
        raise UserError(
            f"{where}: phase {name[:LONGEST_NAME]!r} cannot be a name: use no * and no control characters, and at most "
            f"{LONGEST_NAME} characters"
        )


def category_of(text: str, where: str) -> str:
    """A table's category, which may be empty; `UserError` with the known ones for any other."""
    if text and text not in CATEGORIES:
        hint = did_you_mean(text, CATEGORIES)
        raise UserError(f"{where} has the category {text}{hint}; allowed: {', '.join(CATEGORIES)}")
    return text


def tree_to_json(tree: TimerTree) -> dict[str, Any]:
    """A tree as JSON, for the metadata of a run's table."""
    return asdict(tree)


def tree_from_json(raw: Mapping[str, Any]) -> TimerTree:
    """The tree from its JSON."""
    tree = frozen(raw)
    return TimerTree(**{**tree, "phases": tuple(Phase(**phase) for phase in tree["phases"])})
