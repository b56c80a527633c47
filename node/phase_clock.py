"""Times the phases of a step, with a clock that knows what is inside what."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from node.hardware import OtherLoad

ROOT = "step"


class PhaseClock:
    """Adds up the seconds of nested phases by path (`step/training_step/...`).

    A phase that occurs several times is summed. In one thread phases nest strictly, so that children never take
    longer than their parent. A phase opened in another thread counts under the phase that is open in the clock's
    own thread. What is opened while no step runs is kept apart (`outside`).
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._owner = threading.get_ident()
        self._stacks: dict[int, list[tuple[str, float]]] = {}
        self._seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    @property
    def path(self) -> str:
        """The path of the innermost phase that is open in this thread; empty if none is."""
        stack = self._stacks.get(threading.get_ident()) or self._stacks.get(self._owner) or []
        return stack[-1][0] if stack else ""

    def is_open(self, name: str) -> bool:
        """Whether a phase of this name is open in this thread, at any depth."""
        return name in self.path.split("/")

    def open(self, name: str) -> None:
        """Start a phase inside the one that is open."""
        with self._lock:
            parent = self.path
            stack = self._stacks.setdefault(threading.get_ident(), [])
            stack.append((f"{parent}/{name}" if parent else name, self._now()))

    def close(self) -> float:
        """End the innermost phase and return its seconds."""
        now = self._now()
        with self._lock:
            path, started = self._stacks[threading.get_ident()].pop()
            self._seconds[path] = self._seconds.get(path, 0.0) + now - started
            return now - started

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A phase around a block of code."""
        self.open(name)
        try:
            yield
        finally:
            self.close()

    def take(self) -> tuple[dict[str, float], dict[str, float]]:
        """The seconds by path since the last call: of the step, and of what was timed outside any step."""
        with self._lock:
            seconds, self._seconds = self._seconds, {}
        step = {path: value for path, value in seconds.items() if path.split("/")[0] == ROOT}
        return step, {path: value for path, value in seconds.items() if path not in step}


def clock_after(wait: Callable[[], object], now: Callable[[], float] = time.perf_counter) -> Callable[[], float]:
    """A clock that is read once `wait` has returned: for a GPU, which works behind the Python that asks it to.

    Without it a phase would last as long as its kernels take to be started, and the next one would wait for them.
    """

    def read() -> float:
        wait()
        return now()

    return read


class StepClock(PhaseClock):
    """Times one step after another, with what is logged beside its phases: the time before it, and other load."""

    def __init__(self, load: OtherLoad, now: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(now)
        self._load = load
        self._ended: float | None = None
        self._between_s: float | None = None

    def begin_step(self) -> None:
        """Open the root phase."""
        self._between_s = None if self._ended is None else self._now() - self._ended
        self._load.begin()
        self.open(ROOT)

    @contextmanager
    def outside_step(self, name: str) -> Iterator[None]:
        """Time what is done between two steps and belongs to neither: `outside_step_s/<name>` of the next one."""
        started = self._now()
        with self.phase(name):
            yield
        if self._ended is not None:
            self._ended += self._now() - started

    def end_step(self) -> tuple[dict[str, float], dict[str, float]]:
        """Close the root phase; its seconds by path, and the step's other scalars as far as they are known."""
        self.close()
        self._ended = self._now()
        told = {"between_steps_s": self._between_s, "other_cpu_s": self._load.taken_s()}
        phases, outside = self.take()
        scalars = {name: value for name, value in told.items() if value is not None}
        return phases, scalars | {f"outside_step_s/{name}": seconds for name, seconds in outside.items()}


def sanitize(name: str) -> str:
    """A name that can be a part of a path: letters, digits, `_`, `.` and `-`."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_") or "unnamed"
