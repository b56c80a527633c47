"""Measures the nested phases of a step."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from node.hardware import OtherLoad

ROOT = "step"


class PhaseClock:
    """Sums the seconds of nested phases by path (`step/training_step/...`).

    Phases of one thread nest strictly, so children never take longer than their parent. A phase of another thread
    belongs to the open phase of the clock's own thread. Phases outside a step are reported separately.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._owner = threading.get_ident()
        self._stacks: dict[int, list[tuple[str, float]]] = {}
        self._seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    @property
    def path(self) -> str:
        """The path of this thread's innermost open phase; empty if none is open."""
        stack = self._stacks.get(threading.get_ident()) or self._stacks.get(self._owner) or []
        return stack[-1][0] if stack else ""

    def is_open(self, name: str) -> bool:
        """Whether this thread has an open phase with this name, at any depth."""
        return name in self.path.split("/")

    def open(self, name: str) -> None:
        """Start a phase inside the open one."""
        with self._lock:
            parent = self.path
            stack = self._stacks.setdefault(threading.get_ident(), [])
            stack.append((f"{parent}/{name}" if parent else name, self._now()))

    def close(self) -> float:
        """End the innermost phase; returns its seconds."""
        now = self._now()
        with self._lock:
            path, started = self._stacks[threading.get_ident()].pop()
            self._seconds[path] = self._seconds.get(path, 0.0) + now - started
            return now - started

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a block of code as a phase."""
        self.open(name)
        try:
            yield
        finally:
            self.close()

    def take(self) -> tuple[dict[str, float], dict[str, float]]:
        """The seconds by path since the last call: inside the step, and outside any step."""
        with self._lock:
            seconds, self._seconds = self._seconds, {}
        step = {path: value for path, value in seconds.items() if path.split("/")[0] == ROOT}
        return step, {path: value for path, value in seconds.items() if path not in step}


def clock_after(wait: Callable[[], object], now: Callable[[], float] = time.perf_counter) -> Callable[[], float]:
    """A clock that first calls `wait`, to synchronize with a GPU.

    Without it a phase would only measure how long its kernels take to launch, and the next phase would wait for them.
    """

    def read() -> float:
        wait()
        return now()

    return read


class StepClock(PhaseClock):
    """Measures step after step, with the time between steps and the load of other processes."""

    def __init__(self, load: OtherLoad, now: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(now)
        self._load = load
        self._ended: float | None = None
        self._between_s: float | None = None

    def begin_step(self) -> None:
        """Start the root phase."""
        self._between_s = None if self._ended is None else self._now() - self._ended
        self._load.begin()
        self.open(ROOT)

    def end_step(self) -> tuple[dict[str, float], dict[str, float]]:
        """End the root phase; returns the seconds by path and the known scalars."""
        self.close()
        self._ended = self._now()
        measured = {"between_steps_s": self._between_s, "other_cpu_s": self._load.taken_s()}
        phases, outside = self.take()
        scalars = {name: value for name, value in measured.items() if value is not None}
        return phases, scalars | {f"outside_step_s/{name}": seconds for name, seconds in outside.items()}


def sanitize(name: str) -> str:
    """A name as part of a path: letters, digits, `_`, `.` and `-`."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_") or "unnamed"
