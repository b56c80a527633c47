"""Reads what vLLM's log prints of the engine at its start (lines of vLLM 0.8.5 to 0.31)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from engines.printed import PrintedLine, pairs

_CONFIG = ("quantization", "enforce_eager", "kv_cache_dtype", "seed", "enable_prefix_caching", "tensor_parallel_size")
_ARGUMENTS = ("max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "enable_sleep_mode")
_MODE = re.compile(r"['\"]cudagraph_mode['\"]: <\w+\.(\w+)")
_LARGEST = re.compile(r"['\"]max_(?:cudagraph_)?capture_size['\"]: (\d+)")
_SIZES = re.compile(r"['\"](?:cudagraph_)?capture_sizes['\"]: ?\[(\d+)")


def _configuration(text: str) -> Mapping[str, Any]:
    """Of the line with the whole configuration; the largest batch with graphs comes first in old releases' list."""
    found = pairs(text, _CONFIG)
    if mode := _MODE.search(text):
        found["cudagraph_mode"] = mode[1]
    if largest := _LARGEST.search(text) or _SIZES.search(text):
        found["max_cudagraph_capture_size"] = int(largest[1])
    return found


def _kernel(text: str) -> Mapping[str, Any]:
    return {"attention_backend": text}


LINES = (
    PrintedLine("Initializing a V", re.compile(r"LLM engine \(v.*?\) with config: (.*)"), _configuration),
    PrintedLine("non-default args", re.compile(r"non-default args: (\{.*)"), lambda text: pairs(text, _ARGUMENTS)),
    PrintedLine(
        "Chunked prefill is enabled", re.compile(r"(max_num_batched_tokens=\d+)"), lambda text: pairs(text, _ARGUMENTS)
    ),
    PrintedLine(
        "KV cache size",
        re.compile(r"KV cache size: ([\d,]+) tokens"),
        lambda text: {"kv_cache_size_tokens": int(text.replace(",", ""))},
    ),
    *(
        PrintedLine(mark, re.compile(r"Using (?:AttentionBackendEnum\.)?([\w ]+?)(?: attention)? backend"), _kernel)
        for mark in ("backend on V1 engine", "attention backend out of", "Using AttentionBackendEnum.")
    ),
    PrintedLine("Graph capturing finished", re.compile(r"(finished)"), lambda text: {"cudagraph_mode": "captured"}),
)
