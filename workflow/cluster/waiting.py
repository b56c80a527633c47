"""What a head tells and hears while it waits: a job's progress, and that it shall stop."""

from __future__ import annotations

import sys
import time

from common.files import read_json
from common.messages import end_bar, print_message, show_bar
from workflow.cluster.ends import ENDED_BY_SLURM
from workflow.cluster.history import read_object
from workflow.cluster.paths import AttemptPaths, JobPaths, RunPaths
from workflow.cluster.progress import Progress

NOTHING_STARTED = "stopped while it waited; nothing was started"
ASKING = "stopped while it waited for Slurm; what was submitted goes on. Start the same command again to attach to it"
SUBMITTING = (
    "stopped while its job was being submitted, which goes on by itself. Start the same command again to attach to it; "
    "`rolloutbench cancel` ends it"
)


class Detached(BaseException):
    """A head was told to stop; what runs in Slurm goes on. No handler of errors may swallow it."""


class LauncherStop:
    """How often a head was told to stop, and what that means at this moment."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.requests = 0
        self.means = NOTHING_STARTED

    def leave_if_told(self) -> None:
        if self.requests:
            raise Detached(f"{self._run_id}: {self.means}")

    def sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.leave_if_told()
            time.sleep(0.2)


class JobReporter:
    """Tells of one job; `tell` is called again and again.

    `live`: progress is a bar that is drawn over; else a line for each part of the run, however long it takes.
    """

    def __init__(self, run: RunPaths, run_id: str, steps: int, job: JobPaths, live: bool = False) -> None:
        self._run, self._run_id, self._steps, self._job, self._live = run, run_id, steps, job, live
        self._attempt: AttemptPaths | None = None
        self._ended: AttemptPaths | None = None
        self._progress: Progress | None = None
        self._latest: str | None = None
        self._told_part = 0

    def tell(self, last: bool = False) -> None:
        """Say what is new; of progress what is worth a line, and the last step's."""
        attempts = self._run.attempts()
        newest = attempts[-1] if attempts else None
        has_ended = self._attempt is not None and self._attempt != self._ended and self._attempt.exit.is_file()
        self._tell_progress(last or has_ended)
        if has_ended:
            self._tell_end()
        if newest and newest != self._attempt and read_object(newest.order).get("job") == self._job.number:
            self._attempt, self._progress, self._told_part = newest, Progress(newest.metrics, self._steps), 0
            host = read_json(newest.order)["host"]
            print_message(f"{self._run_id}: attempt {newest.number} runs on {host}; log: {newest.log}")
            self._tell_progress(last)

    def _tell_progress(self, at_once: bool) -> None:
        if self._progress is None:
            return
        self._latest = self._progress.poll() or self._latest
        if self._latest and self._live:
            utf8 = (sys.stderr.encoding or "").lower().startswith("utf")
            show_bar(f"{self._run_id}  {self._progress.bar(*() if utf8 else '#.')}")
            self._latest = None
        elif self._latest and (at_once or self._progress.part > self._told_part):
            print_message(f"{self._run_id}: {self._latest}")
            self._latest, self._told_part = None, self._progress.part
        if at_once:
            end_bar()

    def _tell_end(self) -> None:
        """How an attempt ended that is not the last; the last one's end is the head's own message."""
        assert self._attempt is not None
        self._ended = self._attempt
        end = read_object(self._attempt.exit)
        if end.get("again") or end.get("cause") == ENDED_BY_SLURM:
            why = end.get("detail") or end.get("cause")
            print_message(
                f"{self._run_id}: attempt {self._attempt.number} {end['kind']} after step {end['last_step']}: {why}"
            )
