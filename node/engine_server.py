"""Reads what a job tells a server and the trainer beside it: where it answers, and where both meet."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import UserError
from node.attempt import Job, begin, read_attempt
from node.checkpoints import newest_checkpoint

URL, MEET = "ROLLOUTBENCH_SERVER", "ROLLOUTBENCH_MEET"
"""Variables of the trainer: where the server answers, and the address at which both meet for new weights."""
SCORER, SECRET = "ROLLOUTBENCH_SCORER", "ROLLOUTBENCH_SERVER_SECRET"
"""Variables of the trainer: where its reward models answer, and what they and it alone know."""
_SEEDS_APART = 1000
"""Of a step: a resumed run draws from another stream than its first steps had."""


@dataclass(frozen=True, slots=True)
class ServerOrder:
    """What a server is ordered to be."""

    job: Job
    host: str
    port: int
    seed: int
    """The run's, of its first step in this life."""


def read_server_order(program: str, name: str = "server") -> ServerOrder:
    """The order of `program ATTEMPT --host HOST --port PORT`, once the attempt's inputs are as they were prepared."""
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("attempt")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    job = begin(read_attempt([given.attempt]), name)
    job.inputs.require_unchanged()
    newest = newest_checkpoint(Path(job.attempt["checkpoint_dir"]))
    seed = int(job.spec["trainer_args"]["seed"]) + _SEEDS_APART * (newest.step if newest else 0)
    return ServerOrder(job, given.host, given.port, seed)


def uses_server(trainer_args: Mapping[str, Any]) -> bool:
    """Whether a run's vLLM is a server of its own, in the words that TRL and ms-swift share."""
    return bool(trainer_args.get("use_vllm")) and trainer_args.get("vllm_mode") == "server"


def server_address() -> tuple[str, str, int]:
    """The URL of the trainer's server, and the host and port at which both meet; `UserError` without one."""
    url, meet = os.environ.get(URL), os.environ.get(MEET)
    if not url or not meet:
        raise UserError(
            f"vllm_mode is server, and no server runs beside the trainer: {URL} is not set; the job sets it"
        )
    host, _, port = meet.rpartition(":")
    return url, host, int(port)
