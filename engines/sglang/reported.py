"""Reads what an SGLang runs with from its own names (read in SGLang 0.4.6, 0.5.12 and 0.5.23)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines import reported as term


def terms_in(settings: Mapping[str, Any]) -> dict[str, object]:
    """The terms (engines/reported.py) in SGLang's own settings, flat: options, or as a running server has them."""
    graphs = _graphs(settings)
    largest = term.whole(
        settings, "cuda_graph_config.decode.max_bs", "cuda_graph_max_bs_decode", "cuda_graph_max_bs", "captured"
    )
    chunk = settings.get("chunked_prefill_size")
    return term.known(
        {
            term.GRAPHS: graphs,
            term.GRAPH_SIZE: term.NONE if graphs == term.OFF else largest,
            term.CACHE: _cache(settings),
            term.SEQUENCES: term.whole(settings, "effective_max_running_requests_per_dp", "max_running_requests"),
            # -1: prompts are never divided.
            term.PREFILL: term.NO_LIMIT if chunk == -1 else term.whole(settings, "chunked_prefill_size"),
            term.ATTENTION: term.kernel(settings, "decode_attention_backend", "attention_backend"),
            term.PREFIX: term.switch(settings, "disable_radix_cache", on=False),
            term.QUANTISATION: term.quantised(settings),
            term.SLEEP: term.switch(settings, "enable_memory_saver"),
            term.SEED: term.FIXED if isinstance(settings.get("random_seed"), int) else None,
        }
    )


def _graphs(settings: Mapping[str, Any]) -> str | None:
    """Whether decoding has graphs; a server on a CPU has none whatever the switch says."""
    backend = settings.get("cuda_graph_config.decode.backend") or settings.get("cuda_graph_backend_decode")
    off = (settings.get("disable_cuda_graph"), settings.get("disable_decode_cuda_graph"), backend == "disabled")
    if True in off or settings.get("device") == "cpu":
        return term.OFF
    return term.ON if backend or settings.get("disable_cuda_graph") is False else None


def _cache(settings: Mapping[str, Any]) -> int | str | None:
    if tokens := term.whole(settings, "max_total_num_tokens", "max_total_tokens"):
        return tokens
    share = settings.get("mem_fraction_static")
    return None if share is None else f"in {share} of the memory that is free at its start"
