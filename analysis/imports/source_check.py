"""Checks that a source is of the trainer and the engine of its arm.

Swapped logs are the most common mistake in a comparison, and reverse its result.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.imports.formats import formats
from analysis.sources.table_frame import FORMAT as TABLE
from common.dotted import lookup
from common.errors import UserError
from engines import UNKNOWN, engines
from trainers.logs.record import Imported
from trainers.registry import trainer_named, trainers


def _trainers_of_format(form: str) -> tuple[str, ...]:
    """The trainers that write a format; none for a table of phases and wandb's files, which any trainer may write."""
    return tuple(trainer.name for trainer in trainers() if any(one.name == form for one in trainer.logs.formats))


def _engine_named(name: str) -> str | None:
    return next((engine.name for engine in engines() if name.lower() in (engine.name, *engine.aliases)), None)


def require_of_arm(spec: Mapping[str, Any], parts: Sequence[tuple[str, Imported]]) -> None:
    """`UserError` where a source is, by its format or its configuration, of another trainer or engine than its arm.

    `spec` is the run's; `parts` are its sources by name, whose steps are not read.
    """
    arm, trainer, engine = (str(spec.get(key)) for key in ("arm", "trainer", "engine"))
    form = (spec.get("import") or {}).get("format")
    for source, part in parts:
        possible, description = trainer_of_source(part) or ((trainer,), "")
        if trainer not in possible:
            if part.format == form and _trainers_of_format(form):
                raise UserError(
                    f"{source} is read as {description} by import.format, and arm {arm} says trainer: {trainer}. "
                    f"Correct arms.{arm}.import.format, or leave it out"
                )
            raise UserError(
                f"{source} is {description}, and arm {arm} says trainer: {trainer}{_suggestion(trainer)}. "
                f"{_remedy(arm, 'trainer')}"
            )
        found, description = engine_of_source(part) or (engine, "")
        if engine not in (UNKNOWN, found):
            raise UserError(f"{source} {description}, and arm {arm} says engine: {engine}. {_remedy(arm, 'engine')}")


def require_own_tree(spec: Mapping[str, Any], parts: Sequence[tuple[str, Imported | None]]) -> None:
    """`UserError` where the trainer is unknown and no source of the run is a table with a column `parent`.

    `parts` are the run's sources by name, None for one that is certainly not a table.
    """
    arm, trainer = str(spec.get("arm")), str(spec.get("trainer"))
    if trainer_named(trainer).logs.trees or any(part is not None and part.tree is not None for _, part in parts):
        return
    is_table = [part is not None and part.format == TABLE for _, part in parts]
    source = parts[is_table.index(True) if any(is_table) else 0][0]
    problem = "has no column parent" if any(is_table) else "is not a table"
    raise UserError(
        f"{source} {problem}. Runs of trainer {trainer}{_suggestion(trainer)} are read only from a table with a column "
        f"parent, which says how its timers nest (arm {arm}; docs/import.md#a-trainer-of-your-own)"
    )


def _known_trainers() -> tuple[str, ...]:
    return tuple(trainer.name for trainer in trainers() if trainer.logs.trees)


def _suggestion(trainer: str) -> str:
    """The known trainer that a misspelt name is close to; empty for a name that is another trainer's."""
    # rllm is another trainer than roll.
    near = difflib.get_close_matches(trainer, _known_trainers(), n=1, cutoff=0.76)
    return f" (did you mean {near[0]}?)" if near and trainer not in _known_trainers() else ""


def _remedy(arm: str, key: str) -> str:
    return (
        f"Were the sources of two arms swapped? Name the arm's own sources in arms.{arm}.import. If they are its own, "
        f"correct arms.{arm}.{key}"
    )


def trainer_of_source(part: Imported) -> tuple[tuple[str, ...], str] | None:
    """The trainers that a source can be of, and its description; None where it does not say."""
    if names := _trainers_of_format(part.format):
        return names, formats()[part.format].partition(",")[0]
    if part.read.written_by:
        trainer = trainer_named(part.read.written_by)
        return (trainer.name,), f"a run of {trainer.label or trainer.name} (by the names in its rows)"
    sections = {str(key).partition(".")[0] for key in part.config}
    mark = next((mark for trainer in trainers() for mark in trainer.logs.marks if mark in sections), None)
    if mark is None:
        return None
    possible = [trainer for trainer in trainers() if mark in trainer.logs.marks]
    labels = " or ".join(trainer.label or trainer.name for trainer in possible)
    return tuple(trainer.name for trainer in possible), f"a run of {labels} (its configuration has {mark})"


def engine_of_source(part: Imported) -> tuple[str, str] | None:
    """The engine of a source and where it says so; None where it does not, or gives an unknown name."""
    for key in dict.fromkeys(key for trainer in trainers() for key in trainer.keys.get("engine", ())):
        value = lookup(part.config, key)
        # Earlier releases of verl had sglang_async beside sglang.
        found = _engine_named(value.partition("_")[0]) if isinstance(value, str) else None
        if found is not None:
            return found, f"has the configuration of a run with {key}: {value}"
        override = part.overrides.get(key) if value is None else None
        found = _engine_named(override.partition("_")[0]) if override else None
        if found is not None:
            return found, f"shows the command of a run with {key}={override}"
    switches = [item for trainer in trainers() for item in trainer.rules.engine_switches.items()]
    # A switch that is on says more than another that is off.
    for on in (True, False):
        for key, means in switches:
            if part.config.get(key) is on and on in means:
                return means[on], f"is of a run with {key}: {str(on).lower()}"
    column = part.selected.get("engine", "")
    found = _engine_named(column) if part.format == TABLE else None
    return (found, f"has only rows of engine {column} for this run") if found is not None else None
