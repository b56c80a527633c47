"""Shares Slurm's last answer between all waiting processes: a process that finds it too old asks for all of them.

Hundreds of launchers cost slurmctld one squeue per half-minute in total, and one sacct only when a job has ended. The
answer is a file in the experiment's folder, so launchers and `rolloutbench status` share it across login nodes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import write_text
from common.ownership import own_folder, read_own_json
from workflow.runs.locks import try_lock
from workflow.slurm import commands as slurm
from workflow.slurm.commands import ENDED, EndedJob, QueueJob, SlurmError

# A site may set it higher, a test lower.
MAX_AGE_S = float(os.environ.get("ROLLOUTBENCH_SLURM_EVERY_S", "30"))
_OUR_NAME = re.compile(r".+\.[0-9a-f]{16}")
_FORGET_S = 7 * 86400.0
_NOT_WRITABLE = frozenset({errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM})


@dataclass(frozen=True, slots=True)
class Answer:
    """All of the user's jobs at one moment.

    `asked`: when Slurm last answered (0: never). `tried`: when it was last asked. `error`: why it did not answer then.
    `accounting`: False if sacct was asked and did not answer. The times are those of the host that asked; they only
    give the answer's age. `number` counts the queries of one `series`: it orders answers and events.
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
        """The living jobs of a name, oldest first."""
        found = [job for job in self.jobs.values() if job.name == name and job.state not in ENDED]
        return sorted(found, key=lambda job: int(job.job_id))

    def may_be_older_than(self, mark: Sequence[Any] | None) -> bool:
        """Whether the query may have preceded the moment when `mark` was taken from an answer."""
        # The query that was under way at that moment has the next number.
        return mark is not None and mark[0] == self.series and self.number < mark[1] + 2

    def is_newer_than(self, mark: Sequence[Any]) -> bool:
        """Whether the query certainly followed that moment; answers of another series cannot be compared."""
        return bool(self.series) and self.series == mark[0] and not self.may_be_older_than(mark)

    @property
    def mark(self) -> tuple[str, int]:
        """The position of this answer, to compare later ones with."""
        return self.series, self.number


def ask(folder: Path, max_age_s: float = MAX_AGE_S, fresh: bool = False, wait: bool = False) -> Answer:
    """Slurm's answer, at most `max_age_s` old or, with `fresh`, asked after this call.

    While another process asks, this returns the last answer at once, unless `fresh` or `wait` is set.
    """
    # A process that holds the lock for longer than its commands may take is stopped, or on a dead node.
    give_up = time.monotonic() + 2 * slurm.PATIENCE_S + 5.0
    mark = read(folder).mark
    while True:
        answer = read(folder)
        if answer.is_newer_than(mark) if fresh else not _is_old(answer, max_age_s):
            return answer
        try:
            folder.mkdir(parents=True, exist_ok=True)
            own_folder(folder)
            lock = try_lock(folder / "lock")
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
            return _refresh(folder, answer)  # for this process only: nothing can be shared
        if lock is not None:
            with lock:
                again = read(folder)  # another process may have asked before we got the lock
                enough = again.is_newer_than(mark) if fresh else again.series and again.mark != answer.mark
                return again if enough else _refresh(folder, again)
        if time.monotonic() > give_up:
            return _refresh(folder, answer)
        if slurm.time_left() <= 0:
            return answer
        if not fresh and not wait and not _is_old(answer, max_age_s + 2 * slurm.PATIENCE_S):
            return answer
        time.sleep(0.1)


def _is_old(answer: Answer, max_age_s: float) -> bool:
    return not 0 <= time.time() - answer.tried <= max_age_s


def read(folder: Path) -> Answer:
    """The last answer on disk; an empty one if it is missing or cannot be read."""
    try:
        raw = read_own_json(folder / "answer.json")
        jobs = {job_id: QueueJob(**job) for job_id, job in raw.pop("jobs").items()}
        ended = {job_id: EndedJob(**job) for job_id, job in raw.pop("ended").items()}
        return Answer(jobs=jobs, ended=ended, **raw)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Answer()


def request_details(folder: Path, job_id: str) -> None:
    """Have the next query ask accounting and slurmctld about a job that squeue has forgotten."""
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
    # On a full disk every process asks for itself until there is room again.
    with contextlib.suppress(OSError, UserError):
        write_text(folder / "answer.json", json.dumps(dataclasses.asdict(answer), separators=(",", ":")))
    return answer


def _with_accounting(folder: Path, last: Answer, jobs: dict[str, QueueJob], tried: float) -> Answer:
    jobs = jobs | _left_out(folder, jobs)
    wanted = _wanted(folder, tried)
    ours = {job.job_id for job in jobs.values() if job.state in ENDED and _OUR_NAME.fullmatch(job.name)}
    missing = (ours | {job_id for job_id in wanted if job_id not in jobs}) - set(last.ended)
    # A job that squeue shows as alive was requeued, even if accounting reported its end before.
    alive = {job_id for job_id, job in jobs.items() if job.state not in ENDED}
    ended = {job_id: job for job_id, job in last.ended.items() if job_id in (wanted | ours) - alive}
    accounting = last.accounting
    if missing:
        try:
            found = slurm.accounting(missing)
            # For a second or two accounting names every new job `allocation`; and an id may be another user's job.
            ended |= {job_id: job for job_id, job in found.items() if _OUR_NAME.fullmatch(job.name)}
            accounting = True
        except SlurmError:
            if slurm.time_left() <= 0:
                raise  # it had no time to answer
            accounting = False
    return dataclasses.replace(
        last, asked=tried, tried=tried, error=None, accounting=accounting, jobs=jobs, ended=ended
    )


def _left_out(folder: Path, jobs: dict[str, QueueJob]) -> dict[str, QueueJob]:
    """The jobs that slurmctld has and squeue omits: squeue alone never proves a job's end.

    A job stays doubted until squeue lists it or slurmctld forgets it. Raises `SlurmError` if slurmctld does not answer.
    """
    found = {}
    for file in (folder / "doubted").glob("*"):
        if file.name not in jobs:
            try:
                job = slurm.living_job(file.name)
            except SlurmError as error:
                if slurm.may_pass(str(error)):
                    raise
                break  # a site without scontrol: squeue alone must suffice
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
