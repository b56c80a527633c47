"""Lists the options of the installed SGLang, and reads the final settings of one that a trainer builds or asks."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Any
from urllib.request import ProxyHandler, build_opener

from engines.sglang import hooks, standins
from node.hardware import importing

_REPORTED = (
    *("dtype", "random_seed", "attention_backend", "decode_attention_backend", "sampling_backend", "quantization"),
    *("kv_cache_dtype", "max_total_tokens", "max_total_num_tokens", "max_running_requests", "chunked_prefill_size"),
    *("effective_max_running_requests_per_dp", "disable_radix_cache", "disable_cuda_graph", "cuda_graph_max_bs"),
    *("enable_memory_saver", "tp_size", "mem_fraction_static"),
)
"""What done.json reports of it (engines/sglang/reported.py)."""
_PATIENCE_S = 60.0


def final_settings(info: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in a server's description; what a release lacks is left out."""
    info = {**info, **(info.get("internal_states") or [{}])[0]}
    final = {name: info[name] for name in _REPORTED if name in info}
    # From 0.5.21 on it says whether decoding has graphs, and up to which batch.
    if decode := (info.get("cuda_graph_config") or {}).get("decode"):
        final["cuda_graph_config"] = {"decode": {name: decode.get(name) for name in ("backend", "max_bs")}}
    return final


def engine_settings(engine: Any, dtype: str) -> dict[str, Any]:
    """The final settings of an `Engine`, in its process."""
    return {"name": "sglang", **final_settings(hooks.INFO.get(engine)())}


def server_settings(host: str, port: int) -> dict[str, Any]:
    """The final settings of an HTTP server without a key, which a site's proxy would not find."""
    at = f"[{host}]" if ":" in host else host
    with build_opener(ProxyHandler({})).open(f"http://{at}:{port}/server_info", timeout=_PATIENCE_S) as answer:
        return {"name": "sglang", **final_settings(json.load(answer))}


def known_options() -> list[str]:
    """The options of SGLang's server."""
    standins.install()
    with importing():
        return list(inspect.signature(hooks.ARGUMENTS.get()).parameters)


server_options = known_options
