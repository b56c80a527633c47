"""Detects when a training must stop, and why: stop requests, Slurm's signals, or a hang."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from common.ownership import NotOwnError, read_own
from workflow.runs.ends import ENDED_BY_SLURM
from workflow.runs.paths import RunPaths
from workflow.runs.progress import Pace, StepReader
from workflow.slurm import commands as slurm
from workflow.slurm.commands import SlurmError

THE_TRAINERS_OWN = "the trainer's own"
"""The cause of a stop that nobody requested."""


class StopRequests:
    def __init__(self, run: RunPaths, environ: Mapping[str, str]) -> None:
        self._run = run
        self.slurm_id: str | None = None  # set once the run's order is read; None on one machine
        self.restart = int(environ.get("SLURM_RESTART_COUNT", "0"))
        self.nodes = environ.get("SLURM_JOB_NODELIST") or socket.gethostname()
        self.signal: signal.Signals | None = None  # the first signal; later ones do not replace it
        self._cause: Future[str] | None = None

    def install_signals(self) -> None:
        """Replace submitit's handlers: USR2 precedes the time limit, TERM comes with preemption and cancelling.

        USR1 (`scancel --signal=USR1`, for the trainer's stacks) and HUP (a closed terminal) must not kill the job.
        """
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        for number in (signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, lambda number, frame: None)  # the trainer would inherit SIG_IGN

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or signal.Signals(number)

    def wanted(self) -> dict[str, Any] | None:
        """Why the trainer must stop; None while it may continue. A thread asks Slurm for the cause (`reason`)."""
        if self.asked() is not None:
            return {"kind": "stopped", "cause": "asked"}
        if self.signal is None:
            return None
        if self.slurm_id is None:
            return {"kind": "stopped", "cause": f"signal {self.signal.name}"}
        return self.ask(self.signal)

    def ask(self, number: signal.Signals | None) -> dict[str, Any]:
        """A stop whose cause a thread asks of Slurm: scontrol may take a minute, and the heartbeat continues.

        `number` is the signal; None for a trainer that stopped by itself, perhaps for a signal of Slurm's.
        """
        if self._cause is None:
            assert self.slurm_id is not None
            self._cause = ThreadPoolExecutor(1).submit(self._cause_of, self.slurm_id, number)
        return {"kind": "stopped"}

    def reason(self, stop: dict[str, Any]) -> dict[str, Any]:
        """The cause of a stop and whether the run continues; asked once the trainer has stopped."""
        if self._cause is None or stop.get("kind") != "stopped" or "cause" in stop:
            return {}
        cause = self._cause.result()
        # Do not requeue what Slurm is ending: it may have been cancelled.
        return {"cause": cause, "again": cause != ENDED_BY_SLURM}

    def asked(self) -> str | None:
        """`soon` or `now`; None without a stop file, or while it cannot be read."""
        try:
            return read_own(self._run.stop).strip()
        except (OSError, NotOwnError):
            return None

    def _cause_of(self, slurm_id: str, number: signal.Signals | None) -> str:
        """Why Slurm sent a signal: it sends the same ones for several reasons."""
        sent = THE_TRAINERS_OWN if number is None else f"signal {number.name}"
        for tries_left in (2, 1, 0):  # a signal to the whole job also ends our scontrol
            try:
                details = slurm.job_details(slurm_id)
                break
            except SlurmError as error:
                if not tries_left:
                    return f"{sent} (Slurm does not say why: {error})"
                time.sleep(0.5)
        # With a grace time a preempted job is still RUNNING, and its end time is the end of the grace.
        if details.get("PreemptTime", "None") not in ("None", "N/A"):
            return "preempted"
        # Cancelled, requeued, or preempted without grace: Slurm shows all of them as COMPLETING.
        if details.get("JobState") != "RUNNING" or not self.is_this_life(details):
            return ENDED_BY_SLURM
        return "time limit" if number is signal.SIGUSR2 else sent

    def is_this_life(self, details: Mapping[str, str]) -> bool:
        """Whether Slurm describes this life of the job, not one that it has started elsewhere meanwhile."""
        reported = details.get("Restarts", str(self.restart)), details.get("NodeList", self.nodes)
        return reported == (str(self.restart), self.nodes)


# A suspension of this process (gang scheduling, a debugger) is not a silence of the trainer.
_LONGEST_TICK_S = 1.0
_DUMPS_PATIENCE_S = 60.0  # for all of a trainer's processes: nobody watches it meanwhile
# Time for the trainer to write its own stacks into the log.
_SIGNAL_PATIENCE_S = 2.0


class Watchdog:
    """Measures the time since a trainer's last step, and reports when it is too long.

    The limit is `hang_factor` times the median of its recent step times, at least `hang_min_s`; until its first step it
    is `first_step_s` (imports, weights, graphs, the first compilation). A factor of 0 turns the watchdog off.
    """

    def __init__(self, metrics: Path, hang_factor: float, hang_min_s: float, first_step_s: float) -> None:
        self._pace = Pace(StepReader(metrics), recent=50)
        self._factor, self._min_s, self._first_s = hang_factor, hang_min_s, first_step_s
        self._silent_s = 0.0

    def tick(self, elapsed_s: float) -> str | None:
        """A sentence if the trainer hangs; call it about once a second."""
        with suppress(OSError):  # steps that cannot be read now are read later
            if self._pace.advance():
                self._silent_s = 0.0
        self._silent_s += min(elapsed_s, _LONGEST_TICK_S)
        usual_s = self.usual_s
        limit_s = self._first_s if usual_s is None else max(self._min_s, self._factor * usual_s)
        if not self._factor or self._silent_s <= limit_s:
            return None
        after = "before its first step" if usual_s is None else f"after step {self._pace.last_step}"
        usual = "" if usual_s is None else f", where {usual_s:.3g} s are usual"
        return f"no new step for {self._silent_s:.0f} s {after}{usual}"

    @property
    def usual_s(self) -> float | None:
        """The median of its recent step times; None before the first."""
        return self._pace.usual_s


class SilenceWatchdog:
    """Measures the time since an own command last printed or logged: nobody knows how long its steps take."""

    usual_s = None

    def __init__(self, console: Path, limit_s: float) -> None:
        self._console, self._limit_s = console, limit_s
        self._state, self._silent_s = (-1, 0), 0.0

    def tick(self, elapsed_s: float) -> str | None:
        """A sentence if it hangs; call it about once a second."""
        with suppress(OSError):
            found = self._console.stat()
            if (state := (found.st_size, found.st_mtime_ns)) != self._state:
                self._state, self._silent_s = state, 0.0
        self._silent_s += min(elapsed_s, _LONGEST_TICK_S)
        if self._silent_s <= self._limit_s:
            return None
        return f"it logged nothing for {self._silent_s:.0f} s (first_step_s in the profile is the limit)"


def dump_stacks(pid: int, log: Path) -> None:
    """Append to the log what each process of a trainer is doing, from py-spy and the trainer itself.

    The trainer's process writes its own stacks on SIGUSR1 (Python's faulthandler). A process without that handler ends
    by the signal; it is about to be ended anyway.
    """
    beside = Path(sys.executable).with_name("py-spy")
    spy = str(beside) if beside.is_file() else shutil.which("py-spy")
    with log.open("a", encoding="utf-8") as out:
        out.write("\n=== what the trainer's processes are doing ===\n")
        out.flush()
        try:
            command = [spy or "py-spy", "dump", "--subprocesses", "--pid", str(pid)]
            limits: dict[str, Any] = {"timeout": _DUMPS_PATIENCE_S, "check": False}
            subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, **limits)
        except (subprocess.TimeoutExpired, OSError) as error:
            out.write(f"py-spy cannot read them: {error}; only the trainer's own stacks follow, if it writes them\n")
    with suppress(psutil.TimeoutExpired, psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        parent.send_signal(signal.SIGUSR1)
        parent.wait(timeout=_SIGNAL_PATIENCE_S)
