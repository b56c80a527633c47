"""Reads the signs of life of an attempt: its heartbeat, by one look or over time."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from workflow.runs.paths import AttemptPaths, RunPaths

HEARTBEAT_S = 5.0
SILENT_S = 3 * HEARTBEAT_S  # a heartbeat that has not moved for this long is silent


class HeartbeatWatch:
    """Follows an attempt's heartbeat over several looks, comparing its time only with itself.

    It does not depend on the clocks of other hosts: this process measures the time since the heartbeat moved.
    """

    def __init__(self, attempt: AttemptPaths | None) -> None:
        self._attempt = attempt
        self._beat: float | None = None
        self._since: float | None = None

    def quiet(self) -> bool:
        """Whether no trainer of the attempt can be running; files that cannot be read are no silence."""
        if self._attempt is None:
            return True
        began = time.monotonic()
        try:
            beat, exited = modified(self._attempt.heartbeat), modified(self._attempt.exit) is not None
        except OSError:
            self._since = None
            return False
        now = time.monotonic()
        # If the file system hung, nothing was watched meanwhile.
        if self._since is None or beat != self._beat or now - began > HEARTBEAT_S:
            self._beat, self._since = beat, now
        return exited or now - self._since >= SILENT_S


def silence_s(attempt: AttemptPaths, now: float) -> float:
    """Seconds since an attempt's last sign of life; `now` is the file system's time."""
    signs = [modified(file) for file in (attempt.heartbeat, attempt.metrics, attempt.request)]
    return max(0.0, now - max((sign for sign in signs if sign is not None), default=0.0))


def still_writes(run: RunPaths, now: float) -> bool:
    """Whether a run's newest attempt looks alive; `now` is the file system's time."""
    newest = next(reversed(run.attempts()), None)
    return newest is not None and modified(newest.exit) is None and silence_s(newest, now) < 2 * SILENT_S


def filesystem_now(folder: Path) -> float:
    """The time of the clock that stamps a folder's files; this host's time if nothing can be written there."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()


def modified(file: Path) -> float | None:
    """When a file was last written, by the file system's clock; None if it is missing."""
    try:
        return file.stat().st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return None
