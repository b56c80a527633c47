"""Lists the options of the installed vLLM, and reads the final settings of one that a trainer builds or asks."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from common.errors import UserError
from engines.vllm import hooks
from node.hardware import importing

_REPORTED = {
    "model_config": ("seed", "max_model_len", "enforce_eager", "quantization", "enable_sleep_mode"),
    "scheduler_config": ("max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill"),
    "cache_config": ("enable_prefix_caching", "cache_dtype", "kv_cache_size_tokens", "num_gpu_blocks", "block_size"),
    "parallel_config": ("tensor_parallel_size",),
    "compilation_config": ("cudagraph_mode", "max_cudagraph_capture_size", "max_capture_size"),
    "attention_config": ("backend",),
}
_OPTION = {"cache_dtype": "kv_cache_dtype", "backend": "attention_backend"}
"""A field whose option has another name."""


def final_settings(config: Any, dtype: str) -> dict[str, Any]:
    """The settings in vLLM's configuration, for done.json; `UserError` if its dtype is not the workload's.

    `config` has its sections as objects, or as a server answers it: nested dictionaries. What a release lacks is left
    out.
    """
    actual = str(_get(_get(config, "model_config"), "dtype")).removeprefix("torch.")
    if actual != dtype:
        raise UserError(
            f"vLLM generates in {actual}, but workload.dtype is {dtype}; choose a dtype that the model and the device "
            "support"
        )
    found = {
        _OPTION.get(name, name): getattr(value, "name", value)  # an enumeration's member
        for section, names in _REPORTED.items()
        for name in names
        if (value := _get(_get(config, section), name, _ABSENT)) is not _ABSENT
    }
    return {"name": "vllm", "dtype": actual, **found}


_ABSENT = object()


def _get(section: Any, name: str, default: Any = None) -> Any:
    return section.get(name, default) if isinstance(section, Mapping) else getattr(section, name, default)


def engine_settings(engine: Any, dtype: str) -> dict[str, Any]:
    """The final settings of an engine in this process, with the kernels that its layers chose if they are here, too.

    `engine` is an `LLMEngine`, the `LLM` that has one, or an `AsyncLLM`, whose layers are in another process.
    """
    config = hooks.CONFIG.get(getattr(engine, "llm_engine", engine))
    compilation = config.compilation_config
    mode = getattr(compilation, "mode", getattr(compilation, "level", ""))  # level up to 0.10
    layers = getattr(compilation, "static_forward_context", {}).values()
    chosen = {layer.attn_backend.get_name() for layer in layers if hasattr(layer, "attn_backend")}
    kernels = {"attention_backend": " and ".join(sorted(chosen))} if chosen else {}
    return {**final_settings(config, dtype), **kernels, "compilation_mode": str(mode)}


def known_options() -> list[str]:
    """The options that vLLM's `LLM` passes on to its engine."""
    with importing():
        return [field.name for field in dataclasses.fields(hooks.ARGUMENTS.get())]


def server_options() -> list[str]:
    """The options of vLLM's server: those of its command line and of its engine."""
    return [*known_options(), *(action.dest for action in server_parser()._actions)]


def server_parser() -> argparse.ArgumentParser:
    """The parser of the server's command line."""
    with importing():
        try:
            add_options = hooks.SERVER_OPTIONS.get()
        except ModuleNotFoundError:
            add_options = hooks.SERVER_OPTIONS_0_28.get()
        return cast("argparse.ArgumentParser", add_options(hooks.PARSER.get()()))
