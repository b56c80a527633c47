"""Keeps Slurm's last answer for all who wait: whoever finds it too old asks for everybody.

Hundreds of heads cost slurmctld one squeue per half-minute in all, and one sacct only when a job has ended. The answer
is a file in the folder of all results, so that heads and `rolloutbench status` share it across login nodes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import read_json, write_text
from workflow.cluster import slurm
from workflow.cluster.locks import try_lock
from workflow.cluster.slurm import ENDED, EndedJob, QueueJob, SlurmError

# A site may want fewer questions, a test more.
MAX_AGE_S = float(os.environ.get("ROLLOUTBENCH_SLURM_EVERY_S", "30"))
_OUR_NAME = re.compile(r".+\.[0-9a-f]{16}")
_FORGET_S = 7 * 86400.0
_NOT_WRITABLE = frozenset({errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM})


@dataclass(frozen=True, slots=True)
class Answer:
    """All of the user's jobs at one moment.

    `asked` is when Slurm last answered (0: never), `tried` when it was last asked, and `error` why it did not answer
    then; `accounting` is False where sacct did not answer although it was asked. The times are of whichever host asked:
    they say how old an answer is, for people and for the next question. What must be known to be newer than an event
    is told by `number`, which counts the questions of one `series`.
    """

    series: str = ""
    number: int = 0
    asked: float = 0.0
    tried: float = 0.0
    error: str | None = None
    accounting: bool = True
    jobs: dict[str, QueueJob] = field(default_factory=dict)
    ended: dict[str, EndedJob] = field(default_factory=dict)

    def jobs_named(self, name: str) -> list[QueueJob]:
        """The jobs of a name that have not ended, oldest first."""
        found = [job for job in self.jobs.values() if job.name == name and job.state not in ENDED]
        return sorted(found, key=lambda job: int(job.job_id))

    def may_be_older_than(self, mark: Sequence[Any] | None) -> bool:
        """Whether this was perhaps asked before the moment at which an answer's `mark` was taken."""
        # The question that was under way at that moment has the next number.
        return mark is not None and mark[0] == self.series and self.number < mark[1] + 2

    def is_newer_than(self, mark: Sequence[Any]) -> bool:
        """Whether this was certainly asked after that moment: an answer of another series does not tell."""
        return bool(self.series) and self.series == mark[0] and not self.may_be_older_than(mark)

    @property
    def mark(self) -> tuple[str, int]:
        """What a later answer is compared with."""
        return self.series, self.number


def ask(folder: Path, max_age_s: float = MAX_AGE_S, fresh: bool = False, wait: bool = False) -> Answer:
    """Slurm's answer, at most `max_age_s` old, or (`fresh`) asked after this call.

    While another process asks, the last answer is returned at once, unless a fresh one is wanted or the caller waits.
    """
    # One who holds the lock for longer than its commands may take is stopped, or on a node that died with it.
    give_up = time.monotonic() + 2 * slurm.PATIENCE_S + 5.0
    mark = read(folder).mark
    while True:
        answer = read(folder)
        if answer.is_newer_than(mark) if fresh else not _is_old(answer, max_age_s):
            return answer
        try:
            _share(folder.parent)
            lock = try_lock(folder / "lock")
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
            return _refresh(folder, answer)  # for oneself: nothing can be shared
        if lock is not None:
            with lock:
                again = read(folder)  # somebody may have asked between our look and our lock
                enough = again.is_newer_than(mark) if fresh else again.series and again.mark != answer.mark
                return again if enough else _refresh(folder, again)
        if time.monotonic() > give_up:
            return _refresh(folder, answer)
        if not fresh and not wait and not _is_old(answer, max_age_s + 2 * slurm.PATIENCE_S):
            return answer
        time.sleep(0.1)


def _share(folder: Path) -> None:
    """Whoever may write results may have a folder of answers among them."""
    folder.mkdir(parents=True, exist_ok=True)
    mode = stat.S_IMODE(folder.parent.stat().st_mode)
    if stat.S_IMODE(folder.stat().st_mode) != mode:
        with contextlib.suppress(PermissionError):  # another user's, who made it
            folder.chmod(mode)


def _is_old(answer: Answer, max_age_s: float) -> bool:
    return not 0 <= time.time() - answer.tried <= max_age_s


def read(folder: Path) -> Answer:
    """The last answer as it lies there; an empty one if there is none, or if it cannot be read."""
    try:
        raw = read_json(folder / "answer.json")
        jobs = {job_id: QueueJob(**job) for job_id, job in raw.pop("jobs").items()}
        ended = {job_id: EndedJob(**job) for job_id, job in raw.pop("ended").items()}
        return Answer(jobs=jobs, ended=ended, **raw)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Answer()


def want(folder: Path, job_id: str) -> None:
    """Ask accounting and slurmctld about a job that squeue has forgotten, with the next question to Slurm."""
    if job_id.isdigit():
        for name in ("wanted", "doubted"):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / job_id).touch()


def _refresh(folder: Path, last: Answer) -> Answer:
    last = dataclasses.replace(last, series=last.series or secrets.token_hex(4), number=last.number + 1)
    tried = time.time()
    try:
        answer = _with_accounting(folder, last, slurm.queue(), tried)
    except SlurmError as error:
        answer = dataclasses.replace(last, tried=tried, error=str(error))
    # On a full disk every head asks for itself until there is room again.
    with contextlib.suppress(OSError, UserError):
        write_text(folder / "answer.json", json.dumps(dataclasses.asdict(answer), separators=(",", ":")))
    return answer


def _with_accounting(folder: Path, last: Answer, jobs: dict[str, QueueJob], tried: float) -> Answer:
    jobs = jobs | _left_out(folder, jobs)
    wanted = _wanted(folder, tried)
    ours = {job.job_id for job in jobs.values() if job.state in ENDED and _OUR_NAME.fullmatch(job.name)}
    missing = (ours | {job_id for job_id in wanted if job_id not in jobs}) - set(last.ended)
    # What squeue shows as alive has not ended, whatever accounting said before: it was requeued.
    alive = {job_id for job_id, job in jobs.items() if job.state not in ENDED}
    ended = {job_id: job for job_id, job in last.ended.items() if job_id in (wanted | ours) - alive}
    accounting = last.accounting
    if missing:
        try:
            found = slurm.accounting(missing)
            # For a second or two accounting calls every new job `allocation`; and a number may be another's job's.
            ended |= {job_id: job for job_id, job in found.items() if _OUR_NAME.fullmatch(job.name)}
            accounting = True
        except SlurmError:
            accounting = False
    return dataclasses.replace(
        last, asked=tried, tried=tried, error=None, accounting=accounting, jobs=jobs, ended=ended
    )


def _left_out(folder: Path, jobs: dict[str, QueueJob]) -> dict[str, QueueJob]:
    """The jobs that squeue leaves out and slurmctld still has: no job is lost on squeue's word alone.

    A job stays doubted until squeue has it, or slurmctld has it no more. Raises `SlurmError` where slurmctld is silent.
    """
    found = {}
    for file in (folder / "doubted").glob("*"):
        if file.name not in jobs:
            try:
                job = slurm.living_job(file.name)
            except SlurmError as error:
                if slurm.may_pass(str(error)):
                    raise
                break  # a site without scontrol: squeue's word must do
            if job is not None:
                found[file.name] = job
                continue
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
    return found


def _wanted(folder: Path, now: float) -> set[str]:
    wanted = set()
    for file in (folder / "wanted").glob("*"):
        try:
            if now - file.stat().st_mtime > _FORGET_S:
                file.unlink()
            else:
                wanted.add(file.name)
        except FileNotFoundError:
            continue
    return wanted
