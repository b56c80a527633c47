"""Checks that a source is of the trainer and the engine that its arm names.

Swapped logs are the commonest mistake in a comparison, and reverse its answer.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.imports.formats import formats
from analysis.sources.phases_csv import FORMAT as TABLE
from common.dotted import lookup
from common.errors import UserError
from engines import engines
from trainers.logs.record import Imported
from trainers.registry import trainer_named, trainers


def _ours() -> tuple[str, ...]:
    return tuple(trainer.name for trainer in trainers() if trainer.trees)


def _writers() -> dict[str, tuple[str, ...]]:
    """What writes a format, where few do: a table of phases and wandb's files may be of any trainer."""
    names = dict.fromkeys(form.name for trainer in trainers() for form in trainer.formats)
    return {
        name: tuple(trainer.name for trainer in trainers() if any(form.name == name for form in trainer.formats))
        for name in names
    }


def _engine_called(name: str) -> str | None:
    """The engine that a configuration or a table calls so."""
    return next((one.name for one in engines() if name.lower() in (one.name, *one.aliases)), None)


def require_of_arm(spec: Mapping[str, Any], parts: Sequence[tuple[str, Imported]]) -> None:
    """A `UserError` where a source, by its format or the configuration in it, is of another trainer or engine.

    `spec` is the run's; `parts` are its sources by name, of which only what they say beside their steps is looked at.
    """
    arm, trainer, engine = (str(spec.get(key)) for key in ("arm", "trainer", "engine"))
    form = (spec.get("import") or {}).get("format")
    for source, part in parts:
        if (told := trainer_of_source(part)) is not None and trainer not in told[0]:
            if part.format in _writers() and part.format == form:
                raise UserError(
                    f"{source} is read as {told[1]} by import.format, and arm {arm} says trainer: {trainer}. Correct "
                    f"arms.{arm}.import.format, or leave it out"
                )
            raise UserError(
                f"{source} is {told[1]}, and arm {arm} says trainer: {trainer}{_near(trainer)}. {_mend(arm, 'trainer')}"
            )
        if (said := engine_of_source(part)) is not None and said[0] != engine:
            raise UserError(f"{source} {said[1]}, and arm {arm} says engine: {engine}. {_mend(arm, 'engine')}")


def require_own_tree(spec: Mapping[str, Any], parts: Sequence[tuple[str, Imported | None]]) -> None:
    """A `UserError` where a trainer is none of ours and no source of the run is a table with a column `parent`.

    `parts` are the run's sources by name, None for one that is certainly no table.
    """
    arm, trainer = str(spec.get("arm")), str(spec.get("trainer"))
    if trainer in _ours() or any(part is not None and part.tree is not None for _, part in parts):
        return
    source, part = next((one for one in parts if one[1] is not None and one[1].format == TABLE), parts[0])
    lacks = "has no column parent" if part is not None and part.format == TABLE else "is no table"
    raise UserError(
        f"{source} {lacks}, and runs of trainer {trainer}{_near(trainer)} are read from a table with a column parent "
        f"alone, which says how its timers nest (arm {arm}; docs/import.md#a-trainer-of-your-own)"
    )


def _near(trainer: str) -> str:
    """The trainer of ours that a misspelt name is meant for; nothing for a name that is another trainer's."""
    # rllm is another trainer than roll.
    near = difflib.get_close_matches(trainer, _ours(), n=1, cutoff=0.76)
    return f" (did you mean {near[0]}?)" if near and trainer not in _ours() else ""


def _mend(arm: str, key: str) -> str:
    return (
        f"Were the sources of two arms swapped? Name the arm's own in arms.{arm}.import, or, if it is, correct "
        f"arms.{arm}.{key}"
    )


def trainer_of_source(part: Imported) -> tuple[tuple[str, ...], str] | None:
    """The trainers that a source can be of, and what it is in words; None where it does not say."""
    if part.format in _writers():
        return _writers()[part.format], formats()[part.format].partition(",")[0]
    if part.read.written_by:
        named = trainer_named(part.read.written_by)
        return (named.name,), f"a run of {named.label or named.name} (its rows in wandb are named so)"
    sections = {str(key).partition(".")[0] for key in part.config}
    mark = next((mark for one in trainers() for mark in one.marks if mark in sections), None)
    if mark is None:
        return None
    of = [one for one in trainers() if mark in one.marks]
    labels = " or ".join(one.label or one.name for one in of)
    return tuple(one.name for one in of), f"a run of {labels} (its configuration has {mark})"


def engine_of_source(part: Imported) -> tuple[str, str] | None:
    """The engine of a source and where it says so; None where it does not, or by a name that is not known."""
    for key in dict.fromkeys(key for one in trainers() for key in one.keys.get("engine", ())):
        held = lookup(part.config, key)
        # Earlier releases of verl had sglang_async beside sglang.
        found = _engine_called(held.partition("_")[0]) if isinstance(held, str) else None
        if found is not None:
            return found, f"holds the configuration of a run with {key}: {held}"
        asked = part.overrides.get(key) if held is None else None
        found = _engine_called(asked.partition("_")[0]) if asked else None
        if found is not None:
            return found, f"shows the command of a run with {key}={asked}"
    switches = [item for one in trainers() for item in one.engine_switches.items()]
    # One that is on says more than another that is off.
    for on in (True, False):
        for key, means in switches:
            if part.config.get(key) is on and on in means:
                return means[on], f"is of a run with {key}: {str(on).lower()}"
    column = part.selected.get("engine", "")
    found = _engine_called(column) if part.format == TABLE else None
    return (found, f"has only rows of engine {column} for this run") if found is not None else None
