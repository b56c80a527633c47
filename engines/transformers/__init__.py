"""transformers' generation in the trainer's process, and what it runs with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines import reported as term
from engines.engine import engine_in


def terms_in(settings: Mapping[str, Any]) -> dict[str, object]:
    """The terms (engines/reported.py) of `generate` in the trainer: a batch runs as a whole, without limits.

    Continuous batching has a cache and limits of its own, which it does not tell.
    """
    attention = {term.ATTENTION: term.kernel(settings, "attention")}
    if settings.get("continuous_batching"):
        return term.known(attention)
    limits = dict.fromkeys((term.CACHE, term.SEQUENCES, term.PREFILL), term.NO_LIMIT)
    none = {term.GRAPHS: term.OFF, term.GRAPH_SIZE: term.NONE, term.PREFIX: term.OFF, term.QUANTISATION: term.NONE}
    # It is the trainer's own model, with the trainer's random numbers.
    return term.known({**none, **limits, **attention, term.SLEEP: term.OFF, term.SEED: term.FIXED})


TRANSFORMERS = engine_in(Path(__file__).parent, terms_in)
