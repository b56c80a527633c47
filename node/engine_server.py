"""Passes a server's address, secret and request from the job to the server and to the trainer."""

from __future__ import annotations

import argparse
import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import UserError
from node.attempt import Job, begin, read_attempt
from node.hf_training import newest_checkpoint
from node.seeds import engine_seed

URL, MEET = "ROLLOUTBENCH_SERVER", "ROLLOUTBENCH_MEET"
"""Trainer variables: the server's URL, and the address for sending new weights."""
SECRET = "ROLLOUTBENCH_SERVER_SECRET"
"""A variable of the server and of the trainer that asks it: what an attempt's requests must have in their `HEADER`."""
HEADER = "X-Rolloutbench-Secret"
"""`Authorization` is not used: requests replaces it by an entry of the user's ~/.netrc."""
NONCE, PROOF = "X-Rolloutbench-Nonce", "X-Rolloutbench-Proof"
"""Headers of GET /health and of its answer: another user's program may have the port, and must not get the secret."""


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """The request of a server: its job and address."""

    job: Job
    host: str
    port: int
    seed: int
    """Of its engine's first process."""


def read_server_request(program: str) -> ServerRequest:
    """The request on the command line `program ATTEMPT --host HOST --port PORT`; checks the inputs."""
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("attempt")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    job = begin(read_attempt([arguments.attempt]), "server")
    job.inputs.require_unchanged()
    resumed_from = newest_checkpoint(Path(job.attempt["checkpoint_dir"]))
    seed = engine_seed(int(job.spec["trainer_args"]["seed"]), resumed_from)
    return ServerRequest(job, arguments.host, arguments.port, seed)


def uses_server(trainer_args: Mapping[str, Any]) -> bool:
    """Whether a run's vLLM is a separate server, by the settings of TRL and ms-swift."""
    return bool(trainer_args.get("use_vllm")) and trainer_args.get("vllm_mode") == "server"


def send_secret(session: Any) -> None:
    """Make all requests of a `requests.Session` carry the secret."""
    session.headers[HEADER] = os.environ[SECRET]


def proof(secret: str, nonce: str) -> str:
    """What only somebody who knows the secret can answer to a nonce."""
    return hmac.new(secret.encode(), nonce.encode(), "sha256").hexdigest()


def server_address() -> tuple[str, str, int]:
    """The server's URL, and the host and port for new weights; `UserError` without a server."""
    url, meet = os.environ.get(URL), os.environ.get(MEET)
    if not url or not meet:
        raise UserError(f"vllm_mode is server, but {URL} is not set: the job starts the server and sets it")
    host, _, port = meet.rpartition(":")
    return url, host, int(port)
