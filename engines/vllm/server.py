"""Starts vLLM's server for a trainer on other GPUs or nodes, with the run's seed and number format.

`python -m engines.vllm.server` is that server, with vLLM's options.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from operator import getitem
from pathlib import Path
from typing import Any

from common.errors import UserError
from engines.vllm.colocate import final_settings
from engines.vllm.cpu import is_cpu_platform
from node.hardware import importing

VARIABLES = {"VLLM_SERVER_DEV_MODE": "1"}
"""Only this mode has the endpoints for new weights and for the prefix cache."""
OWNED = frozenset(
    {
        *("model", "host", "port", "served_model_name", "seed", "dtype", "tensor_parallel_size", "data_parallel_size"),
        *("max_model_len", "gpu_memory_utilization", "model_impl", "weight_transfer_config", "worker_extension_cls"),
        *("logprobs_mode", "max_logprobs", "api_key", "api_server_count"),
    }
)
"""Options that the workload, the trainer's settings or the job decide."""
TRANSFER = "rolloutbench-file"
"""The weight transfer without NCCL (engines/vllm/file_transfer.py)."""


def server_command(
    model: Path, host: str, port: int, workload: Mapping[str, Any], more: Mapping[str, Any]
) -> list[str]:
    """The command line of vLLM's server, as in TRL 1.16 (trl/scripts/vllm_serve.py), with `more` options.

    `workload` are vLLM's options for the workload. `UserError` if `more` has an option of `OWNED`.
    """
    for name in more:
        if name.replace("-", "_") in OWNED:
            raise UserError(f"vllm_server_args.{name} follows from the workload, the trainer or the job; remove it")
    transfer: dict[str, Any] = {"weight_transfer_config": json.dumps({"backend": "nccl"})}
    if is_cpu_platform():
        transfer = {
            "weight_transfer_config": json.dumps({"backend": TRANSFER}),
            "worker_extension_cls": "engines.vllm.file_transfer.Registered",
        }
    options = {
        **{"host": host, "port": port, "uvicorn_log_level": "warning"},
        # As in the trainer's own sampling; -1: no limit.
        **{"logprobs_mode": "processed_logprobs", "max_logprobs": -1},
        **transfer,
        **workload,
        **more,
    }
    arguments = [part for name, value in options.items() for part in _option(name, value)]
    return [sys.executable, "-m", "engines.vllm.server", f"--model={model}", *arguments]


def _option(name: str, value: Any) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if value is None:
        return []
    return [f"--{flag}={json.dumps(value) if isinstance(value, dict | list) else value}"]


def server_settings(client: Any, dtype: str) -> dict[str, Any]:
    """The server's final settings, from TRL's client."""
    return {"mode": "server", **final_settings(client.get_server_info(), getitem, dtype)}


def transfer_through_file(folder: Path) -> None:
    """Make TRL's client send new weights as a file in a folder that the server can read.

    TRL 1.16's client rejects all devices but CUDA (trl/generation/vllm_client.py, `init_communicator`).
    """
    from safetensors.torch import save_file
    from trl.generation.vllm_client import VLLMClient

    def init_communicator(client: Any, device: Any = None) -> None:
        client._post(f"{client.base_url}/init_weight_transfer_engine", json={"init_info": {}})

    def update_named_params(client: Any, metadata: Any, named_params: Iterable[tuple[str, Any]]) -> None:
        path = folder / "weights.safetensors"
        # The format does not support tensors that share memory.
        save_file({name: tensor.detach().clone().contiguous() for name, tensor in named_params}, path)
        client._start_weight_update()
        client._post(f"{client.base_url}/update_weights", json={"update_info": {"path": str(path)}})
        client._finish_weight_update()
        with suppress(OSError):  # the next weights replace it
            path.unlink()

    VLLMClient.init_communicator = init_communicator
    VLLMClient.update_named_params = update_named_params


def main() -> None:
    """Run vLLM's server in a stack without pip.

    TRL's client requests /server_info, for which vLLM 0.31 calls pip (vllm/collect_env.py, `get_pip_packages`) and
    fails without it.
    """
    with importing():
        from vllm import collect_env
        from vllm.entrypoints.launchers.api_server import entry

    def get_pip_packages(run: Any, patterns: Any = None) -> tuple[str, str]:
        return "pip3", "not listed"

    collect_env.get_pip_packages = get_pip_packages
    entry.main()


if __name__ == "__main__":
    main()
