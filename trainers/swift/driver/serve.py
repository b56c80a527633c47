"""Serves vLLM beside ms-swift's trainer by its own `swift rollout`, and joins the trainer to it:
`python -m trainers.swift.driver.serve <attempt.json> --host HOST --port PORT`.

It trains nothing and answers GET /health when it is ready. Exit codes: 1 unforeseen, 2 a user's mistake (one line).
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
from node.engine_server import read_server_order, server_address, uses_server
from node.exit_codes import run
from node.hardware import importing
from node.ranks import describe_exit
from trainers.swift.driver import arguments

_ENGINE = "server-engine.json"
"""The settings that the server's engine finally holds, in the attempt's folder."""


def main() -> None:
    """Be the server that the command line's attempt wants, until it is ended."""
    order = read_server_order("trainers.swift.driver.serve")
    job = order.job
    arguments.set_environment(job.folder)
    here = {"host": order.host, "port": order.port, "seed": order.seed, "log_level": "warning"}
    asked = arguments.served(job.spec["trainer_args"], job.inputs.model, here)
    if asked.port != order.port:
        raise UserError(f"address already in use: port {order.port}; swift rollout would listen at {asked.port}")
    with importing():
        from swift.pipelines.infer import rollout

        from trainers.swift.driver import rollout_worker

    for name in rollout_worker.WORKERS:
        setattr(rollout, name, functools.partial(rollout_worker.run, name, job.folder / _ENGINE))
    over = threading.Event()
    threading.Thread(target=end_with_a_worker, args=(over,), daemon=True).start()
    try:
        rollout.rollout_main(asked)
    finally:
        over.set()
        _kill_workers()


def _kill_workers() -> None:
    """Where one of several has failed, the others would wait for requests, and this process for them."""
    for process in multiprocessing.active_children():
        process.kill()


def end_with_a_worker(over: threading.Event) -> None:
    """End this process when one that it has started fails: swift's server would live on, and the trainer wait for it.

    Until `over` is set.
    """
    workers: set[Any] = set()
    while True:
        workers |= {*multiprocessing.active_children()}
        for code in filter(None, (worker.exitcode for worker in workers)):
            # One that has failed has said why.
            print("error: " * (code < 0) + f"an engine's process {describe_exit(code)}", file=sys.stderr, flush=True)
            _kill_workers()
            os._exit(1)
        if over.wait(1.0):
            return


def words(trainer_args: Mapping[str, Any]) -> dict[str, Any]:
    """swift's arguments that say where the server is; none where the run has no server."""
    if not uses_server(trainer_args):
        return {}
    url, _, port = server_address()
    if trainer_args.get("use_cpu"):
        from trainers.swift.driver.rollout_worker import send_through_store

        send_through_store()
    return {"vllm_server_base_url": [url], "vllm_server_group_port": [port]}


def held(trainer: Any, folder: Path) -> dict[str, Any]:
    """The settings that the server finally holds; rank 0 tells them."""
    if not trainer.accelerator.is_main_process:
        return {}
    return {**read_json_object(folder / _ENGINE, "the server"), "mode": "server"}


class Beside:
    """Stands for swift's executor of a generation beside the training: its thread does not outlive the program.

    An executor's own thread would be waited for, and with it the longest response, when a run is stopped.
    """

    def submit(self, task: Callable[[], Any]) -> Future[Any]:
        """Begin a task; swift has one at a time."""
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
