"""Corrects the vLLM that TRL builds in its process or asks as a server, so that all engines have equal conditions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextlib import suppress
from operator import getitem
from pathlib import Path
from typing import Any

from engines.vllm.colocate import final_settings
from engines.vllm.cpu import reload_weights
from node.hardware import importing
from trainers.trl import hooks


def pass_seed_and_dtype(seed: int, dtype: str) -> None:
    """Make TRL 1.16 build its colocated vLLM with the run's seed and the workload's dtype.

    trl/generation/vllm_generation.py builds `LLM(seed=rank // tensor_parallel_size, ...)` for every run, and vLLM
    reseeds the process's global generators with it, which its CPU sampler uses. Here that number is added to the run's
    seed, so that ranks differ. A seed per request would make all completions of a prompt equal.

    TRL keeps vLLM's dtype "auto", which loads a float32 checkpoint as bfloat16 (vllm/config/model.py,
    `_resolve_auto_dtype`), unlike transformers.
    """
    with importing():
        original = hooks.LLM.get()

    @functools.wraps(original, updated=())
    def build(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **{**kwargs, "seed": seed + int(kwargs.get("seed") or 0), "dtype": dtype})

    hooks.LLM.replace(build)


def sync_through_reload() -> None:
    """Make TRL's colocated weight sync use vLLM's own reload on a CPU (engines/vllm/cpu.py, `reload_weights`).

    TRL 1.16 calls `model.load_weights` for every parameter and fails, as packed parameters have no `weight_loader`.
    """

    def sync_weights(original: Callable[..., None], generation: Any) -> None:
        if hooks.MODE.get(generation) != "colocate":
            original(generation)
            return
        reload_weights(hooks.COLOCATED.get(generation).llm_engine, hooks.NAMED_PARAMETERS.get(generation)())

    hooks.SYNC_WEIGHTS.wrap(sync_weights)


def server_settings(client: Any, dtype: str) -> dict[str, Any]:
    """The server's final settings, from TRL's client."""
    return {"mode": "server", **final_settings(hooks.SERVER_INFO.get(client)(), getitem, dtype)}


def transfer_through_file(folder: Path) -> None:
    """Make TRL's client send new weights as a file in a folder that the server can read.

    TRL 1.16's client rejects all devices but CUDA (trl/generation/vllm_client.py, `init_communicator`).
    """
    from safetensors.torch import save_file

    def init_communicator(client: Any, device: Any = None) -> None:
        hooks.POST.get(client)(f"{hooks.BASE_URL.get(client)}/init_weight_transfer_engine", json={"init_info": {}})

    def update_named_params(client: Any, metadata: Any, named_params: Iterable[tuple[str, Any]]) -> None:
        path = folder / "weights.safetensors"
        # The format does not support tensors that share memory.
        save_file({name: tensor.detach().clone().contiguous() for name, tensor in named_params}, path)
        hooks.START_UPDATE.get(client)()
        hooks.POST.get(client)(
            f"{hooks.BASE_URL.get(client)}/update_weights", json={"update_info": {"path": str(path)}}
        )
        hooks.FINISH_UPDATE.get(client)()
        with suppress(OSError):  # the next weights replace it
            path.unlink()

    hooks.CONNECT.replace(init_communicator)
    hooks.UPDATE.replace(update_named_params)
