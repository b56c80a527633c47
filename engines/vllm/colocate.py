"""Reads the final settings of a vLLM in the trainer's process or of a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from common.errors import UserError
from engines.vllm import hooks

_REPORTED = (
    *(("model_config", name) for name in ("seed", "max_model_len", "enforce_eager")),
    *(("scheduler_config", name) for name in ("max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill")),
    ("cache_config", "enable_prefix_caching"),
    ("parallel_config", "tensor_parallel_size"),
)


def final_settings(config: Any, get: Callable[[Any, str], Any], dtype: str) -> dict[str, Any]:
    """The settings in vLLM's configuration, for done.json; `UserError` if its dtype is not the workload's."""
    actual = str(get(get(config, "model_config"), "dtype")).removeprefix("torch.")
    if actual != dtype:
        raise UserError(
            f"vLLM generates in {actual}, but workload.dtype is {dtype}; choose a dtype that the model and the device "
            "support"
        )
    return {"name": "vllm", "dtype": actual, **{name: get(get(config, section), name) for section, name in _REPORTED}}


def engine_settings(engine: Any, dtype: str) -> dict[str, Any]:
    """The final settings of a colocated `LLMEngine`."""
    config = hooks.CONFIG.get(engine)
    compilation = config.compilation_config
    mode = getattr(compilation, "mode", getattr(compilation, "level", ""))  # level up to 0.10
    return {**final_settings(config, getattr, dtype), "compilation_mode": str(mode)}
