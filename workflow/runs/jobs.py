"""Reads the files of a run's jobs, and Slurm's report on them from the shared answer."""

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
from workflow.runs.history import read_object
from workflow.runs.paths import JobPaths, RunPaths, slurm_folder
from workflow.slurm import shared_answer as slurm_answer
from workflow.slurm.shared_answer import MAX_AGE_S, Answer

# An older answer does not describe the present, whoever asked.
_STALE_S = 10 * MAX_AGE_S


@dataclass(frozen=True, slots=True)
class SlurmReport:
    """Slurm's answer, and why it does not describe the present; empty if it does."""

    answer: Answer = field(default_factory=Answer)
    unavailable: str = ""


@dataclass(frozen=True, slots=True)
class Submission:
    """A job of a run, from its files; `end` is empty until it is known."""

    paths: JobPaths
    request: dict[str, Any]
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
        """Its id in Slurm; empty without one."""
        return (self.job_id or "") if self.on_slurm else ""

    @property
    def run(self) -> RunPaths:
        return RunPaths(self.paths.folder.parents[1])

    @property
    def run_id(self) -> str:
        return self.run.folder.name

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"Slurm job {self.job_id}" if self.on_slurm else f"job {self.paths.number}"

    @property
    def on_slurm(self) -> bool:
        return self.record.get("cluster") == "slurm"


def last_submission(run: RunPaths) -> Submission | None:
    """The run's current job, if there is one."""
    number = read_object(run.current).get("job")
    if not isinstance(number, int) or not exists((job := run.job(number)).request):
        return None
    return submission(job)


def submission(job: JobPaths) -> Submission:
    # Read the end last: a job that ends meanwhile then counts as ended, never as one without a record.
    request, record = read_object(job.request), read_object(job.record)
    # In copied results the job belongs to the original: it is neither shown nor cancelled here.
    if not belongs_to(record, RunPaths(job.folder.parents[1])):
        record = {}
    return Submission(job, request, record, read_object(job.end))


# Slurm runs one job of a name at a time (singleton), and that name contains the identity of the run's folder: a second
# mount, a link or a renamed parent must not change it. A copy is another run: its folder has another inode and path.
def identity(run: RunPaths) -> str | None:
    """The identity of a run's folder, independent of its path; None without one, or if it is a copied original's."""
    stored = read_object(run.identity)
    here = run.folder.resolve()
    # Some file systems change their inodes with a mount: there the path decides.
    ours = stored.get("inode") == here.stat().st_ino or stored.get("folder") == str(here)
    return str(stored["token"]) if ours and "token" in stored else None


def make_identity(run: RunPaths) -> str:
    """The identity of a run's folder, created if it has none; only the holder of the launcher's lock may call it."""
    if (token := identity(run)) is None:
        token, here = secrets.token_hex(16), run.folder.resolve()
        write_json(run.identity, {"token": token, "inode": here.stat().st_ino, "folder": str(here)})
    return token


def belongs_to(record: dict[str, Any], run: RunPaths) -> bool:
    """Whether a job's record was written for this folder, not for one that it was copied from."""
    if "identity" in record:
        return bool(record["identity"] == identity(run))
    here = str(run.folder.resolve())
    return bool(record.get("folder", here) == here)


def slurm_report(experiment: Path, jobs: Iterable[Submission]) -> SlurmReport:
    """Slurm's report on the jobs that have not ended; Slurm is not asked if there are none."""
    open_jobs = [job for job in jobs if job.on_slurm and not job.end]
    if not open_jobs:
        return SlurmReport()
    owner = owner_of(experiment)
    folder = slurm_folder(experiment)
    if owner != os.getuid():
        # An answer contains one user's jobs: ours would lack theirs.
        answer, problem = slurm_answer.read(folder), f"{user_name(owner)} has not asked Slurm since"
    elif shutil.which("squeue") is None:
        answer, problem = slurm_answer.read(folder), "no Slurm on this machine; it was last asked at"
    else:
        answer, problem = _ask(folder, open_jobs), "Slurm has not answered since"
    if answer.error is None and time.time() - answer.asked < _STALE_S:
        return SlurmReport(answer)
    return SlurmReport(answer, f"{problem} {clock(answer.asked)}" if answer.asked else "Slurm does not answer")


def owner_of(path: Path) -> int:
    """The user id of a file's or folder's owner; ours if it is missing."""
    try:
        return path.stat().st_uid
    except OSError:
        return os.getuid()


def clock(when: float) -> str:
    """A time of day such as `16:20`, with the date if it is not today."""
    then = time.localtime(when)
    return time.strftime("%H:%M" if then[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M", then)


def _ask(folder: Path, jobs: Iterable[Submission]) -> Answer:
    """Slurm's answer of an acceptable age, also while another process asks."""
    answer = slurm_answer.ask(folder, wait=True)
    forgotten = [
        job.job_id
        for job in jobs
        if job.job_id and job.job_id not in answer.jobs and job.job_id not in answer.ended
        if not answer.may_be_older_than(job.record.get("answer")) and not (folder / "wanted" / job.job_id).exists()
    ]
    if answer.error or not forgotten:
        return answer
    # Once per such job, however often the status is read.
    try:
        for job_id in forgotten:
            slurm_answer.request_details(folder, job_id)
    except OSError:
        return answer  # without write access, squeue alone must suffice
    return slurm_answer.ask(folder, fresh=True)
