"""Is a run's job alive? Asked of this machine's locks, or of Slurm.

A job is only taken for dead when that is certain: a second one beside it would waste a node, and a head that gives up
too early loses nothing but patience.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from analysis.errors import UserError
from workflow.cluster import slurm
from workflow.cluster.answer import MAX_AGE_S, Answer, ask, want
from workflow.cluster.locks import holder_note
from workflow.cluster.paths import JobPaths, RunPaths
from workflow.cluster.slurm import ENDED, EndedJob, QueueJob, SlurmError
from workflow.files import read_json, write_json
from workflow.messages import say

# A job needs a moment between its submission and its taking of the live lock.
START_PATIENCE_S = 60.0
# An sbatch whose head died may still be on its way: a minute, which is Slurm's own MessageTimeout and then some.
IN_FLIGHT_S = 2 * MAX_AGE_S
# The shared answer is read more often than it is asked for: whoever asks is seldom oneself.
LOOK_EVERY_S = MAX_AGE_S / 3
# The same while squeue says that a job has ended and accounting does not know it yet.
DOUBT_S = max(MAX_AGE_S / 6, 3.0)
# How long a head waits for a Slurm that does not answer before it may submit; a restart takes a minute or two.
DOWN_PATIENCE_S = 1800.0
# Slurm's answers that must agree on a job's end where accounting does not (yet) tell of it.
_AGREEING = {True: 6, False: 2}

REASONS = {
    "Priority": "other jobs go first",
    "Resources": "no node is free that fits",
    "BeginTime": "it was requeued and waits its two minutes",
    "Dependency": "another job of this run has not ended",
    "JobHeldUser": "held by its user; `scontrol release` lets it go on",
    "JobHeldAdmin": "held by an administrator",
    "PartitionTimeLimit": "it asks for more time than the partition gives; lower runtime in the profile",
    "PartitionNodeLimit": "it asks for more nodes than the partition gives",
    "ReqNodeNotAvail": "the nodes it asks for are down or reserved",
    "QOSMaxJobsPerUserLimit": "your limit of running jobs is reached",
    "AssocGrpGRES": "your account's limit of GPUs is reached",
}


@dataclass(frozen=True, slots=True)
class Gone:
    """A job is dead; `state` is Slurm's last word on it, empty if it has none."""

    state: str = ""
    ended: EndedJob | None = None


class Scheduler(Protocol):
    """What a head must know of where its jobs run."""

    poll_s: ClassVar[float]
    detaches: ClassVar[bool]
    """Whether a head that is told to stop leaves its job running."""
    retries: ClassVar[bool]
    """Whether a job that was taken away is submitted again without being asked."""

    def live_job(self) -> JobPaths | None:
        """The job of the run that is submitted or running, whatever it computes."""

    def look(self, job: JobPaths) -> Gone | str | None:
        """`Gone` if it is certain; otherwise a remark for people that follows the job's name, or nothing."""

    def adopt(self, job: JobPaths) -> JobPaths | None:
        """The job that a submission without an answer has made after all."""

    def named(self, job: JobPaths) -> str:
        """A job's name for people."""


class LocalScheduler:
    """Jobs on this machine: alive while they hold their run's lock."""

    poll_s: ClassVar[float] = 0.2
    detaches: ClassVar[bool] = False
    retries: ClassVar[bool] = False

    def __init__(self, run: RunPaths) -> None:
        self._run = run
        self._seen: dict[int, float] = {}
        self._began = time.monotonic()

    def live_job(self) -> JobPaths | None:
        while (note := holder_note(self._run.live_lock)) == "":
            time.sleep(self.poll_s)  # its holder has just taken the lock, and is about to write its number
        return None if note is None else self._run.job(int(note))

    def look(self, job: JobPaths) -> Gone | str | None:
        now = time.monotonic()
        if holder_note(self._run.live_lock) is not None:
            self._seen[job.number] = now
            return None
        # After the lock is free its holder has written end.json, or it was killed.
        seen = self._seen.get(job.number)
        silent_s, patience_s = (now - seen, 2.0) if seen else (now - self._began, START_PATIENCE_S)
        return Gone() if silent_s > patience_s else None

    def adopt(self, job: JobPaths) -> JobPaths | None:
        return None

    def named(self, job: JobPaths) -> str:
        return f"job {job.number}"


class SlurmScheduler:
    """Jobs in Slurm, known through the answer that all heads share."""

    poll_s: ClassVar[float] = 2.0
    detaches: ClassVar[bool] = True
    retries: ClassVar[bool] = True

    def __init__(self, run: RunPaths, run_id: str, is_told_to_stop: Callable[[], bool]) -> None:
        self._run, self._run_id, self._is_told_to_stop = run, run_id, is_told_to_stop
        self._answer = Answer()
        self._look_again_at, self._max_age_s = float("-inf"), MAX_AGE_S
        self._judged: tuple[int, Gone | str | None] | None = None
        self._alive = False
        self._missing: set[float] = set()
        self._heartbeat = 0.0

    def live_job(self) -> JobPaths | None:
        if not self._run.current.is_file():
            return None
        job = self._run.job(read_json(self._run.current)["job"])
        if job.end.is_file() or not job.record.is_file():
            return None
        record = read_json(job.record)
        if record.get("folder", str(self._run.folder)) != str(self._run.folder):
            return None  # these results are a copy: the job is the original's
        if record["job_id"] is None:
            return self.adopt(job)
        # An old answer must not decide on whether there is something to attach to.
        self._hear(ask(self._run.slurm, newer_than=time.time()))
        said = None
        while not isinstance(look := self.look(job), Gone) and not self._alive:
            if look != said:
                name = self.named(job)
                say(f"{self._run_id}: {f'{name} {look}' if look else f'asking Slurm what became of {name}'}")
                said = look
            self._pause(self.poll_s)
        return job

    def look(self, job: JobPaths) -> Gone | str | None:
        if time.monotonic() >= self._look_again_at:
            self._hear(ask(self._run.slurm, max_age_s=self._max_age_s))
        # Hundreds of heads share a file system: between Slurm's answers nothing is read, and nothing judged anew.
        if self._judged is None or self._judged[0] != job.number:
            self._judged = job.number, self._judge(job)
        return self._judged[1]

    def _hear(self, answer: Answer) -> None:
        self._answer, self._judged = answer, None
        self._look_again_at, self._max_age_s = time.monotonic() + LOOK_EVERY_S, MAX_AGE_S

    def _judge(self, job: JobPaths) -> Gone | str | None:
        answer, record = self._answer, read_json(job.record)
        if answer.error:
            return f"is left alone while Slurm does not answer ({answer.error})"
        if answer.asked < record["submitted"] + 2.0:
            return None
        queued, ended = answer.jobs.get(record["job_id"]), answer.ended.get(record["job_id"])
        # A slurmctld that lost its state gives the same numbers again, to other jobs.
        queued = queued if queued and queued.name == record["name"] else None
        ended = ended if ended and ended.name == record["name"] else None
        self._alive = queued is not None and queued.state not in ENDED
        if queued is not None and self._alive:
            self._missing.clear()
            return _remark(queued)
        if ended is not None:
            return Gone(ended.state, ended)
        if queued is None and (found := answer.named(record["name"])):
            self._adopted(found)  # a site's sbatch said another number first
            return None
        if queued is None:
            want(self._run.slurm, record["job_id"])
            if self._beats():
                self._missing.clear()
                return "is unknown to Slurm, but still writes; the job is left alone while it does"
        else:
            # It has ended, but nobody confirms how.
            self._look_again_at, self._max_age_s = time.monotonic() + DOUBT_S, DOUBT_S
        self._missing.add(answer.asked)
        if len(self._missing) < _AGREEING[answer.accounting]:
            return None
        return Gone(queued.state if queued else "")

    def adopt(self, job: JobPaths) -> JobPaths | None:
        """Ask Slurm for the job by its name; None once it is certain that there is none."""
        record = read_json(job.record)
        give_up = time.monotonic() + DOWN_PATIENCE_S
        while True:
            answer = ask(self._run.slurm, newer_than=time.time())
            if found := answer.named(record["name"]):
                return self._adopted(found)
            if answer.error is None and (record.get("error") or time.time() - record["asked"] > IN_FLIGHT_S):
                return None
            if time.monotonic() > give_up:
                raise UserError(
                    f"{self._run_id}: Slurm has not answered for {DOWN_PATIENCE_S / 60:.0f} minutes "
                    f"({answer.error}); nothing was submitted. Start again when `squeue` answers"
                )
            say(f"{self._run_id}: {answer.error or 'an earlier submission may still be on its way'}; waiting")
            self._pause(LOOK_EVERY_S)

    def named(self, job: JobPaths) -> str:
        return f"Slurm job {read_json(job.record)['job_id']}"

    def _pause(self, seconds: float) -> None:
        """Wait before Slurm is asked again; a Ctrl-C is heard meanwhile."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._is_told_to_stop():
                raise UserError(
                    f"{self._run_id}: stopped while it waited for Slurm's answer. What was submitted goes on; start "
                    "the same command again to attach to it"
                )
            time.sleep(min(left, 0.5))

    def _adopted(self, found: list[QueueJob]) -> JobPaths:
        """Keep the job that runs, or else the oldest; end those that would only wait behind it."""
        kept = next((queued for queued in found if queued.state != "PENDING"), found[0])
        try:
            slurm.cancel([queued.job_id for queued in found if queued is not kept])
        except SlurmError as error:
            say(f"{self._run_id}: {error}")
        told = re.search(r"\bjob=(\d+)$", kept.comment)  # a site may have put its own words there
        job = self._run.job(int(told.group(1))) if told else self._run.jobs()[-1]
        write_json(
            job.record, {**read_json(job.record), "job_id": kept.job_id, "submitted": time.time(), "error": None}
        )
        write_json(self._run.current, {"job": job.number})
        _repair_pickle(job, kept.job_id)
        return job

    def _beats(self) -> bool:
        """Whether the newest attempt has shown a sign of life since the last look."""
        attempts = self._run.attempts()
        try:
            beat = attempts[-1].heartbeat.stat().st_mtime if attempts else 0.0
        except OSError:
            return False
        before, self._heartbeat = self._heartbeat, beat
        return beat != before and before != 0.0


def _remark(job: QueueJob) -> str | None:
    """What people should know of a job that is alive but does not run."""
    if job.state == "PENDING":
        reason = job.reason.strip("()")
        if reason in ("", "None"):
            return "waits"
        known = REASONS.get(reason.split(",")[0])  # `ReqNodeNotAvail, UnavailableNodes:gpu1`
        return f"waits: {reason}" + (f" ({known})" if known else "")
    if job.state in ("RUNNING", "COMPLETING", "CONFIGURING"):
        return None
    return f"is {job.state.lower().replace('_', ' ')}" + (f" ({job.reason})" if job.reason not in ("", "None") else "")


def _repair_pickle(job: JobPaths, job_id: str) -> None:
    """Give submitit's file of a submission its final name, where the submitter died before it could."""
    final = job.submitit / f"{job_id}_submitted.pkl"
    waiting = [file for file in job.submitit.glob("*.pkl") if not file.name.endswith("_result.pkl")]
    if not final.exists() and len(waiting) == 1:
        waiting[0].rename(final)
