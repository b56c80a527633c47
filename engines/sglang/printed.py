"""Reads what SGLang's log prints of the engine at its start (lines of SGLang 0.4.6 to 0.5.23)."""

from __future__ import annotations

import re

from engines.printed import PrintedLine, pairs

_ARGUMENTS = (
    *("disable_cuda_graph", "cuda_graph_max_bs", "disable_radix_cache", "quantization", "kv_cache_dtype", "tp_size"),
    *("attention_backend", "decode_attention_backend", "max_running_requests", "chunked_prefill_size"),
    *("mem_fraction_static", "enable_memory_saver"),
)
"""Not its seed: a server draws one where none is given, and prints both alike."""
_POOL = ("max_total_num_tokens", "chunked_prefill_size", "max_running_requests")

LINES = (
    PrintedLine("server_args=", re.compile(r"server_args=ServerArgs\((.*)"), lambda text: pairs(text, _ARGUMENTS)),
    PrintedLine("max_total_num_tokens=", re.compile(r"(max_total_num_tokens=.*)"), lambda text: pairs(text, _POOL)),
    PrintedLine(
        "Capture cuda graph bs",
        re.compile(r"Capture cuda graph bs \[([\d, ]+)\]"),
        lambda text: {"captured": max(int(size) for size in text.split(",") if size.strip())},
    ),
    PrintedLine(
        "backend by default",
        re.compile(r"[Aa]ttention backend not (?:set|specified)\. Use (\w+) backend by default"),
        lambda text: {"attention_backend": text},
    ),
)
