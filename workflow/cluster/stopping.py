"""Hears who wants a job to stop, and why: signals, the job's stop file, and what Slurm means by its signals."""

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
    """What tells one life of a job to stop."""

    def __init__(self, job: JobPaths, environ: Mapping[str, str]) -> None:
        self._job = job
        self.slurm_id: str | None = None
        """Told once the job's order is read; None on one machine."""
        self.restart = int(environ.get("SLURM_RESTART_COUNT", "0"))
        self.nodes = environ.get("SLURM_JOB_NODELIST") or socket.gethostname()
        self.signal: signal.Signals | None = None
        """The first that came, also while somebody waited for another one."""
        self._cause: Future[str] | None = None

    def install_signals(self) -> None:
        """Take over from submitit: USR2 comes ahead of the time limit, TERM with preemption and cancelling.

        What a person sends to look at the trainer (`scancel --signal=USR1`) or a terminal sends at its end is not for
        the job that watches it, which would die of it without a word.
        """
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        for number in (signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, lambda number, frame: None)  # SIG_IGN would be the trainer's, too

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or signal.Signals(number)

    def wanted(self) -> dict[str, Any] | None:
        """Why the trainer must stop, if it must; what Slurm means by a signal is asked meanwhile (`reason`)."""
        if self.asked() is not None:
            return {"kind": "stopped", "cause": "asked"}
        if self.signal is None:
            return None
        if self.slurm_id is None:
            return {"kind": "stopped", "cause": f"signal {self.signal.name}"}
        if self._cause is None:
            # scontrol may take a minute, in which the trainer is to stop and the heartbeat to go on.
            self._cause = ThreadPoolExecutor(1).submit(self._cause_of, self.slurm_id, self.signal)
        return {"kind": "stopped"}

    def reason(self, stop: dict[str, Any]) -> dict[str, Any]:
        """What is known of a stop once the trainer has stopped: its cause, and whether the run shall go on."""
        if self._cause is None or stop.get("kind") != "stopped" or "cause" in stop:
            return {}
        cause = self._cause.result()
        # What Slurm is ending is not ours to requeue: it may have been cancelled.
        return {"cause": cause, "again": cause != ENDED_BY_SLURM}

    def asked(self) -> str | None:
        """`soon` or `now`; None if nobody asked, or if the file system does not say at this moment."""
        try:
            return self._job.stop.read_text(encoding="utf-8").strip()
        except OSError:
            return None

    def _cause_of(self, slurm_id: str, number: signal.Signals) -> str:
        """What Slurm wants with its signal; it sends the same ones for many things."""
        for tries_left in (2, 1, 0):  # a signal to the whole job meets our scontrol, too
            try:
                details = slurm.job_details(slurm_id)
                break
            except SlurmError as error:
                if not tries_left:
                    return f"signal {number.name} (Slurm does not say why: {error})"
                time.sleep(0.5)
        # With a grace time a preempted job is still running, and its end was moved to the end of the grace.
        if details.get("PreemptTime", "None") not in ("None", "N/A"):
            return "preempted"
        # Cancelled, requeued, preempted without grace: Slurm shows all of them as COMPLETING while it ends them.
        if details.get("JobState") != "RUNNING" or not self.is_this_life(details):
            return ENDED_BY_SLURM
        return "time limit" if number is signal.SIGUSR2 else f"signal {number.name}"

    def is_this_life(self, details: Mapping[str, str]) -> bool:
        """Whether Slurm speaks of this life of the job, not of one that it has begun elsewhere meanwhile."""
        told = details.get("Restarts", str(self.restart)), details.get("NodeList", self.nodes)
        return told == (str(self.restart), self.nodes)

    def is_running(self) -> bool:
        """Whether Slurm has this life running."""
        assert self.slurm_id is not None
        with suppress(SlurmError):
            details = slurm.job_details(self.slurm_id)
            return details.get("JobState") == "RUNNING" and self.is_this_life(details)
        return False
