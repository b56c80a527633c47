"""Defines the paths of a run's files, for the launcher, the job and all commands (docs/files.md).

A run has one *order*: what it is to train now. Each submission of the order is a *job*; each life of a job that trains
is an *attempt*.
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
    order = _File("order.json")  # what to train now, and the jobs submitted for it; written by the launcher
    end = _File("end.json")  # how an order ended; it counts for the order that it names only
    stop = _File("stop")  # a request to a job to end: `soon` (after the step, with a checkpoint) or `now`
    waits = _File("waits")  # for whom a job on this machine waits before it trains, in one line
    setup_log = _File("setup.log")  # output of the site's setup script in the last life (workflow/head/set_up.sh)
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
    def queue(self) -> Path:
        """squeue's last answer, shared by all launchers of the experiment."""
        return queue_file(self.experiment)

    def make_own(self) -> None:
        """Make the run's folders writable for this user alone; `NotOwnError` if another user owns one."""
        own_folder(self.folder, levels=2)
        for name in ("submitit", "attempts", "checkpoints"):
            with suppress(FileNotFoundError):
                own_folder(self.folder / name)

    def checkpoints(self, fingerprint: str, inputs_sha256: dict[str, str]) -> Path:
        """Shared by attempts of the same spec and inputs: other data or another model must not resume from it."""
        inputs = hashlib.sha256(json.dumps(inputs_sha256, sort_keys=True).encode()).hexdigest()
        return self.folder / "checkpoints" / f"{fingerprint[:12]}-{inputs[:8]}"

    def nodes(self, life: str) -> Path:
        """The rendezvous folder of one life of a job on several nodes."""
        return self.folder / "nodes" / life

    def submission(self, number: int) -> Path:
        """submitit's files of one submission: the script, the function that the job calls, the job's output."""
        return self.folder / "submitit" / str(number)

    def submissions(self) -> list[Path]:
        return [self.submission(number) for number in _numbers(self.folder / "submitit")]

    def new_submission(self) -> Path:
        return self.submission(_new_number(self.folder / "submitit"))

    def attempt(self, number: int) -> AttemptPaths:
        return AttemptPaths(self.folder / "attempts" / str(number))

    def attempts(self) -> list[AttemptPaths]:
        return [self.attempt(number) for number in _numbers(self.folder / "attempts")]

    def new_attempt(self) -> AttemptPaths:
        return self.attempt(_new_number(self.folder / "attempts"))


def queue_file(experiment: Path) -> Path:
    """squeue's last answer: it says which jobs are whose, and belongs to the experiment's owner alone."""
    return experiment / ".squeue.json"


def _numbers(folder: Path) -> list[int]:
    try:
        return sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdigit())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _new_number(folder: Path) -> int:
    """The number of a new folder in this one; concurrent callers get different ones."""
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        number = max(_numbers(folder), default=0) + 1
        try:
            (folder / str(number)).mkdir()
            return number
        except FileExistsError:
            continue
