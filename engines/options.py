"""Refuses an option that an engine does not have, in the engine's stack, before anything is trained."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Collection

from common.errors import UserError
from common.messages import did_you_mean
from engines import engines
from engines.engine import Engine


def require_options(engine: Engine, given: Collection[str], where: str, served: bool = False) -> None:
    """`UserError` for the first option that the installed engine, or with `served` its server, lacks.

    `where` precedes its name in the text. `engines/<engine>/options.py` asks the engine's package, which takes seconds
    to load.
    """
    if given:
        options = importlib.import_module(f"engines.{engine.name}.options")
        require_known(engine, given, options.server_options() if served else options.known_options(), where)


def require_known(engine: Engine, given: Collection[str], known: Collection[str], where: str) -> None:
    """`UserError` for the first option that is not among the engine's `known` ones."""
    if unknown := sorted(set(given) - set(known)):
        release = next(filter(None, map(_version, engine.packages)), "")
        near = did_you_mean(unknown[0], sorted(known))
        raise UserError(f"{where}{unknown[0]} is no option of {engine.label} {release}{near}")


def installed_engine() -> Engine | None:
    """The engine of this stack that has options of its own; None without one."""
    return next((one for one in engines() if one.options and any(map(_version, one.packages))), None)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
