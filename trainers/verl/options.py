"""Which of an arm's options may stand, and how do they join what the workload says?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from common.errors import UserError
from common.messages import short
from trainers.verl import packaged
from trainers.verl.words import Settings


def checked_leaves(
    leaves: list[tuple[str, Any]], owned: Settings, sections: Mapping[str, str], version: str
) -> Iterator[tuple[str, Any]]:
    """The options that are free; a `UserError` at the first that is not.

    `owned` are single keys with the word that each follows from, `sections` whole parts of verl's configuration
    with who sets them.
    """
    parents = _parents(owned)
    for key, value in leaves:
        bare = key.lstrip("+")
        word = _owner(bare, owned, sections)
        if word is not None:
            raise UserError(
                f"options.{key} of an arm is not free: {_whose(word)}, so that it holds for every arm alike "
                f"(got {short(value)})"
            )
        if bare in parents and not (isinstance(value, Mapping) and not value):
            raise UserError(f"options.{key} is a section of verl's configuration, not one setting (got {short(value)})")
        if bare == "hydra" or bare.startswith("hydra."):
            raise UserError(f"options.{key} is a setting of Hydra's command line, and would do nothing here; remove it")
        if "oc.env" in str(value):
            # Resolved settings are written into results, and with them whatever the variable holds.
            raise UserError(
                f"options.{key} reads an environment variable (got {short(value)}); write the value itself, or give "
                "the variable in the arm's env"
            )
        if wrong := packaged.problem(version, key, value):
            raise UserError(f"options.{key} of an arm: {wrong}")
        yield key, value


def _owner(bare: str, owned: Settings, sections: Mapping[str, str]) -> str | None:
    for name in (bare, f"+{bare}"):
        if name in owned:
            return owned[name][0]
    at = bare
    while at:
        if at in sections:
            return sections[at]
        at = at.rpartition(".")[0]
    return None


def _whose(word: str) -> str:
    if word == "job":
        return "the job sets it on the node (paths, names, loggers, resuming, the reward's file)"
    if not word:
        return "this project compares GRPO, and sets it itself"
    if word in ("engine", "seeds"):
        return f"it follows from {'the arm' if word == 'engine' else 'the experiment'}'s {word}. Change that instead"
    return f"it follows from workload.{word}. Change the workload's own word instead"


def _parents(owned: Settings) -> set[str]:
    found: set[str] = set()
    for key in owned:
        at = key.lstrip("+").rpartition(".")[0]
        while at and at not in found:
            found.add(at)
            at = at.rpartition(".")[0]
    return found
