"""Passes the run's seed and number format to vLLM in the trainer's process, and reads vLLM's settings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from common.errors import UserError
from node.hardware import importing


def pass_seed_and_dtype(seed: int, dtype: str) -> None:
    """Make TRL 1.16 build its colocated vLLM with the run's seed and the workload's dtype.

    trl/generation/vllm_generation.py builds `LLM(seed=rank // tensor_parallel_size, ...)` for every run, and vLLM
    reseeds the process's global generators with it, which its CPU sampler uses. Here that number is added to the run's
    seed, so that ranks differ. A seed per request would make all completions of a prompt equal.

    TRL keeps vLLM's dtype "auto", which loads a float32 checkpoint as bfloat16 (vllm/config/model.py,
    `_resolve_auto_dtype`), unlike transformers.
    """
    with importing():
        from trl.generation import vllm_generation

    original = vllm_generation.LLM

    @functools.wraps(original, updated=())
    def build(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, "seed": seed + int(kwargs.get("seed") or 0), "dtype": dtype})

    vllm_generation.LLM = build


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
    compilation = engine.vllm_config.compilation_config
    mode = getattr(compilation, "mode", getattr(compilation, "level", ""))  # level up to 0.10
    return {**final_settings(engine.vllm_config, getattr, dtype), "compilation_mode": str(mode)}
