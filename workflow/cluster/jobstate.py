"""Makes one state of a job out of its files, this machine's locks and Slurm's answer.

The launcher, the scheduler, the job on the node, status, cancel and plan all ask `job_state`; none of them decides by
itself. docs/reliability.md has the table: the states, the evidence for each, and who may write which file.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from workflow.cluster.history import attempts_of_job
from workflow.cluster.paths import AttemptPaths, RunPaths
from workflow.cluster.slurm import EndedJob, QueueJob
from workflow.cluster.slurm_answer import Answer
from workflow.cluster.submissions import Submission, ended_state, queued_job

HEARTBEAT_S = 5.0
SILENT_S = 3 * HEARTBEAT_S
"""How long a heartbeat must not move before its trainer counts as silent."""
# Answers of Slurm's in a row that do not have a job alive: where accounting confirms its end, where accounting works
# and does not know of an end (it is seconds late), and where there is none.
_CONFIRMED, _UNCONFIRMED, _WITHOUT_ACCOUNTING = 2, 6, 3
# Slurm ends a job with its node; the processes on a node that only lost its slurmd live on.
_NODE_LOST = frozenset({"NODE_FAIL", "BOOT_FAIL"})


class JobVerdict(StrEnum):
    """What the files say of a job, whatever Slurm says."""

    OPEN = "open"
    FINISHED = "finished"
    """An attempt's done.json proves that what the job computes is done."""
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    """Another submission of the run counts."""
    ENDED = "ended"
    """end.json says how."""


class Life(StrEnum):
    """Whether a job is there, and what it does."""

    NONE = "none"
    SUBMITTING = "submitting"
    WAITING = "waiting"
    REQUEUED = "requeued"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    SUSPENDED = "suspended"
    ABANDONED = "abandoned"
    """Slurm does not have it any more, and its trainer still writes."""
    DOUBTED = "doubted"
    """Slurm's last answer does not have it; that is not enough to call it dead."""
    SILENT = "silent"
    """Slurm does not answer."""


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
    """What a job's newest attempt shows: `beats` is None until it was watched for long enough."""

    began: bool = False
    exited: bool = False
    """Its watcher saw the trainer's end and wrote exit.json."""
    beats: bool | None = None

    @property
    def quiet(self) -> bool:
        """Whether no trainer of the job can be at work."""
        return self.exited or not self.began or self.beats is False


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of a job at one look; what was not looked at keeps its default."""

    job: Submission
    finished: bool = False
    current: bool = True
    """The run's job.json names this submission."""
    cancelled_by: str | None = None
    submitting: bool = False
    """A program that submits may still be at it."""
    holds_lock: bool = False
    """The job holds its run's lock on this machine."""
    answer: Answer | None = None
    unavailable: str = ""
    """Why Slurm's answer says nothing of now."""
    answers_without: int = 0
    """How many of Slurm's answers in a row did not have the job alive."""
    pulse: Pulse = Pulse()


@dataclass(frozen=True, slots=True)
class JobState:
    """What a job is: the files' verdict, and its life."""

    verdict: JobVerdict
    life: Life
    note: str = ""
    queued: QueueJob | None = None
    ended: EndedJob | None = None
    slurm_state: str = ""
    """Slurm's last word on a job that it has ended."""

    @property
    def alive(self) -> bool:
        """Whether a job is there, or may be: no other may be submitted beside it."""
        return self.life is not Life.NONE

    @property
    def known(self) -> bool:
        """Whether Slurm's answer settles it."""
        return self.life not in (Life.DOUBTED, Life.SILENT, Life.SUBMITTING)


def job_state(seen: Evidence) -> JobState:
    """The state of a job, from all that is known of it."""
    verdict = _verdict(seen)
    if not seen.job.record:  # nothing was submitted, or these results are a copy and the job is the original's
        return JobState(verdict, Life.NONE)
    if not seen.job.on_slurm:
        return JobState(verdict, _local_life(seen))
    if seen.job.end:
        # Its word stands, but it does not end a trainer that Slurm has lost hold of.
        if seen.pulse.quiet:
            return JobState(verdict, Life.NONE)
        return JobState(verdict, *_unquiet(seen.pulse, "has ended for Slurm"))
    return _slurm_state(seen, verdict)


def _unquiet(pulse: Pulse, note: str) -> tuple[Life, str]:
    """The life and the note of a job that Slurm does not have, while its trainer may be at work."""
    return (Life.ABANDONED, f"{note}, but still writes") if pulse.beats else (Life.DOUBTED, note)


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
    if (queued := queued_job(seen.job, seen.answer)) is not None:
        return JobState(verdict, _queued_life(queued, seen.pulse), queued=queued)
    if seen.answer.may_be_older_than(seen.job.record.get("answer")):
        return JobState(verdict, Life.WAITING, "just submitted")
    ended = seen.answer.ended.get(seen.job.job_id or "")
    ended = ended if ended and ended.name == seen.job.name else None
    state = ended_state(seen.job, seen.answer)
    word = state or (ended.state if ended else "")
    gone = JobState(verdict, Life.NONE, ended=ended, slurm_state=word)
    if seen.job.job_id is None:
        if seen.job.record.get("error") or not seen.submitting:
            return gone
        return JobState(verdict, Life.SUBMITTING, "is being submitted")
    if state and ended and state == ended.state and word not in _NODE_LOST and seen.pulse.quiet:
        return gone  # squeue, accounting and the job's own files agree
    if seen.answers_without >= _answers_wanted(seen.answer, ended) and seen.pulse.quiet:
        return gone
    note = f"is {word.lower().replace('_', ' ')} for Slurm" if word else "is unknown to Slurm"
    life, note = (Life.DOUBTED, note) if seen.pulse.quiet else _unquiet(seen.pulse, note)
    return JobState(verdict, life, note, ended=ended, slurm_state=word)


def _answers_wanted(answer: Answer, ended: EndedJob | None) -> int:
    if ended is not None:
        return _CONFIRMED
    return _UNCONFIRMED if answer.accounting else _WITHOUT_ACCOUNTING


def _queued_life(queued: QueueJob, pulse: Pulse) -> Life:
    if queued.state == "PENDING":
        return Life.REQUEUED if pulse.began else Life.WAITING
    return _LIVES.get(queued.state, Life.RUNNING)


class Watch:
    """Follows an attempt's pulse over several looks, by its heartbeat's time compared with itself alone.

    Clocks of other hosts play no part: the time since the heartbeat moved is this process's own.
    """

    def __init__(self, newest: Callable[[], AttemptPaths | None]) -> None:
        self._newest = newest
        self._beat: float | None = None
        self._since: float | None = None
        self._moved = False

    def look(self) -> Pulse:
        """The newest attempt's pulse now; files that cannot be read are no silence: the watch begins anew."""
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
            self._since, self._moved = None, False  # a file system that hung was not watched
        if self._since is None or beat != self._beat:
            self._moved = self._since is not None
            self._beat, self._since = beat, now
        silent = now - self._since >= SILENT_S
        return Pulse(True, exited, False if silent else True if self._moved else None)


def pulse_at(run: RunPaths, number: int, now: float) -> Pulse:
    """The pulse of a job at a single look; `now` is the file system's (`filesystem_now`), as the files' times are."""
    attempts = attempts_of_job(run, number)
    if not attempts:
        return Pulse()
    return Pulse(True, modified(attempts[-1].exit) is not None, silence_s(attempts[-1], now) < 2 * SILENT_S)


def silence_s(attempt: AttemptPaths, now: float) -> float:
    """Seconds since an attempt showed a sign of life; `now` is the file system's."""
    signs = [modified(file) for file in (attempt.heartbeat, attempt.metrics, attempt.order)]
    return max(0.0, now - max((sign for sign in signs if sign is not None), default=0.0))


def filesystem_now(folder: Path) -> float:
    """The time by the clock that stamps the files of a folder; this host's where nothing can be written there."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()


def modified(file: Path) -> float | None:
    """When a file was last written, by the file system's clock; None if it is not there."""
    try:
        return file.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None
