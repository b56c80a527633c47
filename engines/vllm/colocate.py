"""Gives the engine inside the trainer the run's seed and the workload's number format, which TRL 1.16 does not pass."""

from __future__ import annotations

import functools
from typing import Any

from common.errors import UserError
from node.hardware import importing


def pass_seed_and_dtype(seed: int, dtype: str) -> None:
    """Make TRL build its colocated vLLM with the run's seed and the workload's dtype.

    trl/generation/vllm_generation.py builds `LLM(seed=rank // tensor_parallel_size, ...)`: whatever the run's seed,
    vLLM then reseeds the process's global generators with it, from which its CPU sampler draws. The rank is kept as
    an offset, so that ranks differ. No seed per request: it would make a prompt's completions alike.

    The dtype is left at vLLM's "auto", which loads a float32 checkpoint as bfloat16 (vllm/config/model.py,
    `_resolve_auto_dtype`), while transformers would generate in float32.
    """
    with importing():
        from trl.generation import vllm_generation

    original = vllm_generation.LLM

    @functools.wraps(original, updated=())
    def build(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, "seed": seed + int(kwargs.get("seed") or 0), "dtype": dtype})

    vllm_generation.LLM = build


def engine_settings(engine: Any, dtype: str) -> dict[str, Any]:
    """The settings that a colocated `LLMEngine` finally holds, for done.json.

    Raises `UserError` if its dtype is not the workload's.
    """
    config = engine.vllm_config
    compilation = config.compilation_config
    held = str(config.model_config.dtype).removeprefix("torch.")
    if held != dtype:
        raise UserError(
            f"vLLM generates in {held}, but workload.dtype is {dtype}; choose a dtype that the model and the device "
            f"know"
        )
    return {
        "name": "vllm",
        "dtype": held,
        "seed": config.model_config.seed,
        "max_model_len": config.model_config.max_model_len,
        "enforce_eager": config.model_config.enforce_eager,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "enable_prefix_caching": config.cache_config.enable_prefix_caching,
        "enable_chunked_prefill": config.scheduler_config.enable_chunked_prefill,
        "compilation_mode": str(getattr(compilation, "mode", getattr(compilation, "level", ""))),  # level up to 0.10
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
    }
