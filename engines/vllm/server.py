"""Starts vLLM's own server for a trainer on other GPUs or nodes, with the run's seed and number format.

`python -m engines.vllm.server` is that server, and takes its options.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError
from engines.vllm.cpu import is_cpu_platform
from node.hardware import importing

VARIABLES = {"VLLM_SERVER_DEV_MODE": "1"}
"""The endpoints for new weights and for the prefix cache are there in this mode alone."""
OWNED = frozenset(
    {
        *("model", "host", "port", "served_model_name", "seed", "dtype", "tensor_parallel_size", "data_parallel_size"),
        *("max_model_len", "gpu_memory_utilization", "model_impl", "weight_transfer_config", "worker_extension_cls"),
        *("logprobs_mode", "max_logprobs", "api_key", "api_server_count"),
    }
)
"""Options that follow from the workload, from the trainer's own words, or from the job."""
TRANSFER = "rolloutbench-file"
"""The way that new weights take where there is no NCCL (engines/vllm/file_transfer.py)."""


def server_command(model: Path, host: str, port: int, words: Mapping[str, Any], more: Mapping[str, Any]) -> list[str]:
    """The command line of vLLM's server: as TRL 1.16 starts it (trl/scripts/vllm_serve.py), and `more` options.

    `words` are vLLM's own of the workload. A `UserError` for an option among `more` that is not free.
    """
    for name in more:
        if name.replace("-", "_") in OWNED:
            raise UserError(f"vllm_server_args.{name} follows from the workload, the trainer or the job; take it out")
    transfer: dict[str, Any] = {"weight_transfer_config": json.dumps({"backend": "nccl"})}
    if is_cpu_platform():
        transfer = {
            "weight_transfer_config": json.dumps({"backend": TRANSFER}),
            "worker_extension_cls": "engines.vllm.file_transfer.Registered",
        }
    told = {
        **{"host": host, "port": port, "uvicorn_log_level": "warning"},
        # As the trainer's own sampling has them; -1: as many as are asked for.
        **{"logprobs_mode": "processed_logprobs", "max_logprobs": -1},
        **transfer,
        **words,
        **more,
    }
    options = [part for name, value in told.items() for part in _option(name, value)]
    return [sys.executable, "-m", "engines.vllm.server", f"--model={model}", *options]


def _option(name: str, value: Any) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if value is None:
        return []
    return [f"--{flag}={json.dumps(value) if isinstance(value, dict | list) else value}"]


def server_settings(client: Any, dtype: str) -> dict[str, Any]:
    """The settings that the server finally holds, for done.json, asked for by TRL's client.

    Raises `UserError` if its dtype is not the workload's.
    """
    config = client.get_server_info()
    found = str(config["model_config"]["dtype"]).removeprefix("torch.")
    if found != dtype:
        raise UserError(f"vLLM's server generates in {found}, but workload.dtype is {dtype}")
    model, scheduler, cache = config["model_config"], config["scheduler_config"], config["cache_config"]
    return {
        "name": "vllm",
        "mode": "server",
        "dtype": found,
        "seed": model["seed"],
        "max_model_len": model["max_model_len"],
        "enforce_eager": model["enforce_eager"],
        "max_num_seqs": scheduler["max_num_seqs"],
        "max_num_batched_tokens": scheduler["max_num_batched_tokens"],
        "enable_prefix_caching": cache["enable_prefix_caching"],
        "enable_chunked_prefill": scheduler["enable_chunked_prefill"],
        "tensor_parallel_size": config["parallel_config"]["tensor_parallel_size"],
    }


def transfer_through_file(folder: Path) -> None:
    """Make TRL's client hand new weights over as a file in a folder that the server sees, too.

    TRL 1.16's refuses any device but CUDA's before it asks the server (trl/generation/vllm_client.py,
    `init_communicator`).
    """
    from safetensors.torch import save_file
    from trl.generation.vllm_client import VLLMClient

    def init_communicator(client: Any, device: Any = None) -> None:
        client._post(f"{client.base_url}/init_weight_transfer_engine", json={"init_info": {}})

    def update_named_params(client: Any, metadata: Any, named_params: Iterable[tuple[str, Any]]) -> None:
        path = folder / "weights.safetensors"
        # Two names may share a tensor's memory, for which the format has no word.
        save_file({name: tensor.detach().clone().contiguous() for name, tensor in named_params}, path)
        client._start_weight_update()
        client._post(f"{client.base_url}/update_weights", json={"update_info": {"path": str(path)}})
        client._finish_weight_update()
        path.unlink()

    VLLMClient.init_communicator = init_communicator
    VLLMClient.update_named_params = update_named_params


def main() -> None:
    """Be vLLM's server until it is ended, in a stack that has no pip.

    TRL's client first asks for /server_info, for which vLLM 0.31 lists the installed packages by pip
    (vllm/collect_env.py, `get_pip_packages`): without one it answers with an error.
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
