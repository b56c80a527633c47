"""Lists the engines, one folder each, and refuses an option that an installed one does not have.

Standard library only, because it also runs in the stacks.
"""

import importlib
import importlib.metadata
import re
from collections.abc import Collection

from common.errors import UserError
from common.messages import did_you_mean
from engines.engine import Engine
from engines.lmdeploy import LMDEPLOY
from engines.sglang import SGLANG
from engines.transformers import TRANSFORMERS
from engines.vllm import VLLM

__all__ = [
    "UNKNOWN",
    "Engine",
    "engine_named",
    "engine_of_name",
    "engines",
    "installed_engine",
    "require_known",
    "require_options",
]

UNKNOWN = "unknown"
"""The engine of an imported run whose log does not name it."""

_ENGINES: dict[str, Engine] = {engine.name: engine for engine in (VLLM, SGLANG, LMDEPLOY, TRANSFORMERS)}


def engines() -> tuple[Engine, ...]:
    """All known engines."""
    return tuple(_ENGINES.values())


def engine_of_name(name: str) -> str:
    """The engine that a name begins with (`vllm-eager`, `vllm2`); else ""."""
    begins = re.match(r"[a-z]*", name.lower())
    return next((one.name for one in engines() if begins and begins[0] in (one.name, *one.aliases)), "")


def engine_named(name: str) -> Engine:
    """The engine with this name; an unknown engine has only its name."""
    return _ENGINES.get(name) or Engine(name, "an engine that the log does not name" if name == UNKNOWN else name)


def require_options(engine: Engine, given: Collection[str], where: str, served: bool = False) -> None:
    """`UserError` for the first option that the installed engine, or with `served` its server, lacks.

    `where` precedes its name in the text. `engines/<engine>/settings.py` asks the engine's package, which takes
    seconds to load.
    """
    if given:
        options = importlib.import_module(f"engines.{engine.name}.settings")
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
