"""Derives one state of a job from its files, this machine's locks and Slurm's answer.

The launcher, the scheduler, the job on the node, status, cancel and plan all call `job_state`; none of them decides
alone. docs/reliability.md has the table of states, the evidence for each, and who may write which file.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from workflow.runs.history import attempts_of_job
from workflow.runs.jobs import Submission
from workflow.runs.paths import AttemptPaths, RunPaths
from workflow.slurm.commands import ENDED, EndedJob, QueueJob
from workflow.slurm.shared_answer import Answer

HEARTBEAT_S = 5.0
SILENT_S = 3 * HEARTBEAT_S  # a heartbeat that has not moved for this long is silent
# How many of Slurm's answers in a row must lack a living job before it counts as ended: if accounting confirms its end,
# if accounting works and knows no end (it is seconds late), and without accounting.
_CONFIRMED, _UNCONFIRMED, _WITHOUT_ACCOUNTING = 2, 6, 3
# Slurm ends a job with its node; if only slurmd was lost, the job's processes are still alive.
_NODE_LOST = frozenset({"NODE_FAIL", "BOOT_FAIL"})


class JobVerdict(StrEnum):
    """A job's status from its files alone."""

    OPEN = "open"
    FINISHED = "finished"  # an attempt's done.json proves that the run is finished
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"  # the run has a newer submission
    ENDED = "ended"  # there is an end.json


class Life(StrEnum):
    """Whether a job exists, and what it does."""

    NONE = "none"
    SUBMITTING = "submitting"
    WAITING = "waiting"
    REQUEUED = "requeued"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    SUSPENDED = "suspended"
    ABANDONED = "abandoned"  # Slurm has given it up, and its trainer still writes
    DOUBTED = "doubted"  # Slurm's last answer lacks it; that does not prove its end
    SILENT = "silent"  # Slurm does not answer


_LIVES = {
    "RUNNING": Life.RUNNING,
    "COMPLETING": Life.ENDING,
    "STAGE_OUT": Life.ENDING,
    "CONFIGURING": Life.STARTING,
    "REQUEUED": Life.REQUEUED,
    "REQUEUE_HOLD": Life.REQUEUED,
    "REQUEUE_FED": Life.REQUEUED,
    "SUSPENDED": Life.SUSPENDED,
    "STOPPED": Life.SUSPENDED,
}


@dataclass(frozen=True, slots=True)
class Pulse:
    """The signs of life of a job's newest attempt; `beats` is None until it was watched for long enough."""

    began: bool = False
    exited: bool = False  # exit.json exists: the job saw the trainer's end
    beats: bool | None = None

    @property
    def quiet(self) -> bool:
        """Whether no trainer of the job can be running."""
        return self.exited or not self.began or self.beats is False


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known about a job at one moment; what was not checked keeps its default."""

    job: Submission
    finished: bool = False
    current: bool = True  # the run's job.json names this submission
    cancelled_by: str | None = None
    submitting: bool = False  # its submission may still be under way
    holds_lock: bool = False  # the job holds its run's lock on this machine
    answer: Answer | None = None
    unavailable: str = ""  # why Slurm's answer does not describe the present; empty if it does
    answers_without: int = 0  # how many of Slurm's answers in a row lacked a living job
    pulse: Pulse = Pulse()
    began_since: bool = False  # its newest attempt began after Slurm was asked


@dataclass(frozen=True, slots=True)
class JobState:
    """A job's verdict from the files, and its life."""

    verdict: JobVerdict
    life: Life
    note: str = ""
    queued: QueueJob | None = None
    ended: EndedJob | None = None
    slurm_state: str = ""  # Slurm's last state of a job that has ended

    @property
    def alive(self) -> bool:
        """Whether a job exists or may exist: no other may be submitted beside it."""
        return self.life is not Life.NONE

    @property
    def known(self) -> bool:
        """Whether Slurm's answer is conclusive."""
        return self.life not in (Life.DOUBTED, Life.SILENT, Life.SUBMITTING)


def job_state(seen: Evidence) -> JobState:
    """The state of a job from all evidence."""
    verdict = _verdict(seen)
    if not seen.job.record:  # nothing was submitted, or these results are a copy and the job belongs to the original
        return JobState(verdict, Life.NONE)
    if not seen.job.on_slurm:
        return JobState(verdict, _local_life(seen))
    if seen.job.end:
        # It is final, but a trainer that Slurm has given up may still run.
        if seen.pulse.quiet:
            return JobState(verdict, Life.NONE)
        return JobState(verdict, *_missing_life(seen.pulse, "has ended for Slurm"))
    return _slurm_state(seen, verdict)


def _missing_life(pulse: Pulse, note: str) -> tuple[Life, str]:
    """The life and the note of a job that Slurm does not have: abandoned while its trainer writes, else doubted."""
    writes = pulse.beats and not pulse.quiet
    return (Life.ABANDONED, f"{note}, but still writes") if writes else (Life.DOUBTED, note)


def _verdict(seen: Evidence) -> JobVerdict:
    if seen.finished:
        return JobVerdict.FINISHED
    if seen.job.end:
        return JobVerdict.ENDED
    if not seen.current:
        return JobVerdict.SUPERSEDED
    return JobVerdict.CANCELLED if seen.cancelled_by else JobVerdict.OPEN


def _local_life(seen: Evidence) -> Life:
    if seen.job.end:
        return Life.NONE
    if seen.holds_lock:
        return Life.RUNNING
    return Life.STARTING if seen.submitting and not seen.pulse.began else Life.NONE


def _slurm_state(seen: Evidence, verdict: JobVerdict) -> JobState:
    if seen.unavailable or seen.answer is None:
        return JobState(verdict, Life.SILENT, seen.unavailable)
    # Find it by its name, since Slurm reuses ids.
    living = seen.answer.jobs_named(seen.job.name) if seen.job.name else []
    if living:
        queued = next((job for job in living if job.job_id == seen.job.job_id), living[0])
        life = _LIVES.get(queued.state, Life.RUNNING)
        if queued.state == "PENDING":
            life = Life.WAITING
            if seen.pulse.began:
                life = Life.STARTING if seen.began_since else Life.REQUEUED
        return JobState(verdict, life, queued=queued)
    if seen.answer.may_be_older_than(seen.job.record.get("answer")):
        return JobState(verdict, Life.WAITING, "just submitted")
    ended = seen.answer.ended.get(seen.job.job_id or "")
    ended = ended if ended and ended.name == seen.job.name else None
    listed = seen.answer.jobs.get(seen.job.job_id or "")
    state = listed.state if listed and listed.name == seen.job.name and listed.state in ENDED else ""  # of squeue
    last_state = state or (ended.state if ended else "")
    none = JobState(verdict, Life.NONE, ended=ended, slurm_state=last_state)
    if seen.job.job_id is None:
        if seen.job.record.get("error") or not seen.submitting:
            return none
        return JobState(verdict, Life.SUBMITTING, "is being submitted")
    if state and ended and state == ended.state and last_state not in _NODE_LOST and seen.pulse.quiet:
        return none  # squeue, accounting and the job's own files agree
    unconfirmed = _UNCONFIRMED if seen.answer.accounting else _WITHOUT_ACCOUNTING
    if seen.answers_without >= (unconfirmed if ended is None else _CONFIRMED) and seen.pulse.quiet:
        return none
    note = f"is {last_state.lower().replace('_', ' ')} for Slurm" if last_state else "is unknown to Slurm"
    life, note = _missing_life(seen.pulse, note)
    return JobState(verdict, life, note, ended=ended, slurm_state=last_state)


class HeartbeatWatch:
    """Follows an attempt's pulse over several checks, comparing its heartbeat's time only with itself.

    It does not depend on the clocks of other hosts: this process measures the time since the heartbeat moved.
    """

    def __init__(self, newest: Callable[[], AttemptPaths | None]) -> None:
        self._newest = newest
        self._beat: float | None = None
        self._since: float | None = None
        self._moved = False

    def check(self) -> Pulse:
        """The newest attempt's pulse now; files that cannot be read are no silence, but restart the watch."""
        began = time.monotonic()
        try:
            if (attempt := self._newest()) is None:
                return Pulse()
            beat, exited = modified(attempt.heartbeat), modified(attempt.exit) is not None
        except OSError:
            self._since, self._moved = None, False
            return Pulse(True)
        now = time.monotonic()
        if now - began > HEARTBEAT_S:
            self._since, self._moved = None, False  # the file system hung: nothing was watched meanwhile
        if self._since is None or beat != self._beat:
            self._moved = self._since is not None
            self._beat, self._since = beat, now
        silent = now - self._since >= SILENT_S
        return Pulse(True, exited, False if silent else True if self._moved else None)


def pulse_at(run: RunPaths, number: int, now: float) -> Pulse:
    """The pulse of a job from a single check; `now` is the file system's time (`filesystem_now`), as in the files."""
    attempts = attempts_of_job(run, number)
    if not attempts:
        return Pulse()
    return Pulse(True, modified(attempts[-1].exit) is not None, silence_s(attempts[-1], now) < 2 * SILENT_S)


def silence_s(attempt: AttemptPaths, now: float) -> float:
    """Seconds since an attempt's last sign of life; `now` is the file system's time."""
    signs = [modified(file) for file in (attempt.heartbeat, attempt.metrics, attempt.request)]
    return max(0.0, now - max((sign for sign in signs if sign is not None), default=0.0))


def filesystem_now(folder: Path) -> float:
    """The time of the clock that stamps a folder's files; this host's time if nothing can be written there."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()


def modified(file: Path) -> float | None:
    """When a file was last written, by the file system's clock; None if it is missing."""
    try:
        return file.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None
