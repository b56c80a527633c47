"""Knows where a run's files lie: one object, used by the launcher, by the job and by those who look on (docs/files.md).

A *job* is one submission; it lives one or several *attempts*, since a job that is requeued begins another.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from common.files import user_name


class _File:
    """A file or folder by its name, below the folder of the object that has it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: _Folder, kind: type[_Folder]) -> Path:
        return owner.folder / self._name


@dataclass(frozen=True, slots=True)
class _Folder:
    folder: Path

    @property
    def number(self) -> int:
        """That of a folder which is called by a number."""
        return int(self.folder.name)


class JobPaths(_Folder):
    """The files of one submission of a run."""

    __slots__ = ()

    order = _File("order.json")
    """What the job is to do, written before it is submitted."""
    record = _File("job.json")
    """Its name and id in the scheduler; written before it is submitted, without an id, and after."""
    end = _File("end.json")
    """How the job finally ended: written once, by the job itself or by a head that found it gone."""
    stop = _File("stop")
    """A request to end: `soon` (after the step, with a checkpoint) or `now`."""
    cancelled = _File("cancelled.json")
    """Who asked for the job to be cancelled, where it was asked through us."""
    submitit = _File("submitit")
    """submitit's own files: the script, the job's own output."""
    setup_log = _File("setup.log")
    """What the site's setup script said in the job's last life (workflow/cluster/set_up.sh)."""

    def nodes(self, life: str) -> Path:
        """Where the tasks of one life of a job on several nodes meet."""
        return self.folder / "nodes" / life


class AttemptPaths(_Folder):
    """The files of one life of a run."""

    __slots__ = ()

    order = _File("attempt.json")
    spec = _File("spec.json")
    """What this attempt was told to run; the run's own spec.json may have moved on."""
    log = _File("log")
    metrics = _File("metrics.jsonl")
    done = _File("done.json")
    exit = _File("exit.json")
    """How the trainer's process ended, written by the job that watched it."""
    heartbeat = _File("heartbeat")
    """Touched every few seconds by the job that watches the trainer."""


class RunPaths(_Folder):
    """The files of one run."""

    __slots__ = ()

    spec = _File("spec.json")
    done = _File("done.json")
    current = _File("job.json")
    """Which submission counts: {"job": k}."""
    identity = _File("identity.json")
    """Which folder this is, by whatever path it is reached (workflow/cluster/submissions.py)."""
    life = _File("life.json")
    """Which life of which job trains this run: written by one that Slurm has begun; another one's ends by it."""
    head_lock = _File(".head.lock")
    """Held by the launcher that cares for this run: two heads take turns."""
    live_lock = _File(".live.lock")
    """Held by the job that trains this run, for as long as it lives; the kernel lets go of it when it dies."""

    @property
    def experiment(self) -> Path:
        return self.folder.parent.parent

    @property
    def cancelled(self) -> Path:
        """Who cancelled the whole experiment; removed when snakemake is started again."""
        return self.experiment / "cancelled.json"

    @property
    def slurm(self) -> Path:
        """What Slurm last said, shared by all of a user's heads of this checkout."""
        return slurm_folder(self.experiment.parent, user_name())

    def checkpoints(self, fingerprint: str, inputs_sha256: dict[str, str]) -> Path:
        """Shared by the attempts that compute the same: a spec on other data or another model must not resume here."""
        inputs = hashlib.sha256(json.dumps(inputs_sha256, sort_keys=True).encode()).hexdigest()
        return self.folder / "checkpoints" / f"{fingerprint[:12]}-{inputs[:8]}"

    def job(self, number: int) -> JobPaths:
        return JobPaths(self.folder / "jobs" / str(number))

    def jobs(self) -> list[JobPaths]:
        """All submissions so far, oldest first."""
        return [self.job(number) for number in _numbers(self.folder / "jobs")]

    def new_job(self) -> JobPaths:
        """The folder of another submission; two that ask at once get two."""
        return self.job(_new_number(self.folder / "jobs"))

    def attempt(self, number: int) -> AttemptPaths:
        return AttemptPaths(self.folder / "attempts" / str(number))

    def attempts(self) -> list[AttemptPaths]:
        """All attempts so far, oldest first."""
        return [self.attempt(number) for number in _numbers(self.folder / "attempts")]

    def new_attempt(self) -> AttemptPaths:
        """The folder of another attempt; two that ask at once get two."""
        return self.attempt(_new_number(self.folder / "attempts"))


def slurm_folder(results: Path, user: str) -> Path:
    """Where one user's answers of Slurm lie: they hold that user's jobs only."""
    return results / ".slurm" / user


def _numbers(folder: Path) -> list[int]:
    try:
        return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdigit())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _new_number(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        number = max(_numbers(folder), default=0) + 1
        try:
            (folder / str(number)).mkdir()
            return number
        except FileExistsError:
            continue
