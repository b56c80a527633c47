"""Starts a trainer's processes on all nodes of a job, one for each GPU, with torchrun's variables.

Each node has one task of the job. It starts the processes of its node (node/ranks.py) and watches them; rank 0's task
chooses where they meet and decides what follows when one dies. A process that dies takes the others with it: they wait
for it, or lose their connection to it. So whose end it was is known when all nodes have told.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.files import tail
from node.engine_server import MEET, URL
from node.exit_codes import OK, REQUEUE, USER_ERROR
from node.hardware import free_port
from workflow.cluster.history import read_object
from workflow.cluster.place import machine_id, own_ip
from workflow.cluster.processes import end_session, start_in_session
from workflow.cluster.rendezvous import POLL_S, Other, RendezvousError, Task, TaskSetup, others_of

_BEATS = 3  # of a node whose processes have not ended: it would have told by then
_STOPPED = (OK, REQUEUE)  # ends of a node's processes that are no failure: done, or stopped as they were asked to
_UNCLEAR = 3


class _Ranks(Task):
    """A node's processes, and what is known of the one that died first."""

    def __init__(self, setup: TaskSetup, file: str, each: int, nodes: int | None = None) -> None:
        super().__init__(setup, file)
        self._each, self._nodes = each, nodes or setup.place.nodes
        self._told = setup.folder / f"died-{setup.place.rank}.json"
        self.address = ""

    def command(self, trainer: list[str]) -> list[str]:
        """What starts the trainer once for each of its GPUs on this node; one process is started as it is."""
        if self._nodes * self._each == 1:
            return trainer
        rank = self._task.place.rank
        starter = ["-m", "node.ranks", f"--nodes={self._nodes}", f"--node={rank}", f"--each={self._each}"]
        return [trainer[0], *starter, f"--at={self.address}", f"--report={self._told}", *trainer[1:]]


class RanksHead(_Ranks):
    """Rank 0's part: `start`, then `wait_for_nodes`, then `poll` once a second, all within `with`."""

    def __init__(self, setup: TaskSetup, each: int, nodes: int | None = None) -> None:
        super().__init__(setup, "head.json", each, nodes)
        self._others = others_of(setup)

    def start(self, attempt: Path) -> None:
        """Choose where the processes meet, and tell the others."""
        with self._telling_failure("The trainer's processes"):
            ip = own_ip(self._task.place) if self._others else "127.0.0.1"
            self.address = f"{ip}:{free_port()}"
        self._sign.tell("up", address=self.address, machine=machine_id(), attempt=str(attempt))

    def wait_for_nodes(self) -> None:
        """Return when all nodes have started theirs; a `RendezvousError` when one fails or the time is up."""
        while missing := [other.name for other in self._others if other.look().get("state") != "joined"]:
            if (died := self.poll()) is not None:
                raise RendezvousError(died)
            self._pause(
                f"after {self._task.deadline_s:.0f} s {len(missing)} of {self._task.place.nodes} nodes are still "
                f"missing: {', '.join(missing)}"
            )

    def environment(self) -> dict[str, str]:
        """Nothing: node/ranks.py gives each process its variables."""
        return {}

    def poll(self) -> str | None:
        """None while all is well; else a sentence that says what died. To be called about once a second."""
        self._sign.beat()
        return next(filter(None, (other.trouble() for other in self._others)), None)

    def culprit(self, code: int) -> tuple[str, int | None]:
        """Who ended it, and its exit code; None where a node is lost: it may take as long as silence takes to tell."""
        own = read_object(self._told)
        ends: list[tuple[str, int | None]] = [(str(own["what"]), int(own["code"]))] if own else []
        # A process that was killed, or that refused, is its own reason; any other may have lost its connection.
        if not any(_explains(end) < _UNCLEAR for end in ends):
            ends += self._told_elsewhere()
        return min(ends, key=_explains, default=("", code))

    def _told_elsewhere(self) -> list[tuple[str, int | None]]:
        """How the processes of other nodes ended, of those nodes that do not go on."""
        heard = {other: int(other.look().get("beat", 0)) for other in self._others}
        until = time.monotonic() + self._task.stale_s + 60.0
        while time.monotonic() < until and any(
            other.trouble() is None and int(other.look().get("beat", 0)) < beat + _BEATS
            for other, beat in heard.items()
        ):
            self._sign.beat()
            time.sleep(POLL_S)
        return [_end_of(other, trouble) for other in self._others if (trouble := other.trouble()) is not None]

    def close(self) -> None:
        """Tell the others that it is over; what runs here is ended by who started it."""
        self._sign.tell("ended")


class RanksWorker(_Ranks):
    """The part of every other node: `join`, then `poll` once a second until `over`, all within `with`."""

    def __init__(
        self, setup: TaskSetup, each: int, trainer: Callable[[Path], list[str]], nodes: int | None = None
    ) -> None:
        super().__init__(setup, f"rank-{setup.place.rank}.json", each, nodes)
        self._head = Other(setup.folder / "head.json", setup.place.name(0), setup.stale_s)
        self._trainer = trainer
        self._process: subprocess.Popen[bytes] | None = None
        self.over = False
        """Rank 0 has ended the life: there is nothing left to do."""

    def join(self) -> None:
        """Wait for rank 0's word, and start this node's processes."""
        with self._telling_failure("The trainer's processes"):
            head = self._await_head(self._head)
            self.address = head["address"]
            self._process = start_in_session(
                self.command(self._trainer(Path(head["attempt"]))),
                cwd=self._task.cwd,
                env={**self._task.environment, **self._beside()},
                token=self._task.token,
                log=self._task.log,
            )
        self._sign.tell("joined")

    def _beside(self) -> dict[str, str]:
        """Where the server of the job's last node answers, once it is started; rank 0 alone meets it for weights."""
        place = self._task.place
        if self._nodes == place.nodes:
            return {}
        last = place.nodes - 1
        server = Other(self._task.folder / f"rank-{last}.json", place.name(last), self._task.stale_s)
        while "url" not in (told := server.look()):
            if (trouble := self._head.trouble() or server.trouble()) is not None:
                raise RendezvousError(trouble)
            self._pause(f"nothing was heard of the server on {server.name} for {self._task.deadline_s:.0f} s")
        return {URL: told["url"], MEET: self.address}

    def poll(self) -> str | None:
        """None while all is well or rank 0 has ended the life (`over`); else a sentence that says what died."""
        self._sign.beat()
        self.over = self._head.look().get("state") == "ended"
        code = None if self._process is None else self._process.poll()
        if self.over:
            return None
        if code is None or (code in _STOPPED and not self._told.exists()):
            return self._head.trouble()
        told = read_object(self._told)
        what = str(told.get("what") or f"the processes on {self._own_name()} ended with exit code {code}")
        died = f"{what}{self._reason()} (see {self._task.log})"
        self._sign.tell("failed", error=died, code=str(told.get("code", code)))
        return died

    def close(self) -> None:
        """End this node's processes."""
        self._sign.tell("ended")
        end_session(self._process, self._task.token)

    def _reason(self) -> str:
        """The last error in the log of this node's processes, in its own words."""
        lines = tail(self._task.log).splitlines()
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return f": {errors[-1][:300]}" if errors else ""


def _end_of(other: Other, trouble: str) -> tuple[str, int | None]:
    told: dict[str, Any] = other.look()
    return trouble, int(told["code"]) if told.get("state") == "failed" and "code" in told else None


def _explains(end: tuple[str, int | None]) -> int:
    """A lost node explains all else, then a process that was killed, then one that refused."""
    code = end[1]
    return 0 if code is None else 1 if code < 0 else 2 if code == USER_ERROR else _UNCLEAR
