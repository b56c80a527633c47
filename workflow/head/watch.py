"""Watches the job of a run's order: by this machine's lock, or by its name in squeue's answer.

It never proves that a job is dead: a job that one answer of squeue lacks is submitted again. A wrong answer costs a
queue entry, which waits behind the job of its name, and ends before it trains.
"""

from __future__ import annotations

import time
from typing import Any

from common.files import tail
from common.messages import print_message
from workflow.runs.ends import end_from_slurm
from workflow.runs.history import attempts_of_order, begins_anew, read_object
from workflow.runs.orders import JobState, Order, Presence, local_job, slurm_job
from workflow.runs.paths import AttemptPaths, RunPaths
from workflow.slurm import commands as slurm
from workflow.slurm.commands import EndedJob, SlurmError, explain_wait
from workflow.slurm.shared_queue import MAX_AGE_S, Queue, ask

# A job needs a moment between its submission and taking the live lock.
START_PATIENCE_S = 60.0
# So long a job that was accepted and was in none of squeue's answers is waited for (10 min): a killed slurmctld forgets
# what it has not saved.
_UNSEEN_S = 20 * MAX_AGE_S
# Accounting is a few seconds late.
_ACCOUNTING_TRIES, _ACCOUNTING_S = 4, 3.0


class LocalWatch:
    """The job on this machine."""

    poll_s = 0.2
    is_cluster = False  # jobs outlive their launcher; a job that the scheduler took away is submitted again

    def __init__(self, run: RunPaths) -> None:
        self._run = run
        self._began, self._seen = time.monotonic(), False

    def submitted(self) -> None:
        """A job was submitted just now."""
        self._began, self._seen = time.monotonic(), False

    def state(self, order: Order, fresh: bool = False) -> JobState:
        """The state of an order's job now."""
        found = local_job(self._run)
        self._seen = (
            self._seen or found.job is Presence.RUNNING or bool(order and attempts_of_order(self._run, order.content))
        )
        young = time.monotonic() - self._began < START_PATIENCE_S
        if found.job is Presence.NONE and not fresh and not self._seen and young:
            return JobState(Presence.WAITING)
        return found

    def last_words(self, order: Order) -> dict[str, Any]:
        """How a job ended that wrote no end itself."""
        attempts = attempts_of_order(self._run, order.content)
        return {"kind": "vanished", "told_by": "head", "attempt": attempts[-1].number if attempts else None}

    def withdraw(self, order: Order) -> None:
        """Remove what waits for a run that is decided."""


class SlurmWatch:
    """The job in Slurm, by the answer that all launchers of the experiment share."""

    poll_s = 2.0
    is_cluster = True

    def __init__(self, run: RunPaths) -> None:
        self._run = run
        self._queue = Queue()
        self._submitted_at, self._began = 0.0, time.monotonic()
        self._seen = True  # by an earlier launcher, as far as this one knows
        self._living: set[str] = set()  # the jobs that it has seen alive since: sbatch may have printed another number

    def submitted(self) -> None:
        """A job was submitted just now: only answers from now on tell of it."""
        self._submitted_at, self._began, self._seen, self._living = time.time(), time.monotonic(), False, set()

    def state(self, order: Order, fresh: bool = False) -> JobState:
        """The state of an order's job by an answer of an acceptable age, or by one from now on."""
        now = time.time()
        since = now if fresh else max(self._submitted_at, now - MAX_AGE_S)
        if not since <= self._queue.asked <= now:
            # A moment after a submission there is no hurry; a shared answer comes by itself.
            if not fresh and 0 <= now - self._submitted_at < MAX_AGE_S / 3:
                return JobState(Presence.WAITING)
            self._queue = ask(self._run.queue, since)
        found = slurm_job(self._queue, order.name)
        listed = any(job.job_id == order.job_id and job.name == order.name for job in self._queue.jobs)
        if found.job in (Presence.WAITING, Presence.RUNNING) or listed or (not self._seen and _lives(order)):
            self._seen = True
            self._living |= {found.queued.job_id} if found.queued is not None else set()
        elif found.job is Presence.NONE and not self._seen and time.monotonic() - self._began < _UNSEEN_S:
            return JobState(Presence.UNKNOWN, "was accepted and is in none of squeue's answers yet")
        return found

    def last_words(self, order: Order) -> dict[str, Any]:
        """How a job ended that wrote no end itself: by squeue, which remembers it for minutes, and by accounting."""
        listed = self._queue.ended(order.name, {*order.content["job_ids"], *self._living})
        job_id = listed.job_id if listed is not None else order.job_id
        ended = _accounted(job_id, order.name, listed is not None) if job_id else None
        state = ended.state if ended is not None else listed.state if listed is not None else ""
        lives = _lives(order, job_id)
        newest = read_object(lives[-1].exit) | {"attempt": lives[-1].number} if lives else None
        since = int(read_object(lives[-1].request).get("output_bytes") or 0) if lives else 0
        end = end_from_slurm(state, ended, newest, self._output(since))
        return {**end, "kind": "time limit"} if state == "TIMEOUT" and begins_anew(order.content["spec"]) else end

    def _output(self, since: int) -> str:
        """What the last job itself printed in its last life: Slurm appends the output of every life."""
        files = [file for folder in self._run.submissions()[-1:] for file in folder.glob("*.out")]
        return "".join(tail(file, since) for file in files)

    def withdraw(self, order: Order) -> None:
        # Slurm requeues a job whose node it has lost, while its trainer may finish the run there. A job that has begun
        # since this answer, and has decided the run, ends by itself: accounting must not call it cancelled.
        if not any(job.state == "PENDING" for job in self._queue.living(order.name)):
            return
        try:
            slurm.cancel_waiting(order.name)
        except SlurmError as error:
            print_message(f"{self._run.folder.name}: {order.label} ends as soon as it begins: {error}")


Watch = LocalWatch | SlurmWatch


def _lives(order: Order, job_id: str = "") -> list[AttemptPaths]:
    """The attempts of a job in Slurm, by default of the last one that was submitted."""
    wanted = job_id or order.job_id
    found = attempts_of_order(order.run, order.content) if order else []
    return [one for one in found if (read_object(one.request).get("slurm") or {}).get("job_id") == wanted]


def _accounted(job_id: str, name: str, ended: bool) -> EndedJob | None:
    """A job's end by accounting; None without one. Where squeue says that it has ended, accounting says so soon."""
    for _ in range(_ACCOUNTING_TRIES if ended else 1):
        try:
            found = slurm.accounting([job_id]).get(job_id)
        except SlurmError:
            return None
        # For a moment accounting names every new job `allocation`; and Slurm uses an id again.
        if found is not None and found.name == name:
            return found
        time.sleep(_ACCOUNTING_S if ended else 0)
    return None


def remark(state: JobState) -> str:
    """Why a job does not run normally, empty if it does; the words follow the job's name."""
    if (queued := state.queued) is None:
        return state.note
    reason = queued.reason.strip("()")
    if state.job is Presence.WAITING:
        known = explain_wait(reason)
        return "waits" + (f": {reason}" if reason not in ("", "None") else "") + (f" ({known})" if known else "")
    return (
        f"is {state.note}" + (f" ({reason})" if state.note and reason not in ("", "None") else "") if state.note else ""
    )
