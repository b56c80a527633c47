"""Detects a training that hangs, and writes the stacks of its processes into the log."""

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

# A suspension of this process (gang scheduling, a debugger) is not a silence of the trainer.
_LONGEST_TICK_S = 1.0
_DUMP_PATIENCE_S = 20.0
_DUMPS_PATIENCE_S = 60.0  # for all of a trainer's processes: nobody watches it meanwhile
# Time for the trainer to write its own stacks into the log.
_SIGNAL_PATIENCE_S = 2.0


class Watchdog:
    """Measures the time since a trainer's last step, and reports when it is too long.

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
        """A sentence if the trainer hangs; call it about once a second."""
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
    """Append to the log what each process of a trainer is doing, from py-spy, the kernel and the trainer itself.

    The trainer's process writes its own stacks on SIGUSR1 (Python's faulthandler). A process without that handler ends
    by the signal; it is about to be ended anyway.
    """
    with log.open("a", encoding="utf-8") as out:
        out.write("\n=== what the trainer's processes are doing ===\n")
        out.flush()
        beside = Path(sys.executable).with_name("py-spy")
        spy = str(beside) if beside.is_file() else shutil.which("py-spy")
        family: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(pid)
            family = [parent, *parent.children(recursive=True)]
        give_up = time.monotonic() + _DUMPS_PATIENCE_S
        for process in family:
            _describe(process, out)
            if spy is not None and time.monotonic() < give_up:
                _run_py_spy(spy, process.pid, out)
        if spy is None:
            out.write("py-spy is not installed: only the trainer's own stacks follow, if it writes them\n")
        out.flush()
    with suppress(psutil.TimeoutExpired, psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        parent.send_signal(signal.SIGUSR1)
        parent.wait(timeout=_SIGNAL_PATIENCE_S)


def _describe(process: psutil.Process, out: Any) -> None:
    try:
        command = " ".join(process.cmdline())[:200]
        waits = Path(f"/proc/{process.pid}/wchan").read_text(encoding="utf-8", errors="replace")
        out.write(f"\nprocess {process.pid} ({process.status()}, in kernel: {waits or '-'}): {command}\n")
    except (OSError, psutil.Error):
        out.write(f"\nprocess {process.pid} has just ended\n")


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
        out.write(f"py-spy could not read process {pid}: {error}\n")
