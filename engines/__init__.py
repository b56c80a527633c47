"""The engines, a folder each. Runs in the stacks, too: the standard library alone."""

from engines.engine import Engine
from engines.lmdeploy import LMDEPLOY
from engines.sglang import SGLANG
from engines.transformers import TRANSFORMERS
from engines.vllm import VLLM

__all__ = ["Engine", "engine_named", "engines", "register"]

_ENGINES: dict[str, Engine] = {one.name: one for one in (VLLM, SGLANG, LMDEPLOY, TRANSFORMERS)}


def register(engine: Engine) -> None:
    """Add an engine, or replace the one of that name."""
    _ENGINES[engine.name] = engine


def engines() -> tuple[Engine, ...]:
    """All engines that are known here."""
    return tuple(_ENGINES.values())


def engine_named(name: str) -> Engine:
    """The engine of that name; of one that is unknown here no more than its name."""
    return _ENGINES.get(name) or Engine(name, name)
