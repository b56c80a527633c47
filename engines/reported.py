"""Names what each engine reports of itself: one name for all engines, whatever their own options are called.

`engines/<engine>/reported.py` reads these terms from the engine's own names: given as options, read from the running
engine, or printed in a log. A term that these do not tell is left out: it is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GRAPHS = "CUDA graphs"
GRAPH_SIZE = "largest batch with CUDA graphs"
CACHE = "KV cache in tokens"
SEQUENCES = "sequences at once"
PREFILL = "prefill tokens in a pass"
ATTENTION = "attention kernel"
PREFIX = "prefix cache"
QUANTISATION = "quantisation"
SLEEP = "sleep between steps"
SEED = "sampling seed"
TERMS = (GRAPHS, GRAPH_SIZE, CACHE, SEQUENCES, PREFILL, ATTENTION, PREFIX, QUANTISATION, SLEEP, SEED)

ON, OFF, NONE = "on", "off", "none"
NO_LIMIT = "no limit"
FIXED = "fixed"
"""A seed that is set; its number differs between runs by design."""


def known(found: Mapping[str, Any]) -> dict[str, object]:
    """The terms that are known."""
    return {name: value for name, value in found.items() if value is not None}


def switch(settings: Mapping[str, Any], option: str, on: bool = True) -> str | None:
    """A switch in words, None if it is unknown; with `on` false the option turns it off."""
    value = settings.get(option)
    return (ON if value is on else OFF) if isinstance(value, bool) else None


def whole(settings: Mapping[str, Any], *options: str) -> int | None:
    """The first of these options that is a positive number."""
    values = (settings.get(option) for option in options)
    return next((value for value in values if isinstance(value, int) and value is not True and value > 0), None)


def kernel(settings: Mapping[str, Any], *options: str) -> str | None:
    """An attention backend's kernels under one name for all engines; None if the engine chooses."""
    for option in options:
        backend = str(settings.get(option) or "auto")
        plain = backend.lower().replace("_", "").replace("-", "").replace(" ", "")
        if plain.startswith("flashinfer"):
            return "flashinfer"
        if plain.startswith(("flashattn", "fa2", "fa3", "fa4", "flashattention")):
            return "FlashAttention"
        if plain not in ("auto", "none"):
            return backend
    return None


def quantised(settings: Mapping[str, Any]) -> str | None:
    """The number formats of weights and cache that are not the model's own; None if neither is known."""
    given = {option: settings[option] for option in ("quantization", "kv_cache_dtype") if option in settings}
    formats = [
        f"{value} {'cache' if option == 'kv_cache_dtype' else 'weights'}"
        for option, value in given.items()
        if str(value).lower() not in ("none", "auto")
    ]
    return " and ".join(formats) or (NONE if len(given) == 2 else None)
