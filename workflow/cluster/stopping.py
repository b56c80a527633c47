"""Detects requests to stop a job, and their cause: signals, the stop file, and Slurm's reason for a signal."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import FrameType
from typing import Any

from workflow.cluster import slurm
from workflow.cluster.ends import ENDED_BY_SLURM
from workflow.cluster.paths import JobPaths
from workflow.cluster.slurm import SlurmError


class StopRequests:
    """The stop requests of one life of a job."""

    def __init__(self, job: JobPaths, environ: Mapping[str, str]) -> None:
        self._job = job
        self.slurm_id: str | None = None
        """Set once the job's order is read; None on one machine."""
        self.restart = int(environ.get("SLURM_RESTART_COUNT", "0"))
        self.nodes = environ.get("SLURM_JOB_NODELIST") or socket.gethostname()
        self.signal: signal.Signals | None = None
        """The first signal; later ones do not replace it."""
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
        if self._cause is None:
            # scontrol may take a minute; meanwhile the trainer stops and the heartbeat continues.
            self._cause = ThreadPoolExecutor(1).submit(self._cause_of, self.slurm_id, self.signal)
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
            return self._job.stop.read_text(encoding="utf-8").strip()
        except OSError:
            return None

    def _cause_of(self, slurm_id: str, number: signal.Signals) -> str:
        """Why Slurm sent a signal: it sends the same ones for several reasons."""
        for tries_left in (2, 1, 0):  # a signal to the whole job also ends our scontrol
            try:
                details = slurm.job_details(slurm_id)
                break
            except SlurmError as error:
                if not tries_left:
                    return f"signal {number.name} (Slurm does not say why: {error})"
                time.sleep(0.5)
        # With a grace time a preempted job is still RUNNING, and its end time is the end of the grace.
        if details.get("PreemptTime", "None") not in ("None", "N/A"):
            return "preempted"
        # Cancelled, requeued, or preempted without grace: Slurm shows all of them as COMPLETING.
        if details.get("JobState") != "RUNNING" or not self.is_this_life(details):
            return ENDED_BY_SLURM
        return "time limit" if number is signal.SIGUSR2 else f"signal {number.name}"

    def is_this_life(self, details: Mapping[str, str]) -> bool:
        """Whether Slurm describes this life of the job, not one that it has started elsewhere meanwhile."""
        reported = details.get("Restarts", str(self.restart)), details.get("NodeList", self.nodes)
        return reported == (str(self.restart), self.nodes)

    def is_running(self) -> bool:
        """Whether Slurm shows this life as running."""
        assert self.slurm_id is not None
        with suppress(SlurmError):
            details = slurm.job_details(self.slurm_id)
            return details.get("JobState") == "RUNNING" and self.is_this_life(details)
        return False
