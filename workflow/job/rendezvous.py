"""Lets the tasks of one life of a job find and watch each other: each writes a status file and reads the others'."""

from __future__ import annotations

import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from common.errors import UserError
from common.files import write_json
from common.ownership import NotOwnError, read_own_json
from workflow.job.place import Place, machine_id

POLL_S = 0.2
_READ_EVERY_S = 0.5  # no file on the shared file system is read more often


class RendezvousError(Exception):
    """The nodes of a job do not all join, or one is lost; the message is a sentence for the job's record."""


class NoServerError(RendezvousError):
    """An engine's server does not answer; `again`: another life may succeed."""

    def __init__(self, sentence: str, again: bool = False) -> None:
        super().__init__(sentence)
        self.again = again


class OwnStatus:
    """This task's status file in the rendezvous folder."""

    def __init__(self, path: Path, host: str, every_s: float) -> None:
        self._path, self._every_s = path, every_s
        self._content: dict[str, Any] = {"host": host, "state": "starting", "beat": 0}
        self._written = float("-inf")

    def set(self, state: str, **facts: str) -> None:
        if self._content["state"] != "failed":  # keep the first failure: later states only follow from it
            self._content |= {"state": state, **facts}
        self._write()

    def beat(self) -> None:
        if time.monotonic() - self._written >= self._every_s:
            self._content["beat"] += 1
            self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        try:
            write_json(self._path, self._content)
        except (OSError, UserError):
            return  # a full or faulty file system: the other tasks tolerate a few missing beats


class PeerStatus:
    """Another task's status file, and how long it has not changed."""

    def __init__(self, setup: TaskSetup, rank: int) -> None:
        self.name = setup.place.name(rank)
        self._path = setup.folder / status_file(rank)
        self._stale_s = setup.stale_s
        self._content: dict[str, Any] = {}
        self._silent_s = 0.0
        self._read_at = float("-inf")

    def read(self) -> dict[str, Any]:
        """The last status; empty before the first."""
        now = time.monotonic()
        if now - self._read_at < _READ_EVERY_S:
            return self._content
        self._silent_s += min(now - self._read_at, 5.0)  # a pause of this process is not a silence of the other
        self._read_at = now
        try:
            content = read_own_json(self._path)
        except NotOwnError as error:
            raise RendezvousError(str(error)) from None
        except (OSError, ValueError):
            return self._content
        if content != self._content:
            self._content, self._silent_s = content, 0.0
        return self._content

    def problem(self) -> str | None:
        """A sentence if the task failed, left or is silent."""
        match self.read():
            case {"state": "failed", "error": str(error)}:
                return error
            case {"state": "ended"}:
                return f"{self.name} has left the job"
            case {"state": str()} if self._silent_s > self._stale_s:
                return f"{self.name} has not written its status for {self._stale_s:.0f} s"
        return None

    def raise_problem(self) -> None:
        if (problem := self.problem()) is not None:
            raise RendezvousError(problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSetup:
    """What a task needs to take part in its job."""

    place: Place
    folder: Path  # the rendezvous folder on the shared file system; new for every life
    python: Path  # the stack's interpreter, not the controller's
    environment: Mapping[str, str]  # the trainer's environment; every process that the task starts inherits it
    cwd: Path
    log: Path  # the task's own output; one file per task
    deadline_s: float = 600.0  # limit until all nodes have joined
    beat_s: float = 5.0
    stale_s: float = 120.0  # a task that is silent for longer is dead; a shared file may appear a minute late
    give_up: Callable[[], str | None] = lambda: None  # called while waiting: returns a reason to stop waiting, or None


def status_file(rank: int) -> str:
    return f"rank-{rank}.json" if rank else "head.json"


def end_life(setup: TaskSetup) -> None:
    """Rank 0's last word to the other tasks, whatever it has written before, or if it has not begun."""
    OwnStatus(setup.folder / status_file(0), setup.place.host, setup.beat_s).set("ended")


class Task:
    """A task's part in its job; `close` ends it."""

    def __init__(self, setup: TaskSetup) -> None:
        self._status = OwnStatus(setup.folder / status_file(setup.place.rank), setup.place.host, setup.beat_s)
        self._setup = setup
        self._deadline = time.monotonic() + setup.deadline_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything that this task started on this node; a second call does nothing."""
        self._status.set("ended")

    @contextmanager
    def _reporting_failure(self, what: str) -> Iterator[None]:
        """Write a failed start of `what` into the status file, for the other tasks."""
        try:
            yield
        except (OSError, RendezvousError) as error:
            sentence = f"{what} could not be started on {self._own_name()}: {error}"
            sentence = str(error) if isinstance(error, RendezvousError) else sentence
            self._status.set("failed", error=sentence)
            raise RendezvousError(sentence) from error

    def _pause(self, too_late: str) -> None:
        """Wait a moment and beat; a `RendezvousError` after the deadline, or if this task should give up."""
        self._status.beat()
        if (reason := self._setup.give_up()) is not None:
            raise RendezvousError(reason)
        if time.monotonic() > self._deadline:
            raise RendezvousError(too_late)
        time.sleep(POLL_S)

    @property
    def _secret_file(self) -> Path:
        """The file by which rank 0 gives the other nodes the life's secret."""
        return self._setup.folder / "secret"

    def _own_name(self) -> str:
        return self._setup.place.name(self._setup.place.rank)


class HeadTask(Task):
    """Rank 0's part: `start`, then `wait_for_nodes`, then `poll` once a second, all within `with`."""

    def __init__(self, setup: TaskSetup) -> None:
        super().__init__(setup)
        self._peers = [PeerStatus(setup, rank) for rank in range(1, setup.place.nodes)]
        self._secret = secrets.token_urlsafe(32)
        self._has_written_secret = False

    def command(self, trainer: list[str]) -> list[str]:
        """The command that starts the trainer beside what this part has started."""
        return trainer

    def environment(self) -> dict[str, str]:
        """Variables that the trainer needs for it."""
        return {}

    def culprit(self, code: int) -> tuple[str, int | None]:
        """Who ended the trainer, and that process's exit code (None: a lost node); no name for the trainer itself."""
        return "", code

    def wait_for_nodes(self) -> None:
        """Return when all ranks have joined; a `RendezvousError` when one fails or the time is up."""
        while missing := [peer.name for peer in self._peers if peer.read().get("state") != "joined"]:
            if (problem := self.poll()) is not None:
                raise RendezvousError(problem)
            self._pause(
                f"after {self._setup.deadline_s:.0f} s {len(missing)} of {self._setup.place.nodes} nodes are still "
                f"missing: {', '.join(missing)}"
            )

    def poll(self) -> str | None:
        """None while all is well; else a sentence that says what died. Call it about once a second."""
        self._status.beat()
        return self._local_problem() or next(filter(None, (peer.problem() for peer in self._peers)), None)

    def _write_secret(self) -> None:
        """Write the life's secret into a file that only this user can read."""
        self._secret_file.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL  # no other life's folder, no other's file
        with os.fdopen(os.open(self._secret_file, flags, 0o600), "w") as file:
            self._has_written_secret = True
            file.write(self._secret)

    def _remove_secret(self) -> None:
        if self._has_written_secret:  # otherwise it may be another life's
            with suppress(OSError):
                self._secret_file.unlink(missing_ok=True)

    def _local_problem(self) -> str | None:
        return None


class WorkerTask(Task, ABC):
    """Another rank's part: `join`, then `poll` once a second until `over`, all within `with`."""

    def __init__(self, setup: TaskSetup) -> None:
        super().__init__(setup)
        self._head = PeerStatus(setup, 0)
        self.over = False  # rank 0 has ended the life: this task is done

    @abstractmethod
    def join(self) -> None:
        """Wait for rank 0 and start this node's part."""

    def poll(self) -> str | None:
        """None while all is well or rank 0 has ended the life (`over`); else a sentence that says what died."""
        self._status.beat()
        self.over = self._head.read().get("state") == "ended"
        if self.over:
            return None
        if (failure := self._failure()) is None:
            return self._head.problem()
        self._status.set("failed", **failure)
        return failure["error"]

    @abstractmethod
    def _failure(self) -> dict[str, str] | None:
        """What died on this node: `error`, a sentence, and further facts for rank 0; None while all is well."""

    def _await_head(self) -> dict[str, Any]:
        """Rank 0's status once it is up; a `RendezvousError` if it fails, cannot be reached or the time is up."""
        while (status := self._head.read()).get("state") != "up":
            self._head.raise_problem()
            self._pause(f"{self._head.name} has not written its status for {self._setup.deadline_s:.0f} s")
        if status["address"].startswith("127.") and status["machine"] != machine_id():
            raise RendezvousError(f"{self._head.name} has no address that {self._own_name()} can reach")
        return status
