"""Starts an engine's server beside a trainer, in the same job, and waits until it answers; so with reward models'.

A server has GPUs of its own: the last of the trainer's node, or those of the job's last node. Its module runs in the
stack, `python -m MODULE ATTEMPT --host HOST --port PORT`, and answers GET /health with 200 when it is ready. Slurm's
signals do not end it: the trainer's last step needs it.
"""

from __future__ import annotations

import http.client
import re
import secrets
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from common.files import tail
from node.engine_server import MEET, SCORER, SECRET, URL
from node.hardware import free_port
from node.ranks import SHARE, describe_exit
from trainers import SERVERS
from workflow.cluster.paths import AttemptPaths
from workflow.cluster.place import own_ip
from workflow.cluster.processes import end_session, start_in_session
from workflow.cluster.rendezvous import NoServerError, Other, RendezvousError, Task, TaskSetup
from workflow.cluster.torchrun import RanksHead

_URLS = dict(zip(SERVERS, (URL, SCORER), strict=True))
_ANSWER_S = 5.0
_REASON = re.compile(r"^(?:.*\s)?(?:error: (?P<ours>.+)|(?P<own>[\w.]*(?:Error|Exception): .+))$", re.MULTILINE)
_PORT_TAKEN = re.compile(r"address already in use", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """What a server is started with."""

    told: Mapping[str, Any]
    """What the specification says of it: `module`, `gpus` and `patience_s`, for its first answer."""
    environment: Mapping[str, str]
    log: Path
    name: str = SERVERS[0]
    """Of `SERVERS`."""


class EngineServer:
    """The server on this node: `start` it, ask `died` once a second, `close` it."""

    def __init__(self, setup: ServerSetup, task: TaskSetup, variables: Mapping[str, str] | None = None) -> None:
        self._setup, self._task, self._variables = setup, task, variables or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._log_began = 0
        self.url = ""

    def start(self, attempt: Path) -> None:
        """Start it for an attempt, at a free port; on loopback where no other node needs it."""
        setup, place = self._setup, self._task.place
        host, port = own_ip(place) if place.nodes > 1 else "127.0.0.1", free_port()
        self.url = f"http://{host}:{port}"
        with suppress(OSError):
            self._log_began = setup.log.stat().st_size
        order = str(AttemptPaths(attempt).order)
        self._process = start_in_session(
            [str(self._task.python), "-m", setup.told["module"], order, "--host", host, "--port", str(port)],
            cwd=self._task.cwd,
            env={**setup.environment, **self._variables},
            token=self._task.token,
            log=setup.log,
            deaf=True,
        )

    def died(self) -> tuple[str, int] | None:
        """How it ended, in words and as an exit code; None while it lives."""
        code = None if self._process is None else self._process.poll()
        if code is None:
            return None
        name, said = f"{self._setup.name} on {self._task.place.name(self._task.place.rank)}", self._said()
        if self.port_taken():
            return f"the {name} found its port in use ({self.url}; see {self._setup.log})", code
        found = list(_REASON.finditer(said))
        reason = (found[-1]["ours"] or found[-1]["own"]).strip()[:300] if found else ""
        colon = f": {reason}" if reason else ""
        return f"the {name} {describe_exit(code)}{colon} (see {self._setup.log})", code

    def port_taken(self) -> bool:
        """Whether it has ended since another program had its port."""
        return self._process is not None and self._process.poll() is not None and bool(_PORT_TAKEN.search(self._said()))

    def close(self) -> None:
        """End it and what it has started."""
        end_session(self._process, self._task.token)

    def _said(self) -> str:
        return tail(self._setup.log, self._log_began)


class ServerHead(RanksHead):
    """Rank 0's part beside servers, its own or the one of the last node; the trainer has the nodes before it.

    On one node each has its share of the CPUs, and whoever asks knows a secret.
    """

    def __init__(self, setup: TaskSetup, each: int, *servers: ServerSetup) -> None:
        super().__init__(setup, each, nodes=max(1, setup.place.nodes - 1))
        self._servers = servers
        widths = [max(1, int(one.told["gpus"])) for one in servers]
        parts, secret = each + sum(widths), {SECRET: secrets.token_hex(16)}
        shares = [f"{first},{width},{parts}" for first, width in zip(accumulate([each, *widths]), widths, strict=False)]
        alone = setup.place.nodes == 1
        self._variables = {SHARE: f"0,{each},{parts}", **secret} if alone else {}
        self._own = [
            EngineServer(one, setup, {SHARE: share, **secret})
            for one, share in zip(servers, shares, strict=True)
            if alone
        ]
        self._urls: list[str] = []

    def start(self, attempt: Path) -> None:
        """Choose where the processes meet, tell the others, and start the servers that are this node's."""
        super().start(attempt)
        for own in self._own:
            with self._telling_failure("The server"):
                own.start(attempt)

    def wait_for_nodes(self) -> None:
        """Return when all nodes take part and the servers answer; a `NoServerError` when one ends or never does."""
        try:
            super().wait_for_nodes()
            self._urls = [own.url for own in self._own] or [str(self._others[-1].look()["url"])]
            for server, url in zip(self._servers, self._urls, strict=True):
                self._wait_for_answer(server, url)
        except RendezvousError:
            if (died := self._server_died()) is not None:
                raise NoServerError(died[0], again=self._port_taken()) from None
            raise

    def _wait_for_answer(self, server: ServerSetup, url: str) -> None:
        patience_s, self._deadline = float(server.told["patience_s"]), float("inf")
        until = time.monotonic() + patience_s
        while not answers(url):
            if (lost := self.poll()) is not None:
                raise RendezvousError(lost)
            if time.monotonic() > until:
                raise NoServerError(
                    f"the {server.name} at {url} did not answer within {patience_s:.0f} s (see {server.log})"
                )
            self._pause("")

    def environment(self) -> dict[str, str]:
        """Where the servers answer, which no proxy stands before, and where an engine's and the trainer meet."""
        host = str(urlsplit(self._urls[0]).hostname)
        ip = self.address.rpartition(":")[0]
        proxies = {
            name: ",".join(filter(None, (self._task.environment.get(name), host))) for name in ("NO_PROXY", "no_proxy")
        }
        urls = {_URLS[server.name]: url for server, url in zip(self._servers, self._urls, strict=True)}
        return {**super().environment(), **proxies, **urls, MEET: f"{ip}:{free_port()}", **self._variables}

    def poll(self) -> str | None:
        """None while all is well; else a sentence that says what died. To be called about once a second."""
        return next((died[0] for died in [self._server_died()] if died), None) or super().poll()

    def culprit(self, code: int) -> tuple[str, int | None]:
        """The server, where it has died: the trainer lost its connection; else as without one."""
        return self._server_died() or super().culprit(code)

    def close(self) -> None:
        """Tell the others that it is over, and end the servers."""
        super().close()
        for own in self._own:
            own.close()

    def _server_died(self) -> tuple[str, int] | None:
        if self._own:
            return next(filter(None, (own.died() for own in self._own)), None)
        told = self._others[-1].look()
        return (str(told["error"]), int(told["code"])) if told.get("state") == "failed" and "code" in told else None

    def _port_taken(self) -> bool:
        if self._own:
            return any(own.port_taken() for own in self._own)
        return self._others[-1].look().get("port") == "taken"


class ServerWorker(Task):
    """The part of the last node, whose GPUs the server has: `join`, then `poll` once a second until `over`."""

    def __init__(self, setup: TaskSetup, server: ServerSetup) -> None:
        super().__init__(setup, f"rank-{setup.place.rank}.json")
        self._head = Other(setup.folder / "head.json", setup.place.name(0), setup.stale_s)
        self._server = EngineServer(server, setup)
        self.over = False
        """Rank 0 has ended the life: there is nothing left to do."""

    def join(self) -> None:
        """Wait for rank 0's word, and start the server."""
        with self._telling_failure("The server"):
            self._server.start(Path(self._await_head(self._head)["attempt"]))
        self._sign.tell("joined", url=self._server.url)

    def poll(self) -> str | None:
        """None while all is well or rank 0 has ended the life (`over`); else a sentence that says what died."""
        self._sign.beat()
        self.over = self._head.look().get("state") == "ended"
        if self.over:
            return None
        if (died := self._server.died()) is None:
            return self._head.trouble()
        port = "taken" if self._server.port_taken() else "its own"
        self._sign.tell("failed", error=died[0], code=str(died[1]), port=port)
        return died[0]

    def close(self) -> None:
        """End the server."""
        self._sign.tell("ended")
        self._server.close()


def answers(url: str) -> bool:
    """Whether a server says that it is well; no proxy is asked."""
    at = urlsplit(url)
    connection = http.client.HTTPConnection(str(at.hostname), at.port, timeout=_ANSWER_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
