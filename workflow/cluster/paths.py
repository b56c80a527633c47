"""Where do a run's files lie? One object, used by the launcher and by the job."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class AttemptPaths:
    """The files of one life of a run (docs/files.md)."""

    folder: Path

    @property
    def number(self) -> int:
        return int(self.folder.name)

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
    def stop(self) -> Path:
        """A request to end: `soon` (after the step, with a checkpoint) or `now`."""
        return self.folder / "stop"

    @property
    def submitit(self) -> Path:
        return self.folder / "submitit"


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
    def job(self) -> Path:
        return self.folder / "job.json"

    @property
    def head_lock(self) -> Path:
        """Held by the launcher that cares for this run: two heads take turns."""
        return self.folder / ".head.lock"

    @property
    def live_lock(self) -> Path:
        """Held by the job that trains this run, for as long as it lives; the kernel lets go of it when it dies."""
        return self.folder / ".live.lock"

    def checkpoints(self, fingerprint: str, inputs_sha256: dict[str, str]) -> Path:
        """Shared by the attempts that compute the same: a spec on other data or another model must not resume here."""
        inputs = hashlib.sha256(json.dumps(inputs_sha256, sort_keys=True).encode()).hexdigest()
        return self.folder / "checkpoints" / f"{fingerprint[:12]}-{inputs[:8]}"

    def attempt(self, number: int) -> AttemptPaths:
        return AttemptPaths(self.folder / "attempts" / str(number))

    def attempts(self) -> list[AttemptPaths]:
        """All attempts so far, oldest first."""
        folder = self.folder / "attempts"
        names = [entry.name for entry in folder.iterdir() if entry.name.isdigit()] if folder.is_dir() else []
        return [self.attempt(number) for number in sorted(map(int, names))]
