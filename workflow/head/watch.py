"""Watches a run's job for its launcher over time: by this machine's locks, or by Slurm's answers.

It collects the evidence that takes time (a moving heartbeat, several answers that agree) and passes it to `job_state`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from common.errors import UserError
from common.files import write_json
from common.messages import print_message
from common.ownership import read_own_json
from workflow.runs.history import attempts_of_job, read_object
from workflow.runs.job_state import Evidence, HeartbeatWatch, JobState, Life, filesystem_now, job_state, pulse_at
from workflow.runs.jobs import Submission, submission
from workflow.runs.locks import holder_note
from workflow.runs.paths import JobPaths, RunPaths
from workflow.slurm import commands as slurm
from workflow.slurm.commands import QueueJob, SlurmError, explain_wait
from workflow.slurm.shared_answer import MAX_AGE_S, Answer, ask, request_details

# A job needs a moment between its submission and taking the live lock.
START_PATIENCE_S = 60.0
# An sbatch of a dead launcher may still be under way: allow a minute, more than Slurm's own MessageTimeout.
IN_FLIGHT_S = 2 * MAX_AGE_S
# The shared answer is read more often than it is renewed: usually another process renews it.
READ_EVERY_S = MAX_AGE_S / 3
# The same while squeue shows that a job has ended and accounting does not know it yet.
DOUBT_S = max(MAX_AGE_S / 6, 3.0)
# A launcher waits this long for a Slurm that does not answer before it may submit; a restart takes a minute or two.
DOWN_PATIENCE_S = 1800.0


class LocalScheduler:
    """A run's jobs on this machine: alive while they hold their run's lock."""

    poll_s = 0.2
    is_cluster = False  # jobs outlive their launcher; a job that the scheduler took away is submitted again

    def __init__(self, run: RunPaths) -> None:
        self._run = run
        self._seen: dict[int, float] = {}
        self._files: dict[int, Submission] = {}
        self._asked: dict[int, float] = {}

    def live_job(self) -> tuple[JobPaths, JobState] | None:
        """The run's last job, of any configuration, and its state once that is conclusive; None without one."""
        while (note := holder_note(self._run.live_lock)) == "":
            time.sleep(self.poll_s)  # its holder has just taken the lock, and is about to write its number
        if note is None:
            return None
        return (job := self._run.job(int(note))), self.current_state(job)

    def current_state(self, job: JobPaths) -> JobState:
        """A job's state, as far as it is known now."""
        now = time.monotonic()
        holds = holder_note(self._run.live_lock) is not None
        # A job with an attempt has had the lock, even if it ended between two checks.
        if holds or (job.number not in self._seen and attempts_of_job(self._run, job.number)):
            self._seen[job.number] = now
        # Once the lock is free, its holder has written end.json or was killed.
        seen = self._seen.get(job.number)
        # The launcher may be much older than its job: it waited for another launcher or for an earlier job.
        asked = self._asked.setdefault(job.number, now)
        silent_s, patience_s = (now - seen, 2.0) if seen else (now - asked, START_PATIENCE_S)
        # Read the files only once, at five checks a second: only the lock shows whether the job is alive.
        if job.number not in self._files:
            self._files[job.number] = submission(job)
        return job_state(Evidence(self._files[job.number], holds_lock=holds, submitting=silent_s <= patience_s))

    def adopt(self, job: JobPaths) -> JobPaths | None:
        """The job that an unanswered submission has created after all."""
        return None

    def withdraw(self, job: JobPaths) -> None:
        """Remove a job of a finished run from the queue."""

    def label(self, job: JobPaths) -> str:
        return f"job {job.number}"


class SlurmScheduler:
    """A run's jobs in Slurm, known through the answer that all launchers share."""

    poll_s = 2.0
    is_cluster = True

    def __init__(self, run: RunPaths, run_id: str, leave_if_asked: Callable[[], None]) -> None:
        self._run, self._run_id, self._leave_if_asked = run, run_id, leave_if_asked
        self._answer = Answer()
        self._read_again_at, self._max_age_s = float("-inf"), MAX_AGE_S
        self._job: int | None = None
        self._watch(0)

    def _watch(self, number: int) -> None:
        """Discard the evidence on another job."""
        if self._job != number:
            self._job = number
            self._state: JobState | None = None
            self._without: set[tuple[str, int]] = set()
            self._heartbeat = HeartbeatWatch(lambda: next(reversed(attempts_of_job(self._run, number)), None))

    def live_job(self) -> tuple[JobPaths, JobState] | None:
        number = read_object(self._run.current).get("job")
        if number is None:
            return None
        job = self._run.job(int(number))
        files, now = submission(job), filesystem_now(self._run.folder)
        # In copied results the job belongs to the original. A job that has ended may have a trainer that still writes.
        evidence = Evidence(files, unavailable="not asked yet", pulse=pulse_at(self._run, job.number, now))
        if not job_state(evidence).alive:
            return None
        if files.job_id is None and not files.end:
            if (found := self.adopt(job)) is None:
                return None
            job = found
        # Whether there is a job to attach to must not depend on an old answer.
        self._watch(job.number)
        self._use(ask(self._run.slurm, fresh=True))
        last_message = None
        while not (state := self.current_state(job)).known:
            name = self.label(job)
            message = f"{name} {remark(state)}" if state.note else f"asking Slurm about {name}"
            if message != last_message:
                self._print(message)
                last_message = message
            self._leave_if_asked()
            time.sleep(self.poll_s)
        return job, state

    def _print(self, message: str) -> None:
        print_message(f"{self._run_id}: {message}")

    def current_state(self, job: JobPaths) -> JobState:
        self._watch(job.number)
        if time.monotonic() >= self._read_again_at:
            self._use(ask(self._run.slurm, max_age_s=self._max_age_s))
        # Hundreds of launchers share a file system: between Slurm's answers nothing is read or decided again.
        if self._state is None:
            self._state = self._judge(job)
        return self._state

    def _use(self, answer: Answer) -> None:
        self._answer, self._state = answer, None
        self._read_again_at, self._max_age_s = time.monotonic() + READ_EVERY_S, MAX_AGE_S

    def _judge(self, job: JobPaths) -> JobState:
        answer, files = self._answer, submission(job)
        if not files.record:
            raise UserError(
                f"{self._run_id}: {job.record} is missing, or belongs to another folder; the state of its job is "
                "unknown; start the same command again"
            )
        if files.end:
            self._read_again_at = time.monotonic() + self.poll_s
            return job_state(Evidence(files, pulse=self._heartbeat.check()))
        unavailable = f"is left alone while Slurm does not answer ({answer.error})" if answer.error else ""
        state = job_state(Evidence(files, answer=answer, unavailable=unavailable))
        if state.queued is not None and state.queued.job_id != files.job_id:
            self._adopted(answer.jobs_named(files.name))  # a site's sbatch printed another number first
        if state.queued is not None or state.life in (Life.SILENT, Life.WAITING):
            self._without.clear()
            return state
        # Slurm does not have it alive: neither one answer nor Slurm alone proves its end.
        self._without.add(answer.mark)
        request_details(self._run.slurm, str(files.job_id))
        self._read_again_at, self._max_age_s = time.monotonic() + DOUBT_S, DOUBT_S
        pulse = self._heartbeat.check()
        return job_state(Evidence(files, answer=answer, answers_without=len(self._without), pulse=pulse))

    def adopt(self, job: JobPaths) -> JobPaths | None:
        """Ask Slurm for the job by its name; None once it is certain that there is none."""
        record = read_own_json(job.record)
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
            self._print(f"{answer.error or 'an earlier submission may still be under way'}; waiting")
            pause_until = time.monotonic() + READ_EVERY_S
            while time.monotonic() < pause_until:
                self._leave_if_asked()
                time.sleep(0.5)

    def withdraw(self, job: JobPaths) -> None:
        # Slurm requeues a job whose node it has lost, while its trainer may finish the run there.
        name = str(read_own_json(job.record)["name"])
        if not _pending(self._answer, name):
            return
        try:
            slurm.cancel(_pending(ask(self._run.slurm, fresh=True), name))
        except SlurmError as error:
            self._print(f"{self.label(job)} is still in the queue, and ends as soon as it begins: {error}")

    def label(self, job: JobPaths) -> str:
        return f"Slurm job {read_own_json(job.record)['job_id']}"

    def _adopted(self, found: list[QueueJob]) -> JobPaths:
        """Keep the running job, or else the oldest; cancel those that would only wait behind it."""
        kept = next((queued for queued in found if queued.state != "PENDING"), found[0])
        try:
            slurm.cancel([queued.job_id for queued in found if queued is not kept])
            # Read the submission's number from the output path: a site may have replaced the comment.
            number = re.search(r"/jobs/(\d+)/submitit/", slurm.show_job(kept.job_id))
        except SlurmError as error:
            self._print(str(error))
            number = None
        job = self._run.job(int(number.group(1))) if number else self._run.jobs()[-1]
        write_json(
            job.record, {**read_own_json(job.record), "job_id": kept.job_id, "submitted": time.time(), "error": None}
        )
        write_json(self._run.current, {"job": job.number})
        return job


Scheduler = LocalScheduler | SlurmScheduler


def _pending(answer: Answer, name: str) -> list[str]:
    return [queued.job_id for queued in answer.jobs_named(name) if queued.state == "PENDING"]


def remark(state: JobState) -> str:
    """Why a living job does not run normally, empty if it does; the words follow the job's name."""
    if (job := state.queued) is None:
        if state.life is Life.DOUBTED:
            return f"{state.note}; asking again before it counts as lost"
        return f"{state.note}; the job is left alone meanwhile" if state.life is Life.ABANDONED else state.note
    if job.state == "PENDING":
        reason = job.reason.strip("()")
        if reason in ("", "None"):
            return "waits"
        known = explain_wait(reason)
        return f"waits: {reason}" + (f" ({known})" if known else "")
    if job.state in ("RUNNING", "COMPLETING", "CONFIGURING"):
        return ""
    return f"is {job.state.lower().replace('_', ' ')}" + (f" ({job.reason})" if job.reason not in ("", "None") else "")
