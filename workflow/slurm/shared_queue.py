"""Shares squeue's last answer between an experiment's processes: whoever finds it too old asks for all of them."""

from __future__ import annotations

import dataclasses
import errno
import os
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from common.files import write_json
from common.ownership import read_own_json
from workflow.runs.locks import try_lock
from workflow.slurm import commands as slurm
from workflow.slurm.commands import ENDED, QueueJob, SlurmError

# A site may set it higher, a test lower.
MAX_AGE_S = float(os.environ.get("ROLLOUTBENCH_SLURM_EVERY_S", "30"))
_NOT_WRITABLE = frozenset({errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM})


@dataclass(frozen=True, slots=True)
class Queue:
    """All of the user's jobs when squeue was asked, by the clock of the host that asked; `error`: why it said nothing.

    A clock that is wrong costs a queue entry, never a step.
    """

    asked: float = 0.0
    error: str | None = None
    jobs: tuple[QueueJob, ...] = ()

    def living(self, name: str) -> list[QueueJob]:
        """The living jobs of a name, those that wait last, else the oldest first."""
        found = [job for job in self.jobs if job.name == name and job.state not in ENDED]
        return sorted(found, key=lambda job: (job.state == "PENDING", int(job.job_id)))

    def ended(self, name: str, ids: Collection[str]) -> QueueJob | None:
        """The newest of these jobs that slurmctld remembers and that has ended, if it has the name."""
        found = [job for job in self.jobs if job.job_id in ids and job.name == name and job.state in ENDED]
        return max(found, key=lambda job: int(job.job_id), default=None)


def read(file: Path) -> Queue:
    """The last answer on disk; an empty one if it is missing or cannot be read."""
    try:
        raw = read_own_json(file)
        return Queue(raw["asked"], raw["error"], tuple(QueueJob(**job) for job in raw["jobs"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Queue()


def ask(file: Path, since: float) -> Queue:
    """squeue's answer to a question of that time (`time.time()`) or later; waits while another process asks."""
    # A process that holds the lock for longer than its command may take is stopped, or on a dead node.
    give_up = time.monotonic() + 2 * slurm.PATIENCE_S
    while True:
        if since <= (queue := read(file)).asked <= time.time() or slurm.time_left() <= 0:
            return queue
        try:
            lock = try_lock(file.with_suffix(".lock"))
        except OSError as error:
            if error.errno not in _NOT_WRITABLE:
                raise
            return _asked_now()  # for this process only: nothing can be shared
        if lock is not None:
            with lock:
                if since <= (queue := read(file)).asked <= time.time():
                    return queue
                queue = _asked_now()
                # On a full disk every process asks for itself until there is room again.
                with suppress(OSError, UserError):
                    write_json(file, dataclasses.asdict(queue))
                return queue
        if time.monotonic() > give_up:
            return _asked_now()
        time.sleep(0.1)


def _asked_now() -> Queue:
    asked = time.time()
    try:
        return Queue(asked, None, tuple(slurm.queue().values()))
    except SlurmError as error:
        return Queue(asked, str(error))
