"""Watches a run's job for its head, over many looks: by this machine's locks, or by Slurm's answers.

It gathers the evidence that takes time (a heartbeat that moves, answers that agree) and has `job_state` judge it.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from common.errors import UserError
from common.files import read_json, write_json
from common.messages import print_message
from workflow.cluster import slurm
from workflow.cluster.history import attempts_of_job, read_object
from workflow.cluster.jobstate import Evidence, JobState, Life, Watch, filesystem_now, job_state, pulse_at
from workflow.cluster.locks import holder_note
from workflow.cluster.paths import AttemptPaths, JobPaths, RunPaths
from workflow.cluster.slurm import QueueJob, SlurmError
from workflow.cluster.slurm_answer import MAX_AGE_S, Answer, ask, want
from workflow.cluster.submissions import Submission, submission

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

REASONS = {
    "Priority": "other jobs go first",
    "Resources": "no node is free that fits",
    "BeginTime": "it was requeued and waits its two minutes",
    "Dependency": "another job of this run has not ended",
    "JobHeldUser": "held by its user; `scontrol release` lets it go on",
    "JobHeldAdmin": "held by an administrator",
    "launch failed requeued held": "its node could not start it; `scontrol release` lets it go on",
    "PartitionTimeLimit": "it asks for more time than the partition gives; lower runtime in the profile",
    "PartitionNodeLimit": "it asks for more nodes than the partition gives",
    "ReqNodeNotAvail": "the nodes it asks for are down or reserved",
    "QOSMaxJobsPerUserLimit": "your limit of running jobs is reached",
    "AssocGrpGRES": "your account's limit of GPUs is reached",
}


class Scheduler(ABC):
    """What a head must know of where its jobs run."""

    poll_s: ClassVar[float]
    detaches: ClassVar[bool]
    """Whether a head that is told to stop leaves its job running."""
    retries: ClassVar[bool]
    """Whether a job that was taken away is submitted again without being asked."""

    @abstractmethod
    def live_job(self) -> tuple[JobPaths, JobState] | None:
        """The run's last job, whatever it computes, and its state as far as waiting settles it; None without one."""

    @abstractmethod
    def look(self, job: JobPaths) -> JobState:
        """A job's state, as far as it is known by now."""

    def adopt(self, job: JobPaths) -> JobPaths | None:
        """The job that a submission without an answer has made after all."""
        return None

    def withdraw(self, job: JobPaths) -> None:
        """Take a job out of the queue, if there is one, whose run is finished: it would wait to find that out."""
        return None

    def label(self, job: JobPaths) -> str:
        """A job's name for people."""
        return f"job {job.number}"


class LocalScheduler(Scheduler):
    """Jobs on this machine: alive while they hold their run's lock."""

    poll_s: ClassVar[float] = 0.2
    detaches: ClassVar[bool] = False
    retries: ClassVar[bool] = False

    def __init__(self, run: RunPaths) -> None:
        self._run = run
        self._seen: dict[int, float] = {}
        self._files: dict[int, Submission] = {}
        self._began = time.monotonic()

    def live_job(self) -> tuple[JobPaths, JobState] | None:
        while (note := holder_note(self._run.live_lock)) == "":
            time.sleep(self.poll_s)  # its holder has just taken the lock, and is about to write its number
        if note is None:
            return None
        return (job := self._run.job(int(note))), self.look(job)

    def look(self, job: JobPaths) -> JobState:
        now = time.monotonic()
        holds = holder_note(self._run.live_lock) is not None
        # One that has begun had the lock, also where it ended between two looks.
        if holds or (job.number not in self._seen and attempts_of_job(self._run, job.number)):
            self._seen[job.number] = now
        # After the lock is free its holder has written end.json, or it was killed.
        seen = self._seen.get(job.number)
        silent_s, patience_s = (now - seen, 2.0) if seen else (now - self._began, START_PATIENCE_S)
        # Looked at five times a second: its files are read once, since only the lock tells whether it lives.
        if job.number not in self._files:
            self._files[job.number] = submission(job)
        return job_state(Evidence(self._files[job.number], holds_lock=holds, submitting=silent_s <= patience_s))


class SlurmScheduler(Scheduler):
    """Jobs in Slurm, known through the answer that all heads share."""

    poll_s: ClassVar[float] = 2.0
    detaches: ClassVar[bool] = True
    retries: ClassVar[bool] = True

    def __init__(self, run: RunPaths, run_id: str, leave_if_told: Callable[[], None]) -> None:
        self._run, self._run_id, self._leave_if_told = run, run_id, leave_if_told
        self._answer = Answer()
        self._look_again_at, self._max_age_s = float("-inf"), MAX_AGE_S
        self._job: int | None = None
        self._watch(0)

    def _watch(self, number: int) -> None:
        """Begin anew with a job: what was seen of another one says nothing of it."""
        if self._job != number:
            self._job = number
            self._state: JobState | None = None
            self._without: set[tuple[str, int]] = set()
            self._pulse = Watch(lambda: _newest(self._run, number))

    def live_job(self) -> tuple[JobPaths, JobState] | None:
        number = read_object(self._run.current).get("job")
        if number is None:
            return None
        job = self._run.job(int(number))
        files, now = submission(job), filesystem_now(self._run.folder)
        # Of a copy of results the job is the original's; one that has ended may have a trainer that still writes.
        if not job_state(
            Evidence(files, unavailable="not asked yet", pulse=pulse_at(self._run, job.number, now))
        ).alive:
            return None
        if files.job_id is None and not files.end:
            if (found := self.adopt(job)) is None:
                return None
            job = found
        # An old answer must not decide on whether there is something to attach to.
        self._watch(job.number)
        self._hear(ask(self._run.slurm, fresh=True))
        said = None
        while not (state := self.look(job)).known:
            name = self.label(job)
            words = f"{name} {remark(state)}" if state.note else f"asking Slurm what became of {name}"
            if words != said:
                print_message(f"{self._run_id}: {words}")
                said = words
            self._leave_if_told()
            time.sleep(self.poll_s)
        return job, state

    def look(self, job: JobPaths) -> JobState:
        self._watch(job.number)
        if time.monotonic() >= self._look_again_at:
            self._hear(ask(self._run.slurm, max_age_s=self._max_age_s))
        # Hundreds of heads share a file system: between Slurm's answers nothing is read, and nothing judged anew.
        if self._state is None:
            self._state = self._judged(job)
        return self._state

    def _hear(self, answer: Answer) -> None:
        self._answer, self._state = answer, None
        self._look_again_at, self._max_age_s = time.monotonic() + LOOK_EVERY_S, MAX_AGE_S

    def _judged(self, job: JobPaths) -> JobState:
        answer, files = self._answer, submission(job)
        if not files.record:
            raise UserError(
                f"{self._run_id}: {job.record} is gone, or of another folder: what became of its job cannot be known; "
                "start the same command again"
            )
        if files.end:
            self._look_again_at = time.monotonic() + self.poll_s
            return job_state(Evidence(files, pulse=self._pulse.look()))
        unavailable = f"is left alone while Slurm does not answer ({answer.error})" if answer.error else ""
        state = job_state(Evidence(files, answer=answer, unavailable=unavailable))
        if state.queued is not None and state.queued.job_id != files.job_id:
            self._adopted(answer.jobs_named(files.name))  # a site's sbatch said another number first
        if state.queued is not None or state.life in (Life.SILENT, Life.WAITING):
            self._without.clear()
            return state
        # Slurm does not have it alive: one answer is not believed, nor Slurm alone.
        self._without.add(answer.mark)
        want(self._run.slurm, str(files.job_id))
        self._look_again_at, self._max_age_s = time.monotonic() + DOUBT_S, DOUBT_S
        return job_state(Evidence(files, answer=answer, answers_without=len(self._without), pulse=self._pulse.look()))

    def adopt(self, job: JobPaths) -> JobPaths | None:
        """Ask Slurm for the job by its name; None once it is certain that there is none."""
        record = read_json(job.record)
        began = time.monotonic()
        while True:
            answer = ask(self._run.slurm, fresh=True)
            if found := answer.jobs_named(record["name"]):
                return self._adopted(found)
            waited_s = time.monotonic() - began
            if answer.error is None and (record.get("error") or waited_s > IN_FLIGHT_S):
                return None
            if waited_s > DOWN_PATIENCE_S:
                raise UserError(
                    f"{self._run_id}: Slurm has not answered for {DOWN_PATIENCE_S / 60:.0f} minutes "
                    f"({answer.error}); nothing was submitted. Start again when `squeue` answers"
                )
            print_message(f"{self._run_id}: {answer.error or 'an earlier submission may still be on its way'}; waiting")
            pause_until = time.monotonic() + LOOK_EVERY_S
            while time.monotonic() < pause_until:
                self._leave_if_told()
                time.sleep(0.5)

    def withdraw(self, job: JobPaths) -> None:
        # Slurm requeues a job whose node it has lost, while its trainer may finish the run there.
        name = str(read_json(job.record)["name"])
        if not _waiting(self._answer, name):
            return
        try:
            slurm.cancel(_waiting(ask(self._run.slurm, fresh=True), name))
        except SlurmError as error:
            print_message(f"{self._run_id}: {self.label(job)} is still in the queue, and ends when it begins: {error}")

    def label(self, job: JobPaths) -> str:
        return f"Slurm job {read_json(job.record)['job_id']}"

    def _adopted(self, found: list[QueueJob]) -> JobPaths:
        """Keep the job that runs, or else the oldest; end those that would only wait behind it."""
        kept = next((queued for queued in found if queued.state != "PENDING"), found[0])
        try:
            slurm.cancel([queued.job_id for queued in found if queued is not kept])
            # Where its output goes: a site may have replaced the comment.
            told = re.search(r"/jobs/(\d+)/submitit/", slurm.show_job(kept.job_id))
        except SlurmError as error:
            print_message(f"{self._run_id}: {error}")
            told = None
        job = self._run.job(int(told.group(1))) if told else self._run.jobs()[-1]
        write_json(
            job.record, {**read_json(job.record), "job_id": kept.job_id, "submitted": time.time(), "error": None}
        )
        write_json(self._run.current, {"job": job.number})
        return job


def _waiting(answer: Answer, name: str) -> list[str]:
    """The ids of a name's jobs that wait in the queue."""
    return [queued.job_id for queued in answer.jobs_named(name) if queued.state == "PENDING"]


def _newest(run: RunPaths, job: int) -> AttemptPaths | None:
    attempts = attempts_of_job(run, job)
    return attempts[-1] if attempts else None


def remark(state: JobState) -> str:
    """What people should know of a job that is alive but does not run; it follows the job's name."""
    if state.queued is not None:
        return _queued_remark(state.queued)
    if state.life is Life.DOUBTED:
        return f"{state.note}; asking again before it is called lost"
    return f"{state.note}; the job is left alone while it does" if state.life is Life.ABANDONED else state.note


def _queued_remark(job: QueueJob) -> str:
    if job.state == "PENDING":
        reason = job.reason.strip("()")
        if reason in ("", "None"):
            return "waits"
        known = REASONS.get(reason.split(",")[0])  # `ReqNodeNotAvail, UnavailableNodes:gpu1`
        return f"waits: {reason}" + (f" ({known})" if known else "")
    if job.state in ("RUNNING", "COMPLETING", "CONFIGURING"):
        return ""
    return f"is {job.state.lower().replace('_', ' ')}" + (f" ({job.reason})" if job.reason not in ("", "None") else "")
