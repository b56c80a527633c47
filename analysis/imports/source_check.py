"""Finds out who wrote a source, and checks that it is of the trainer and the engine of its arm.

Swapped logs are the most common mistake in a comparison, and reverse its result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.sources.table_frame import FORMAT as TABLE
from common.dotted import lookup
from common.errors import UserError
from common.messages import did_you_mean
from engines import UNKNOWN, engines
from trainers.logs.record import TIMERS, Imported, SourceRead
from trainers.registry import trainer_named, trainers
from trainers.timers.flat import nest_timers


def require_of_arm(spec: Mapping[str, Any], parts: Sequence[tuple[str, Imported]]) -> None:
    """`UserError` where a source is, by its format or its configuration, of another trainer or engine than its arm, or
    where the trainer is unknown and no source is a table with a column `parent`.

    `spec` is the run's; `parts` are its sources by name.
    """
    arm, trainer, engine = (str(spec.get(key)) for key in ("arm", "trainer", "engine"))
    swapped = (
        f"Were the sources of two arms swapped? Name the arm's own sources in arms.{arm}.import. If they are its own, "
        f"correct arms.{arm}"
    )
    for source, part in parts:
        possible, description = trainer_of_source(part) or ((trainer,), "")
        if trainer not in possible:
            raise UserError(
                f"{source} is {description}, and arm {arm} says trainer: {trainer}{_suggestion(trainer)}. "
                f"{swapped}.trainer (or its import.format)"
            )
        found, description = engine_of_source(part) or (engine, "")
        if engine not in (UNKNOWN, found):
            raise UserError(f"{source} {description}, and arm {arm} says engine: {engine}. {swapped}.engine")
    if trainer_named(trainer).logs.trees or any(part.tree is not None for _, part in parts):
        return
    is_table = [part.format == TABLE for _, part in parts]
    raise UserError(
        f"{parts[is_table.index(True) if any(is_table) else 0][0]} "
        f"{'has no column parent' if any(is_table) else 'is not a table'}. Runs of trainer "
        f"{trainer}{_suggestion(trainer)} are read only from a table with a column parent, which says how its timers "
        f"nest (arm {arm}; docs/import.md#a-trainer-of-your-own)"
    )


def _suggestion(trainer: str) -> str:
    """The known trainer that a misspelt name is close to; empty for a name that is another trainer's."""
    known = [one.name for one in trainers() if one.logs.trees]
    # rllm is another trainer than roll.
    return "" if trainer in known else did_you_mean(trainer, known, cutoff=0.76)


def trainer_of_source(part: Imported) -> tuple[tuple[str, ...], str] | None:
    """The trainers that a source can be of, and its description; None where it does not say."""
    forms = [(one, form.what) for one in trainers() for form in one.logs.formats if form.name == part.format]
    if forms:
        return tuple(one.name for one, _ in forms), forms[0][1].partition(",")[0]
    if part.read.written_by:
        trainer = trainer_named(part.read.written_by)
        return (trainer.name,), f"a run of {trainer.label or trainer.name} (by the names in its rows)"
    trained = [trainer for trainer in trainers() if trainer.trains]
    for mark in (key for one in trained for key in one.keys.get("engine", ()) if lookup(part.config, key) is not None):
        possible = [trainer for trainer in trained if mark in trainer.keys.get("engine", ())]
        labels = " or ".join(trainer.label or trainer.name for trainer in possible)
        return tuple(one.name for one in possible), f"a run of {labels} (its configuration has {mark})"
    return None


def trainers_by_data(read: SourceRead) -> list[str]:
    """The trainer whose names a source's rows have, else those whose declared timers are most of it.

    None where the declared timers are fewer than half of a source's.
    """
    if read.written_by:
        return [read.written_by]
    first = next(iter(read.records.values()), None)
    if first is None:
        return []
    timers = [name for name in first.scalars if name.startswith(TIMERS)]
    counts = {
        trainer.name: max((len(nest_timers(first.scalars, tree).phases) for tree in trainer.logs.trees), default=0)
        for trainer in trainers()
    }
    most = max(counts.values(), default=0)
    return [name for name, count in counts.items() if count == most] if most and 2 * most >= len(timers) else []


def engine_of_source(part: Imported) -> tuple[str, str] | None:
    """The engine of a source and where it says so; None where it does not, or gives an unknown name."""
    names = {name: engine.name for engine in engines() for name in (engine.name, *engine.aliases)}
    for key in dict.fromkeys(key for trainer in trainers() for key in trainer.keys.get("engine", ())):
        value = lookup(part.config, key)
        # Earlier releases of verl had sglang_async beside sglang.
        if isinstance(value, str) and (found := names.get(value.partition("_")[0].lower())):
            return found, f"has the configuration of a run with {key}: {value}"
        override = part.overrides.get(key, "") if value is None else ""
        if found := names.get(override.partition("_")[0].lower()):
            return found, f"shows the command of a run with {key}={override}"
    # A switch that is on says more than another that is off.
    switches = {f"use_{engine.name}": engine.name for engine in engines() if not engine.in_trainer}
    alone = next(engine.name for engine in engines() if engine.in_trainer)
    for on in (True, False):
        for key, engine in switches.items():
            if part.config.get(key) is on:
                return engine if on else alone, f"is of a run with {key}: {str(on).lower()}"
    column = part.selected.get("engine", "") if part.format == TABLE else ""
    return (
        (names[column.lower()], f"has only rows of engine {column} for this run") if column.lower() in names else None
    )
