"""Starts a job's trainer on its nodes (a Ray cluster, or a process per GPU) and the engine's server beside it.

The server has GPUs of its own: the last of the trainer's node, or those of the job's last node. Its module runs in the
stack, `python -m MODULE ATTEMPT --host HOST --port PORT`, and answers GET /health with 200 when it is ready, with a
proof that it knows the attempt's secret. Slurm's signals do not end it: the trainer's last step needs it.
"""

from __future__ import annotations

import hmac
import http.client
import os
import re
import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from common.files import tail
from common.redaction import without_secrets
from common.retry import exists, retry_io
from node.engine_server import MEET, NONCE, PROOF, SECRET, URL, proof
from node.hardware import free_port
from node.ranks import SHARE, describe_exit
from trainers import Spread
from workflow.job.place import own_ip
from workflow.job.processes import end_processes, start_in_session
from workflow.job.ray import RayHead, RayWorker
from workflow.job.rendezvous import HeadTask, NoServerError, RendezvousError, TaskSetup, WorkerTask
from workflow.job.torchrun import RanksHead, RanksWorker
from workflow.job.training import server_environment, server_gpus_beside, trainer_command
from workflow.runs.history import FILES
from workflow.runs.paths import AttemptPaths

_HEALTH_TIMEOUT_S = 5.0
_REASON = re.compile(r"^(?:.*\s)?(?:error: (?P<ours>.+)|(?P<own>[\w.]*(?:Error|Exception): .+))$", re.MULTILINE)
_PORT_TAKEN = re.compile(r"address already in use", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """How a server is started."""

    spec: Mapping[str, Any]  # from the specification: `module`, `gpus`, `patience_s` (limit until its first answer)
    environment: Mapping[str, str]
    log: Path


class EngineServer:
    """The server on this node: `start` it, ask `died` once a second, `close` it."""

    def __init__(self, setup: ServerSetup, task: TaskSetup, variables: Mapping[str, str] | None = None) -> None:
        self._setup, self._task, self._variables = setup, task, variables or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self.url = ""

    def start(self, attempt: Path, secret: str) -> None:
        """Start it for an attempt at a free port; on loopback if the job has one node."""
        setup, place = self._setup, self._task.place
        host, port = own_ip(place) if place.nodes > 1 else "127.0.0.1", free_port()
        self.url = f"http://{host}:{port}"
        with suppress(OSError):
            self._log_start = setup.log.stat().st_size
        request = str(AttemptPaths(attempt).request)
        self._process = start_in_session(
            [str(self._task.python), "-m", setup.spec["module"], request, "--host", host, "--port", str(port)],
            cwd=self._task.cwd,
            env={**setup.environment, **self._variables, SECRET: secret},
            log=setup.log,
            ignore_sigterm=True,
        )

    def status(self) -> dict[str, str]:
        """Its URL; once it has ended `error`, a sentence, its exit code, and whether its port was taken."""
        code = None if self._process is None else self._process.poll()
        if code is None:
            return {"url": self.url}
        name = f"the server on {self._task.place.name(self._task.place.rank)}"
        output = tail(self._setup.log, self._log_start)
        if taken := bool(_PORT_TAKEN.search(output)):
            error = f"{name} found its port in use ({self.url}; see {self._setup.log})"
        else:
            found = list(_REASON.finditer(output))
            reason = without_secrets((found[-1]["ours"] or found[-1]["own"]).strip()[:300]) if found else ""
            colon = f": {reason}" if reason else ""
            error = f"{name} {describe_exit(code)}{colon} (see {self._setup.log})"
        return {"error": error, "code": str(code), "port": "taken" if taken else "its own"}

    def close(self) -> None:
        end_processes(self._process)


class ServerHead(RanksHead):
    """Rank 0's part beside a server, on its own node or on the last one; the trainer has the nodes before that.

    On one node the trainer and the server have their share of the CPUs.
    """

    def __init__(self, setup: TaskSetup, each: int, server: ServerSetup) -> None:
        super().__init__(setup, each, nodes=max(1, setup.place.nodes - 1))
        self._server = server
        width = max(1, int(server.spec["gpus"]))
        parts = each + width
        one_node = setup.place.nodes == 1
        self._variables = {SHARE: f"0,{each},{parts}"} if one_node else {}
        self._own = EngineServer(server, setup, {SHARE: f"{each},{width},{parts}"}) if one_node else None
        self._url = ""

    def start(self, attempt: Path) -> None:
        """Publish the rendezvous address, and start a server of this node."""
        with self._reporting_failure("The server"):
            if self._own:
                self._own.start(attempt, self._secret)
            else:
                self._write_secret()
        super().start(attempt)

    def wait_for_nodes(self) -> None:
        """Return when all nodes have joined and the server answers; a `NoServerError` if it does not."""
        try:
            super().wait_for_nodes()
            self._remove_secret()
            self._url = str(self._server_status()["url"])
            self._wait_for_answer()
        except RendezvousError:
            if (died := self._server_died()) is not None:
                raise NoServerError(died[0], again=self._server_status()["port"] == "taken") from None
            raise

    def _wait_for_answer(self) -> None:
        patience_s, self._deadline = float(self._server.spec["patience_s"]), float("inf")
        until = time.monotonic() + patience_s
        while not is_healthy(self._url, self._secret):
            if (problem := self.poll()) is not None:
                raise RendezvousError(problem)
            if time.monotonic() > until:
                raise NoServerError(
                    f"the server at {self._url} did not answer within {patience_s:.0f} s (see {self._server.log})"
                )
            self._pause("")

    def environment(self) -> dict[str, str]:
        """The server's URL, outside any proxy, and the address at which trainer and engine exchange weights."""
        host = str(urlsplit(self._url).hostname)
        ip = self.address.rpartition(":")[0]
        proxies = {
            name: ",".join(filter(None, (self._setup.environment.get(name), host))) for name in ("NO_PROXY", "no_proxy")
        }
        meet = f"{ip}:{free_port()}"
        ours = {URL: self._url, MEET: meet, SECRET: self._secret}
        return {**super().environment(), **proxies, **ours, **self._variables}

    def poll(self) -> str | None:
        if (died := self._server_died()) is not None:
            return died[0]
        return super().poll()

    def culprit(self, code: int) -> tuple[str, int | None]:
        """The server if it died, since the trainer then lost its connection; else as without a server."""
        return self._server_died() or super().culprit(code)

    def close(self) -> None:
        super().close()
        self._remove_secret()
        if self._own:
            self._own.close()

    def _server_status(self) -> dict[str, Any]:
        return self._own.status() if self._own else self._peers[-1].read()

    def _server_died(self) -> tuple[str, int] | None:
        status = self._server_status()
        return (str(status["error"]), int(status["code"])) if "code" in status else None


class ServerWorker(WorkerTask):
    """The part of the last node, whose GPUs the server has."""

    def __init__(self, setup: TaskSetup, server: ServerSetup) -> None:
        super().__init__(setup)
        self._server = EngineServer(server, setup)

    def join(self) -> None:
        with self._reporting_failure("The server"):
            attempt = Path(self._await_head()["attempt"])
            while not retry_io(lambda: exists(self._secret_file), FILES):  # a shared file may appear late
                self._head.raise_problem()
                self._pause(f"{self._secret_file} is missing")
            self._server.start(attempt, retry_io(lambda: self._secret_file.read_text(encoding="ascii"), FILES))
        self._status.set("joined", url=self._server.url)

    def _failure(self) -> dict[str, str] | None:
        status = self._server.status()
        return status if "code" in status else None

    def close(self) -> None:
        super().close()
        self._server.close()


def is_healthy(url: str, secret: str) -> bool:
    """Whether the server with this secret answers GET /health with 200, without any proxy.

    A `NoServerError` if another program does: it may be another user's.
    """
    at, nonce = urlsplit(url), secrets.token_hex(16)
    connection = http.client.HTTPConnection(str(at.hostname), at.port, timeout=_HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", "/health", headers={NONCE: nonce})
        with connection.getresponse() as answer:
            status, given = answer.status, answer.headers.get(PROOF, "")
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    if status != http.client.OK:
        return False
    if not hmac.compare_digest(given.encode("utf-8", "replace"), proof(secret, nonce).encode()):
        raise NoServerError(f"another program answers at {url}, not this run's server", again=True)
    return True


@contextmanager
def started_nodes(request: Mapping[str, Any], setup: TaskSetup, attempt: AttemptPaths) -> Iterator[HeadTask]:
    """Rank 0's part in an attempt, once all nodes of the job take part.

    A `RendezvousError` if they do not all join, a `NoServerError` if a server does not answer.
    """
    spread = Spread.from_spec(request)
    if spread is Spread.RAY:
        with RayHead(setup) as ray:
            ray.start()
            ray.wait_for_nodes()
            yield ray
        return
    each = _processes_per_node(request)
    with (
        ServerHead(setup, each, _server(request, setup)) if spread is Spread.SERVER else RanksHead(setup, each) as head
    ):
        head.start(attempt.folder)
        head.wait_for_nodes()
        yield head


def worker_task(request: dict[str, Any], setup: TaskSetup) -> WorkerTask:
    """The part of a node that is not the first."""
    spread = Spread.from_spec(request)
    if spread is Spread.RAY:
        return RayWorker(setup)
    nodes = setup.place.nodes - (spread is Spread.SERVER)
    if setup.place.rank == nodes:
        return ServerWorker(setup, _server(request, setup))
    each = _processes_per_node(request)
    return RanksWorker(setup, each, lambda attempt: trainer_command(request, AttemptPaths(attempt)), nodes)


def _processes_per_node(request: Mapping[str, Any]) -> int:
    """The trainer's processes on each node: one per GPU, and one on a CPU."""
    gpus = int(request["spec"]["workload"].get("gpus_per_node", 0))
    return max(1, gpus - server_gpus_beside(request))


def _server(request: Mapping[str, Any], setup: TaskSetup) -> ServerSetup:
    environment = server_environment(request, os.environ)
    return ServerSetup(request["spec"]["server"], environment, setup.folder / f"server-{setup.place.nodes - 1}.log")
