"""Watches whether a training still moves: how long it may be silent, and what it is doing when that ends."""

from __future__ import annotations

import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from workflow.cluster.progress import StepReader

# A process that was suspended (gang scheduling, a debugger) must not find that the trainer was silent meanwhile.
_LONGEST_TICK_S = 1.0
_DUMP_PATIENCE_S = 20.0
_DUMPS_PATIENCE_S = 60.0  # for all of a trainer's processes: meanwhile nobody watches
# Silent for a while before it is asked what it does: the trainer's own dump reaches the log through its own process.
_SIGNAL_PATIENCE_S = 2.0


class Watchdog:
    """Counts how long a trainer has been without a new step, and says when that is too long.

    The limit is `hang_factor` times the median of its recent step times, at least `hang_min_s`; until its first step it
    is `first_step_s` (imports, weights, graphs, the first compilation). A factor of 0 turns the watchdog off.
    """

    def __init__(self, metrics: Path, hang_factor: float, hang_min_s: float, first_step_s: float) -> None:
        self._reader = StepReader(metrics)
        self._factor, self._min_s, self._first_s = hang_factor, hang_min_s, first_step_s
        self._seconds: deque[float] = deque(maxlen=50)
        self._last_step: int | None = None
        self._silent_s = 0.0

    def tick(self, elapsed_s: float) -> str | None:
        """To be called every second or so; a sentence if the trainer has hung."""
        with suppress(OSError):  # steps that cannot be read now are read later
            for step, seconds in self._reader.new_steps():
                self._last_step = step
                self._seconds.append(seconds)
                self._silent_s = 0.0
        self._silent_s += min(elapsed_s, _LONGEST_TICK_S)
        if not self._factor or self._silent_s <= self.limit_s:
            return None
        after = f"after step {self._last_step}" if self._last_step is not None else "before its first step"
        usual = f", where {statistics.median(self._seconds):.3g} s are usual" if self._seconds else ""
        return f"no new step for {self._silent_s:.0f} s {after}{usual}"

    @property
    def limit_s(self) -> float:
        if not self._seconds:
            return self._first_s
        return max(self._min_s, self._factor * statistics.median(self._seconds))


def dump_stacks(pid: int, log: Path) -> None:
    """Append to the log what every process of a trainer is doing: by py-spy, by the kernel, by the trainer itself.

    The trainer's process writes its own stacks on SIGUSR1 (Python's faulthandler). One that does not listen ends by it,
    last of all; it was to be ended anyway.
    """
    with log.open("a", encoding="utf-8") as out:
        out.write("\n=== what the trainer's processes are doing ===\n")
        out.flush()
        spy = _py_spy()
        give_up = time.monotonic() + _DUMPS_PATIENCE_S
        for process in _family(pid):
            _describe(process, out)
            if spy is not None and time.monotonic() < give_up:
                _run_py_spy(spy, process.pid, out)
        if spy is None:
            out.write("py-spy is not installed: only the trainer's own stacks follow, where it writes them\n")
        out.flush()
    with suppress(psutil.TimeoutExpired, psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        parent.send_signal(signal.SIGUSR1)
        parent.wait(timeout=_SIGNAL_PATIENCE_S)


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _describe(process: psutil.Process, out: Any) -> None:
    try:
        command = " ".join(process.cmdline())[:200]
        waits = Path(f"/proc/{process.pid}/wchan").read_text(encoding="utf-8", errors="replace")
        out.write(f"\nprocess {process.pid} ({process.status()}, in kernel: {waits or '-'}): {command}\n")
    except (OSError, psutil.Error):
        out.write(f"\nprocess {process.pid} has just ended\n")


def _py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def _run_py_spy(spy: str, pid: int, out: Any) -> None:
    out.flush()
    try:
        subprocess.run(
            [spy, "dump", "--pid", str(pid)],
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=_DUMP_PATIENCE_S,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        out.write(f"py-spy could not look at {pid}: {error}\n")
