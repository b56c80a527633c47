"""Starts `swift rollout`, ms-swift's vLLM server, for its trainer:
`python -m trainers.swift.driver.serve <attempt.json> --host HOST --port PORT`.

It answers GET /health when it is ready. Exit codes: 1 unforeseen, 2 a user's mistake (one line).
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import read_json_object
from node.engine_server import read_server_request, send_secret, server_address, uses_server
from node.exit_codes import run
from node.guard import SecretGuard
from node.hardware import importing
from node.ranks import describe_exit
from trainers.swift import hooks
from trainers.swift.driver import arguments

_ENGINE = "server-engine.json"
"""The file with the engine's final settings, in the attempt's folder."""


def main() -> None:
    """Run the server of the attempt on the command line until it is stopped."""
    request = read_server_request("trainers.swift.driver.serve")
    job = request.job
    arguments.set_environment(job.folder)
    address = {"host": request.host, "port": request.port, "seed": request.seed, "log_level": "warning"}
    given = arguments.server_arguments(job.spec["trainer_args"], job.inputs.model, address)
    if given.port != request.port:
        raise UserError(f"address already in use: port {request.port}; swift rollout would use {given.port}")
    with importing():
        serve = hooks.SERVE.get()
        from trainers.swift.driver import rollout_worker

    # swift's own key guards its routes, but not those that FastAPI adds, and only in newer releases.
    hooks.ROUTES.wrap(_guarded)
    for worker in rollout_worker.WORKERS:
        worker.replace(functools.partial(rollout_worker.run, worker, job.folder / _ENGINE))
    over = threading.Event()
    threading.Thread(target=exit_with_failed_worker, args=(over,), daemon=True).start()
    try:
        serve(given)
    finally:
        over.set()
        _kill_workers()


def _guarded(add_routes: Callable[[Any], None], deploy: Any) -> None:
    add_routes(deploy)
    hooks.APP.get(deploy).add_middleware(SecretGuard)


def _kill_workers() -> None:
    """Kill the workers: otherwise they wait for requests, and this process for them."""
    for process in multiprocessing.active_children():
        process.kill()


def exit_with_failed_worker(over: threading.Event) -> None:
    """Exit when a worker process fails, until `over` is set: otherwise swift's server and the trainer keep waiting."""
    workers: set[Any] = set()
    while True:
        workers |= {*multiprocessing.active_children()}
        for code in filter(None, (worker.exitcode for worker in workers)):
            # A worker with a positive exit code has printed its error.
            print("error: " * (code < 0) + f"an engine's process {describe_exit(code)}", file=sys.stderr, flush=True)
            _kill_workers()
            os._exit(1)
        if over.wait(1.0):
            return


def address_settings(trainer_args: Mapping[str, Any]) -> dict[str, Any]:
    """swift's arguments with the server's address; empty without a server."""
    if not uses_server(trainer_args):
        return {}
    url, _, port = server_address()
    if trainer_args.get("use_cpu"):
        from trainers.swift.driver.rollout_worker import send_through_files

        send_through_files()

    def check_server(original: Callable[..., None], client: Any, *args: Any, **named: Any) -> None:
        for session in hooks.SESSIONS.get(client):
            send_secret(session)
        original(client, *args, **named)

    hooks.CHECK_SERVER.wrap(check_server)
    return {"vllm_server_base_url": [url], "vllm_server_group_port": [port]}


def engine_settings(folder: Path) -> dict[str, Any]:
    """The final settings of the server's engine."""
    return {**read_json_object(folder / _ENGINE, "the server"), "mode": "server"}


class DaemonExecutor:
    """Replaces swift's executor of a generation during training: its thread does not outlive the program.

    Python waits for an executor's own threads, and so for the longest response, when a run is stopped.
    """

    def submit(self, task: Callable[[], Any]) -> Future[Any]:
        """Start a task; swift runs one at a time."""
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(task())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future


if __name__ == "__main__":
    sys.exit(run(main))
