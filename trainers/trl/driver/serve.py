"""Serves vLLM beside TRL's trainer, `python -m trainers.trl.driver.serve <attempt.json> --host HOST --port PORT`, and
joins the trainer to it.

The program becomes vLLM's own server, which trains nothing and answers GET /health when it is ready. Exit codes before
that: 1 unforeseen, 2 a user's mistake (one line).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.vllm import server
from node.engine_server import read_server_order, server_address, uses_server
from node.exit_codes import run
from node.hf_training import number_format
from trainers.trl.driver.options import SERVER_ARGS

_SHARE = 0.3
"""Of a CPU's memory, as where vLLM is colocated; VLLM_CPU_KVCACHE_SPACE says how much of it is used."""


def main() -> None:
    """Become the server that the command line's attempt wants."""
    order = read_server_order("trainers.trl.driver.serve")
    args = order.job.spec["trainer_args"]
    words: dict[str, Any] = {
        # TRL hands no seed over.
        "seed": order.seed,
        "dtype": number_format(args["bf16"], args.get("fp16")),
        "tensor_parallel_size": args["vllm_tensor_parallel_size"],
        "max_model_len": args["vllm_max_model_length"],
        "model_impl": args.get("vllm_model_impl"),
        "gpu_memory_utilization": args.get("vllm_gpu_memory_utilization", _SHARE),
    }
    more = args.get(SERVER_ARGS) or {}
    command = server.server_command(order.job.inputs.model, order.host, order.port, words, more)
    os.execve(command[0], command, {**os.environ, **server.VARIABLES})


def server_words(trainer_args: Mapping[str, Any]) -> dict[str, Any]:
    """GRPOConfig's fields that say where the server is; none where the run has no server."""
    if not uses_server(trainer_args):
        return {}
    url, host, port = server_address()
    # The address that vLLM's client tells the server to meet it at; it would ask for the default route's.
    os.environ["VLLM_HOST_IP"] = host
    return {"vllm_server_base_url": url, "vllm_group_port": port}


def mend(args: Any, folder: Path) -> None:
    """Let new weights travel through a file of the attempt's folder where there is no NCCL."""
    if args.use_cpu:
        server.transfer_through_file(folder)


def held(trainer: Any, dtype: str) -> dict[str, Any]:
    """The settings that the server finally holds; rank 0 alone has a client that could ask."""
    if not trainer.accelerator.is_main_process:
        return {}
    return server.server_settings(trainer.vllm_generation.vllm_client, dtype)


if __name__ == "__main__":
    sys.exit(run(main))
