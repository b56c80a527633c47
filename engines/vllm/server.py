"""Starts vLLM's server for a trainer on other GPUs or nodes, with the run's seed and number format.

`python -m engines.vllm.server` is that server, with vLLM's options.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError
from engines import require_known
from engines.vllm import VLLM, hooks
from engines.vllm.cpu import FromFile, is_cpu_platform
from engines.vllm.settings import server_parser
from node.hardware import importing

VARIABLES = {"VLLM_SERVER_DEV_MODE": "1"}
"""Only this mode has the endpoints for new weights and for the prefix cache."""
OWNED = frozenset(
    {
        *("model", "host", "port", "served_model_name", "seed", "dtype", "tensor_parallel_size", "data_parallel_size"),
        *("max_model_len", "gpu_memory_utilization", "model_impl", "weight_transfer_config", "worker_extension_cls"),
        *("logprobs_mode", "max_logprobs", "api_key", "api_server_count", "middleware"),
    }
)
"""Options that the workload, the trainer's settings or the job decide."""
_WHERE = "vllm_server_args."


def server_command(
    model: Path, host: str, port: int, workload: Mapping[str, Any], more: Mapping[str, Any]
) -> list[str]:
    """The command line of vLLM's server, as in TRL 1.16 (trl/scripts/vllm_serve.py), with `more` options.

    `workload` are vLLM's options for the workload. `UserError` if `more` has an option of `OWNED`.
    """
    _require_free(more)
    transfer: dict[str, Any] = {"weight_transfer_config": json.dumps({"backend": "nccl"})}
    if is_cpu_platform():
        transfer = {"worker_extension_cls": f"{FromFile.__module__}.{FromFile.__name__}"}
    options = {
        **{"host": host, "port": port, "uvicorn_log_level": "warning"},
        "middleware": "node.guard.SecretGuard",
        # As in the trainer's own sampling; -1: no limit.
        **{"logprobs_mode": "processed_logprobs", "max_logprobs": -1},
        **transfer,
        **workload,
        **more,
    }
    arguments = [part for name, value in options.items() for part in _option(name, value)]
    return [sys.executable, "-m", "engines.vllm.server", f"--model={model}", *arguments]


def require_options(more: Mapping[str, Any]) -> None:
    """`UserError` for further options that vLLM's server would refuse: it is asked before anything is trained."""
    _require_free(more)
    parser = server_parser()
    # The parser itself takes the beginning of a name for the name.
    known = [action.dest for action in parser._actions]
    require_known(VLLM, [name.replace("-", "_") for name in more], known, _WHERE)
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            parser.parse_args([part for name, value in more.items() for part in _option(name, value)])
    except SystemExit:
        # argparse: the usage, then "<program>: error: <what is wrong>".
        refusal = " ".join(stderr.getvalue().rpartition("error: ")[2].split())
        raise UserError(f"vLLM's server refuses vllm_server_args: {refusal}") from None


def _require_free(more: Mapping[str, Any]) -> None:
    for name in more:
        if name.replace("-", "_") in OWNED:
            raise UserError(f"{_WHERE}{name} follows from the workload, the trainer or the job; remove it")


def _option(name: str, value: Any) -> list[str]:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if value is None:
        return []
    return [f"--{flag}={json.dumps(value) if isinstance(value, dict | list) else value}"]


def main() -> None:
    """Run vLLM's server in a stack without pip.

    TRL's client requests /server_info, for which vLLM 0.31 calls pip (vllm/collect_env.py, `get_pip_packages`) and
    fails without it.
    """
    with importing():
        serve = hooks.SERVE.get()

    def get_pip_packages(run: Any, patterns: Any = None) -> tuple[str, str]:
        return "pip3", "not listed"

    hooks.PIP_PACKAGES.replace(get_pip_packages)
    # A user's key for another server: this one would ask the trainer for it, who has the attempt's secret instead.
    os.environ.pop("VLLM_API_KEY", None)
    serve()


if __name__ == "__main__":
    main()
