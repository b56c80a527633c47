"""Starts vLLM's server for TRL's trainer: `python -m trainers.trl.driver.serve <attempt.json> --host HOST --port PORT`.

The process becomes vLLM's own server, which answers GET /health when it is ready. Exit codes before that: 1 unforeseen,
2 a user's mistake (one line).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from engines.vllm import server
from node.engine_server import read_server_request, server_address, uses_server
from node.exit_codes import run
from node.hf_training import number_format
from trainers.trl.driver.options import SERVER_ARGS

_MEMORY_SHARE = 0.3
"""The share of a CPU's memory, as for a colocated vLLM; VLLM_CPU_KVCACHE_SPACE limits its use."""


def main() -> None:
    """Become the server of the attempt on the command line."""
    request = read_server_request("trainers.trl.driver.serve")
    args = request.job.spec["trainer_args"]
    options: dict[str, Any] = {
        # TRL passes no seed.
        "seed": request.seed,
        "dtype": number_format(args["bf16"], args.get("fp16")),
        "tensor_parallel_size": args["vllm_tensor_parallel_size"],
        "max_model_len": args["vllm_max_model_length"],
        "model_impl": args.get("vllm_model_impl"),
        "gpu_memory_utilization": args.get("vllm_gpu_memory_utilization", _MEMORY_SHARE),
    }
    more = args.get(SERVER_ARGS) or {}
    command = server.server_command(request.job.inputs.model, request.host, request.port, options, more)
    os.execve(command[0], command, {**os.environ, **server.VARIABLES})


def address_settings(trainer_args: Mapping[str, Any]) -> dict[str, Any]:
    """GRPOConfig's fields with the server's address; empty without a server."""
    if not uses_server(trainer_args):
        return {}
    url, host, port = server_address()
    # vLLM's client sends this address to the server; by default it would send the default route's.
    os.environ["VLLM_HOST_IP"] = host
    return {"vllm_server_base_url": url, "vllm_group_port": port}


if __name__ == "__main__":
    sys.exit(run(main))
