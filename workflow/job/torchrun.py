"""Starts a trainer's processes on all nodes of a job, one per GPU, with torchrun's variables.

Each node has one task of the job. The task starts the processes of its node (node/ranks.py) and watches them; rank 0's
task chooses the rendezvous address and decides what follows when a process dies. A process that dies takes the others
with it: they wait for it, or lose their connection. So the culprit is known only when all nodes have reported.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.files import tail
from common.redaction import without_secrets
from common.retry import READ_PATIENCE_S, retry_io
from node.engine_server import MEET, URL
from node.exit_codes import OK, REQUEUE, UNFIT_NODE, USER_ERROR
from node.hardware import free_port
from workflow.job.place import machine_id, own_ip
from workflow.job.processes import end_processes, start_in_session
from workflow.job.rendezvous import POLL_S, HeadTask, PeerStatus, Task, TaskSetup, WorkerTask
from workflow.runs.history import FILES, read_object

_BEATS = 3  # a node that beats this often without a failure is healthy
_STOPPED = (OK, REQUEUE)  # exit codes that are no failure: finished, or stopped on request
_UNCLEAR = 3


class _Ranks(Task):
    """A node's processes, and the report on the one that died first."""

    def __init__(self, setup: TaskSetup, each: int, nodes: int | None = None) -> None:
        super().__init__(setup)
        self._each, self._nodes = each, nodes or setup.place.nodes
        self._death_file = setup.folder / f"died-{setup.place.rank}.json"
        self.address = ""

    def command(self, trainer: list[str]) -> list[str]:
        """The command that starts the trainer once per GPU of this node; a single process needs no starter."""
        if self._nodes * self._each == 1:
            return trainer
        rank = self._setup.place.rank
        starter = ["-m", "node.ranks", f"--nodes={self._nodes}", f"--node={rank}", f"--each={self._each}"]
        return [trainer[0], *starter, f"--at={self.address}", f"--report={self._death_file}", *trainer[1:]]

    def _death(self) -> dict[str, Any]:
        """The report; empty without one. Other tasks tolerate this task's silence for longer than it waits."""
        with suppress(OSError):
            return retry_io(lambda: read_object(self._death_file), FILES, READ_PATIENCE_S)
        return {}


class RanksHead(_Ranks, HeadTask):
    def start(self, attempt: Path) -> None:
        """Choose the rendezvous address and publish it."""
        with self._reporting_failure("The trainer's processes"):
            ip = own_ip(self._setup.place) if self._peers else "127.0.0.1"
            self.address = f"{ip}:{free_port()}"
        self._status.set("up", address=self.address, machine=machine_id(), attempt=str(attempt))

    def culprit(self, code: int) -> tuple[str, int | None]:
        """What died first, and its exit code (None: a lost node); may take until a silent node counts as dead."""
        own = self._death()
        ends: list[tuple[str, int | None]] = [(str(own["what"]), int(own["code"]))] if own else []
        # A killed or refused process is the culprit; any other may only have lost its connection.
        if not any(_precedence(end) < _UNCLEAR for end in ends):
            ends += self._ends_elsewhere()
        return min(ends, key=_precedence, default=("", code))

    def _ends_elsewhere(self) -> list[tuple[str, int | None]]:
        """The ends on other nodes, once each of those has failed or beaten often enough."""
        beats = {peer: int(peer.read().get("beat", 0)) for peer in self._peers}
        until = time.monotonic() + self._setup.stale_s + 60.0
        while time.monotonic() < until and any(
            peer.problem() is None and int(peer.read().get("beat", 0)) < beat + _BEATS for peer, beat in beats.items()
        ):
            self._status.beat()
            time.sleep(POLL_S)
        ends: list[tuple[str, int | None]] = []
        for peer in self._peers:
            if (problem := peer.problem()) is not None:
                status = peer.read()
                failed = status.get("state") == "failed" and "code" in status
                ends.append((problem, int(status["code"]) if failed else None))
        return ends


class RanksWorker(_Ranks, WorkerTask):
    def __init__(
        self, setup: TaskSetup, each: int, trainer: Callable[[Path], list[str]], nodes: int | None = None
    ) -> None:
        super().__init__(setup, each, nodes)
        self._trainer = trainer
        self._process: subprocess.Popen[bytes] | None = None

    def join(self) -> None:
        with self._reporting_failure("The trainer's processes"):
            head = self._await_head()
            self.address = head["address"]
            self._process = start_in_session(
                self.command(self._trainer(Path(head["attempt"]))),
                cwd=self._setup.cwd,
                env={**self._setup.environment, **self._server_environment()},
                log=self._setup.log,
            )
        self._status.set("joined")

    def _server_environment(self) -> dict[str, str]:
        """The URL of the server on the job's last node, once it is up; only rank 0 exchanges weights with it."""
        if self._nodes == self._setup.place.nodes:
            return {}
        server = PeerStatus(self._setup, self._setup.place.nodes - 1)
        while "url" not in (status := server.read()):
            self._head.raise_problem()
            server.raise_problem()
            self._pause(f"the server on {server.name} has not written its status for {self._setup.deadline_s:.0f} s")
        return {URL: status["url"], MEET: self.address}

    def _failure(self) -> dict[str, str] | None:
        code = None if self._process is None else self._process.poll()
        death = {} if code is None else self._death()
        if code is None or (code in _STOPPED and not death):
            return None
        what = str(death.get("what") or f"the processes on {self._own_name()} ended with exit code {code}")
        lines = tail(self._setup.log).splitlines()
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        reason = f": {without_secrets(errors[-1][:300])}" if errors else ""
        return {"error": f"{what}{reason} (see {self._setup.log})", "code": str(death.get("code", code))}

    def close(self) -> None:
        super().close()
        end_processes(self._process)


def _precedence(end: tuple[str, int | None]) -> int:
    """0 is the likeliest culprit: a lost node, then a killed process, then one that refused to run."""
    code = end[1]
    return 0 if code is None else 1 if code < 0 else 2 if code in (USER_ERROR, UNFIT_NODE) else _UNCLEAR
