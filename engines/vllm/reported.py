"""Reads what a vLLM runs with from its own names (read in vLLM 0.8.5, 0.24 and 0.31)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines import reported as term


def terms_in(settings: Mapping[str, Any]) -> dict[str, object]:
    """The terms (engines/reported.py) in vLLM's own settings, flat: options, or as a running engine has them."""
    graphs = _graphs(settings)
    sizes = settings.get("cudagraph_capture_sizes")
    largest = term.whole(settings, "max_cudagraph_capture_size", "max_capture_size")
    largest = max(sizes) if isinstance(sizes, list) and sizes and not largest else largest
    return term.known(
        {
            term.GRAPHS: graphs,
            term.GRAPH_SIZE: term.NONE if graphs == term.OFF else largest,
            term.CACHE: _cache(settings),
            term.SEQUENCES: term.whole(settings, "max_num_seqs"),
            term.PREFILL: term.whole(settings, "max_num_batched_tokens"),
            term.ATTENTION: term.kernel(settings, "attention_backend", "attention_config.backend"),
            term.PREFIX: term.switch(settings, "enable_prefix_caching"),
            term.QUANTISATION: term.quantised(settings),
            term.SLEEP: term.switch(settings, "enable_sleep_mode"),
            term.SEED: term.FIXED if isinstance(settings.get("seed"), int) else None,
        }
    )


def _graphs(settings: Mapping[str, Any]) -> str | None:
    """Whether there are graphs; without the mode `enforce_eager: false` alone says nothing, as on a CPU."""
    mode = str(settings.get("cudagraph_mode") or settings.get("compilation_config.cudagraph_mode") or "")
    if settings.get("enforce_eager") is True or mode.upper() == "NONE":
        return term.OFF
    return term.ON if mode or settings.get("cudagraph_capture_sizes") else None


def _cache(settings: Mapping[str, Any]) -> int | str | None:
    if tokens := term.whole(settings, "kv_cache_size_tokens"):
        return tokens
    blocks, size = term.whole(settings, "num_gpu_blocks", "num_gpu_blocks_override"), term.whole(settings, "block_size")
    if blocks and size:
        return blocks * size
    share = settings.get("gpu_memory_utilization")
    return None if share is None else f"in {share} of the GPU"
