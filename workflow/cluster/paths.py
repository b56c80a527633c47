"""Knows where a run's files lie: one object, used by the launcher, by the job and by those who look on (docs/files.md).

A *job* is one submission; it lives one or several *attempts*, since a job that is requeued begins another.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from workflow.cluster.users import user_name


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A folder that is called by a number."""

    folder: Path

    @property
    def number(self) -> int:
        return int(self.folder.name)


@dataclass(frozen=True, slots=True)
class JobPaths(_Numbered):
    """The files of one submission of a run."""

    @property
    def order(self) -> Path:
        """What the job is to do, written before it is submitted."""
        return self.folder / "order.json"

    @property
    def record(self) -> Path:
        """Its name and id in the scheduler; written before it is submitted, without an id, and after."""
        return self.folder / "job.json"

    @property
    def end(self) -> Path:
        """How the job finally ended: written once, by the job itself or by a head that found it gone."""
        return self.folder / "end.json"

    @property
    def stop(self) -> Path:
        """A request to end: `soon` (after the step, with a checkpoint) or `now`."""
        return self.folder / "stop"

    @property
    def cancelled(self) -> Path:
        """Who asked for the job to be cancelled, where it was asked through us."""
        return self.folder / "cancelled.json"

    @property
    def submitit(self) -> Path:
        """submitit's own files: the script, the job's own output."""
        return self.folder / "submitit"

    @property
    def setup_log(self) -> Path:
        """What the site's setup script said in the job's last life (workflow/cluster/set_up.sh)."""
        return self.folder / "setup.log"

    def nodes(self, life: str) -> Path:
        """Where the tasks of one life of a job on several nodes meet."""
        return self.folder / "nodes" / life


@dataclass(frozen=True, slots=True)
class AttemptPaths(_Numbered):
    """The files of one life of a run."""

    @property
    def order(self) -> Path:
        return self.folder / "attempt.json"

    @property
    def spec(self) -> Path:
        """What this attempt was told to run; the run's own spec.json may have moved on."""
        return self.folder / "spec.json"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def done(self) -> Path:
        return self.folder / "done.json"

    @property
    def exit(self) -> Path:
        """How the trainer's process ended, written by the job that watched it."""
        return self.folder / "exit.json"

    @property
    def heartbeat(self) -> Path:
        """Touched every few seconds by the job that watches the trainer."""
        return self.folder / "heartbeat"


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The files of one run."""

    folder: Path

    @property
    def spec(self) -> Path:
        return self.folder / "spec.json"

    @property
    def done(self) -> Path:
        return self.folder / "done.json"

    @property
    def current(self) -> Path:
        """Which submission counts: {"job": k}."""
        return self.folder / "job.json"

    @property
    def identity(self) -> Path:
        """Which folder this is, by whatever path it is reached (workflow/cluster/identity.py)."""
        return self.folder / "identity.json"

    @property
    def life(self) -> Path:
        """Which life of which job trains this run: written by one that Slurm has begun; another one's ends by it."""
        return self.folder / "life.json"

    @property
    def head_lock(self) -> Path:
        """Held by the launcher that cares for this run: two heads take turns."""
        return self.folder / ".head.lock"

    @property
    def live_lock(self) -> Path:
        """Held by the job that trains this run, for as long as it lives; the kernel lets go of it when it dies."""
        return self.folder / ".live.lock"

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
