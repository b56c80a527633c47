"""Brings the tasks of one life of a job together: each keeps a file of its own, and reads those of others."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from common.errors import UserError
from common.files import read_json, write_json
from workflow.cluster.place import Place, machine_id

POLL_S = 0.2
_LOOK_S = 0.5  # no file on the shared file system is read more often


class RendezvousError(Exception):
    """The nodes of a job do not come together, or one is lost; the message is a sentence for the job's record."""


class NoServerError(RendezvousError):
    """An engine's server does not answer; `again` where another life may have more luck."""

    def __init__(self, sentence: str, again: bool = False) -> None:
        super().__init__(sentence)
        self.again = again


class Sign:
    """A task's own file in the folder where they meet."""

    def __init__(self, path: Path, host: str, every_s: float) -> None:
        self._path, self._every_s = path, every_s
        self._content: dict[str, Any] = {"host": host, "state": "starting", "beat": 0}
        self._last = float("-inf")

    def tell(self, state: str, **facts: str) -> None:
        if self._content["state"] != "failed":  # the reason is worth more than what follows from it
            self._content |= {"state": state, **facts}
        self._write()

    def beat(self) -> None:
        if time.monotonic() - self._last >= self._every_s:
            self._content["beat"] += 1
            self._write()

    def _write(self) -> None:
        self._last = time.monotonic()
        try:
            write_json(self._path, self._content)
        except (OSError, UserError):
            return  # a full or faltering file system: the others bear a few beats missing


class Other:
    """Another task's file, and how long it has been silent."""

    def __init__(self, path: Path, name: str, stale_s: float) -> None:
        self.name = name
        self._path = path
        self._stale_s = stale_s
        self._content: dict[str, Any] = {}
        self._silent_s = 0.0
        self._looked = float("-inf")

    def look(self) -> dict[str, Any]:
        """What it last said; nothing before it first did."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return self._content
        self._silent_s += min(now - self._looked, 5.0)  # while we did not look ourselves, we cannot have heard it
        self._looked = now
        try:
            content = read_json(self._path)
        except (OSError, ValueError):
            return self._content
        if content != self._content:
            self._content, self._silent_s = content, 0.0
        return self._content

    def trouble(self) -> str | None:
        """A sentence when it failed, left or fell silent."""
        match self.look():
            case {"state": "failed", "error": str(error)}:
                return error
            case {"state": "ended"}:
                return f"{self.name} has left the job"
            case {"state": str()} if self._silent_s > self._stale_s:
                return f"nothing was heard of {self.name} for {self._stale_s:.0f} s"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSetup:
    """What a task needs to know to take part in its job."""

    place: Place
    folder: Path
    """Where the tasks of this life meet, on the shared file system; new for every life."""
    python: Path
    """The stack's interpreter, not ours."""
    environment: Mapping[str, str]
    """The trainer's, which what is started on this node inherits."""
    cwd: Path
    log: Path
    """Where its own output goes; one file per task."""
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    """Marks this task's processes; never the same for two tasks."""
    deadline_s: float = 600.0
    """For all nodes to be there."""
    beat_s: float = 5.0
    stale_s: float = 120.0
    """Silence that means death; network file systems may show a file a minute late."""
    give_up: Callable[[], str | None] = lambda: None
    """Asked while waiting: a reason to wait no longer."""


class Task(ABC):
    """A task's part in its job, which `close` ends."""

    def __init__(self, setup: TaskSetup, file: str) -> None:
        self._sign = Sign(setup.folder / file, setup.place.host, setup.beat_s)
        self._task = setup
        self._deadline = time.monotonic() + setup.deadline_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """End what this task has started on this node, whatever its state; a second call does nothing."""

    @contextmanager
    def _telling_failure(self, what: str) -> Iterator[None]:
        """Whatever keeps this task from taking part is told to the others, too; `what` could not be started."""
        try:
            yield
        except (OSError, RendezvousError) as error:
            sentence = f"{what} could not be started on {self._own_name()}: {error}"
            sentence = str(error) if isinstance(error, RendezvousError) else sentence
            self._sign.tell("failed", error=sentence)
            raise RendezvousError(sentence) from error

    def _pause(self, too_late: str) -> None:
        """Wait a little, telling that we live; a `RendezvousError` when it has been enough."""
        self._sign.beat()
        if (reason := self._task.give_up()) is not None:
            raise RendezvousError(reason)
        if time.monotonic() > self._deadline:
            raise RendezvousError(too_late)
        time.sleep(POLL_S)

    def _await_head(self, head: Other) -> dict[str, Any]:
        """What rank 0 tells when it is up; a `RendezvousError` when it fails, cannot be reached or the time is up."""
        name = self._task.place.name(0)
        while (told := head.look()).get("state") != "up":
            if (trouble := head.trouble()) is not None:
                raise RendezvousError(trouble)
            self._pause(f"nothing was heard of {name} for {self._task.deadline_s:.0f} s")
        if told["address"].startswith("127.") and told["machine"] != machine_id():
            raise RendezvousError(f"{name} has no address by which {self._own_name()} could reach it")
        return told

    def _own_name(self) -> str:
        return self._task.place.name(self._task.place.rank)


def others_of(setup: TaskSetup) -> list[Other]:
    """All tasks but the first, as that one hears of them."""
    place = setup.place
    return [
        Other(setup.folder / f"rank-{rank}.json", place.name(rank), setup.stale_s) for rank in range(1, place.nodes)
    ]
