"""Reads the files of a run's jobs, and what Slurm says of them: through the answer that all share, if it must be."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.files import user_name, write_json
from common.retry import exists
from workflow.cluster import slurm_answer
from workflow.cluster.history import read_object
from workflow.cluster.paths import JobPaths, RunPaths, slurm_folder
from workflow.cluster.slurm import ENDED, QueueJob
from workflow.cluster.slurm_answer import MAX_AGE_S, Answer

# An answer older than this tells nothing of now, whoever asked.
_STALE_S = 10 * MAX_AGE_S


@dataclass(frozen=True, slots=True)
class SlurmReport:
    """Slurm's answer, and why it tells nothing of now; nothing if it does."""

    answer: Answer = field(default_factory=Answer)
    unavailable: str = ""


@dataclass(frozen=True, slots=True)
class Submission:
    """The last job of a run, as its files have it; `end` is empty until it is known."""

    paths: JobPaths
    order: dict[str, Any]
    record: dict[str, Any]
    end: dict[str, Any]

    @property
    def job_id(self) -> str | None:
        return self.record.get("job_id")

    @property
    def name(self) -> str:
        return str(self.record.get("name", ""))

    @property
    def slurm_id(self) -> str:
        """Its id in Slurm; empty if it has none."""
        return (self.job_id or "") if self.on_slurm else ""

    @property
    def label(self) -> str:
        """Its name for people."""
        return f"Slurm job {self.job_id}" if self.on_slurm else f"job {self.paths.number}"

    @property
    def on_slurm(self) -> bool:
        return self.record.get("cluster") == "slurm"


def last_submission(run: RunPaths) -> Submission | None:
    """The job that counts, if the run has one."""
    number = read_object(run.current).get("job")
    if not isinstance(number, int) or not exists((job := run.job(number)).order):
        return None
    return submission(job)


def submission(job: JobPaths) -> Submission:
    """A job's files."""
    # The end last: a job that ends meanwhile is seen as ended, and never as one without a record.
    order, record = read_object(job.order), read_object(job.record)
    # In results that were copied the job is the original's, and not ours to look at or to cancel.
    if not is_of(record, RunPaths(job.folder.parents[1])):
        record = {}
    return Submission(job, order, record, read_object(job.end))


# Slurm runs one job of a name at a time (singleton), and the identity of a run's folder is part of that name: a second
# mount, a link or a renamed parent must not make a second name. A copy is another run: its folder has another inode, at
# another path.
def identity(run: RunPaths) -> str | None:
    """The identity of a run's folder, by whatever path it is reached; None without one, or with only its original's."""
    told = read_object(run.identity)
    here = run.folder.resolve()
    # Not every file system keeps its inodes over a mount: there the path must do.
    ours = told.get("inode") == here.stat().st_ino or told.get("folder") == str(here)
    return str(told["token"]) if ours and "token" in told else None


def make_identity(run: RunPaths) -> str:
    """The identity of a run's folder, given to it if it has none; for whoever holds the head's lock."""
    if (token := identity(run)) is None:
        token, here = secrets.token_hex(16), run.folder.resolve()
        write_json(run.identity, {"token": token, "inode": here.stat().st_ino, "folder": str(here)})
    return token


def is_of(record: dict[str, Any], run: RunPaths) -> bool:
    """Whether a job's record was written for this folder, not for one that it was copied from."""
    if "identity" in record:
        return bool(record["identity"] == identity(run))
    here = str(run.folder.resolve())
    return bool(record.get("folder", here) == here)


def slurm_report(experiment: Path, jobs: Iterable[Submission]) -> SlurmReport:
    """What Slurm says of jobs that have not ended; it is not asked if there are none."""
    open_jobs = [job for job in jobs if job.on_slurm and not job.end]
    if not open_jobs:
        return SlurmReport()
    owner = owner_of(experiment)
    folder = slurm_folder(experiment.parent, user_name(owner))
    if owner != os.getuid():
        # Slurm's answer is of one user's jobs: ours would tell nothing of theirs.
        answer, silence = slurm_answer.read(folder), f"{user_name(owner)} has not asked Slurm since"
    elif shutil.which("squeue") is None:
        answer, silence = slurm_answer.read(folder), "no Slurm on this machine; it was last asked at"
    else:
        answer, silence = _ask(folder, open_jobs), "Slurm has not answered since"
    if answer.error is None and time.time() - answer.asked < _STALE_S:
        return SlurmReport(answer)
    return SlurmReport(answer, f"{silence} {clock(answer.asked)}" if answer.asked else "Slurm does not answer")


def queued_job(job: Submission, answer: Answer) -> QueueJob | None:
    """A submission's job in Slurm, while it has not ended: by its name, since ids are used again."""
    found = answer.jobs_named(job.name) if job.name else []
    return next((one for one in found if one.job_id == job.job_id), found[0] if found else None)


def owner_of(path: Path) -> int:
    """The id of the user to whom a file or folder belongs; ours while it is not there."""
    try:
        return path.stat().st_uid
    except OSError:
        return os.getuid()


def ended_state(job: Submission, answer: Answer) -> str:
    """How squeue remembers a job that has ended, if it does."""
    queued = answer.jobs.get(job.job_id or "")
    return queued.state if queued is not None and queued.name == job.name and queued.state in ENDED else ""


def clock(when: float) -> str:
    """A moment for people: `16:20`, or with the day if it is not today's."""
    then = time.localtime(when)
    return time.strftime("%H:%M" if then[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M", then)


def _ask(folder: Path, jobs: Iterable[Submission]) -> Answer:
    """An answer that is not older than others would take it, also while somebody else asks."""
    answer = slurm_answer.ask(folder, wait=True)
    forgotten = [
        job.job_id
        for job in jobs
        if job.job_id and job.job_id not in answer.jobs and job.job_id not in answer.ended
        if not answer.may_be_older_than(job.record.get("answer")) and not (folder / "wanted" / job.job_id).exists()
    ]
    if answer.error or not forgotten:
        return answer
    # Once for each such job, however often somebody looks.
    try:
        for job_id in forgotten:
            slurm_answer.want(folder, job_id)
    except OSError:
        return answer  # where nothing can be written, squeue's word must do
    return slurm_answer.ask(folder, fresh=True)
