"""Defines the paths of a run's files, for the launcher, the job and all commands (docs/files.md).

A *job* is one submission. It has one or several *attempts*: a requeued job begins another one.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from common.ownership import own_folder


class _File:
    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: _Folder, kind: type[_Folder]) -> Path:
        return owner.folder / self._name


@dataclass(frozen=True, slots=True)
class _Folder:
    folder: Path

    @property
    def number(self) -> int:
        return int(self.folder.name)


class JobPaths(_Folder):
    request = _File("order.json")  # the job's request, written before it is submitted
    record = _File("job.json")  # its name and id in the scheduler; first written before the submission, without an id
    end = _File("end.json")  # how the job ended; written once, by the job or by a launcher that found it gone
    stop = _File("stop")  # a request to end: `soon` (after the step, with a checkpoint) or `now`
    cancelled = _File("cancelled.json")  # who cancelled the job with `rolloutbench cancel`
    waits = _File("waits")  # for whom a job on this machine waits before it trains, in one line
    submitit = _File("submitit")  # submitit's own files: the script and the job's output
    setup_log = _File("setup.log")  # output of the site's setup script in the last life (workflow/head/set_up.sh)

    def nodes(self, life: str) -> Path:
        """The rendezvous folder of one life of a job on several nodes."""
        return self.folder / "nodes" / life


class AttemptPaths(_Folder):
    """The files of one life of a run."""

    request = _File("attempt.json")
    spec = _File("spec.json")  # the spec of this attempt; the run's own spec.json may be newer
    log = _File("log")
    metrics = _File("metrics.jsonl")
    console = _File("console.log")  # of an own command: what it printed
    done = _File("done.json")
    exit = _File("exit.json")  # how the trainer's process ended; written by the job that watched it
    heartbeat = _File("heartbeat")  # touched every few seconds by the job that watches the trainer


class RunPaths(_Folder):
    spec = _File("spec.json")
    done = _File("done.json")
    current = _File("job.json")  # the submission that counts: {"job": k}
    identity = _File("identity.json")  # the folder's identity, independent of its path (workflow/runs/jobs.py)
    life = _File("life.json")  # the life that trains this run; an earlier life ends when it reads of a newer one here
    launcher_lock = _File(".head.lock")  # held by the launcher of this run; a second launcher waits for it
    live_lock = _File(".live.lock")  # held by the job that trains this run; the kernel releases it when the job dies

    @property
    def experiment(self) -> Path:
        return self.folder.parent.parent

    @property
    def cancelled(self) -> Path:
        """Who cancelled the whole experiment; removed when snakemake starts again."""
        return self.experiment / "cancelled.json"

    @property
    def slurm(self) -> Path:
        """Slurm's last answer, shared by all launchers of the experiment."""
        return slurm_folder(self.experiment)

    def make_own(self) -> None:
        """Make the run's folders writable for this user alone; `NotOwnError` if another user owns one."""
        own_folder(self.folder, levels=2)
        for name in ("jobs", "attempts", "checkpoints"):
            with suppress(FileNotFoundError):
                own_folder(self.folder / name)

    def checkpoints(self, fingerprint: str, inputs_sha256: dict[str, str]) -> Path:
        """Shared by attempts of the same spec and inputs: other data or another model must not resume from it."""
        inputs = hashlib.sha256(json.dumps(inputs_sha256, sort_keys=True).encode()).hexdigest()
        return self.folder / "checkpoints" / f"{fingerprint[:12]}-{inputs[:8]}"

    def job(self, number: int) -> JobPaths:
        return JobPaths(self.folder / "jobs" / str(number))

    def jobs(self) -> list[JobPaths]:
        return [self.job(number) for number in _numbers(self.folder / "jobs")]

    def new_job(self) -> JobPaths:
        """The folder of a new submission; concurrent callers get different ones."""
        return self.job(_new_number(self.folder / "jobs"))

    def attempt(self, number: int) -> AttemptPaths:
        return AttemptPaths(self.folder / "attempts" / str(number))

    def attempts(self) -> list[AttemptPaths]:
        return [self.attempt(number) for number in _numbers(self.folder / "attempts")]

    def new_attempt(self) -> AttemptPaths:
        return self.attempt(_new_number(self.folder / "attempts"))


def slurm_folder(experiment: Path) -> Path:
    """The folder of Slurm's answers: they say which jobs are whose, and belong to the experiment's owner alone."""
    return experiment / ".slurm"


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
