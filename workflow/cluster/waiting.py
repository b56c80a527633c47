"""Reports a job's progress while its launcher waits, and holds the launcher's stop requests."""

from __future__ import annotations

import sys
import time

from common.files import read_json
from common.messages import end_bar, print_message, show_bar
from workflow.cluster.ends import ENDED_BY_SLURM
from workflow.cluster.history import read_object
from workflow.cluster.paths import AttemptPaths, JobPaths, RunPaths
from workflow.cluster.progress import Progress

NOTHING_STARTED = "stopped while waiting; nothing was started"
ASKING = "stopped while waiting for Slurm; submitted jobs continue. Start the same command again to attach to them"
SUBMITTING = (
    "stopped while its job was being submitted; the submission continues. Start the same command again to attach to "
    "it; `rolloutbench cancel` ends it"
)


class Detached(BaseException):
    """The launcher was asked to stop; jobs in Slurm continue. No handler of errors may catch it."""


class LauncherStop:
    """The number of stop requests to a launcher, and the message with which it leaves."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.requests = 0
        self.message = NOTHING_STARTED

    def leave_if_asked(self) -> None:
        if self.requests:
            raise Detached(f"{self._run_id}: {self.message}")

    def sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.leave_if_asked()
            time.sleep(0.2)


class JobReporter:
    """Reports on one job whenever `report` is called.

    With `live` the progress is a bar that is redrawn; otherwise it is a line for each part of the run.
    """

    def __init__(self, run: RunPaths, run_id: str, steps: int, job: JobPaths, live: bool = False) -> None:
        self._run, self._run_id, self._steps, self._job, self._live = run, run_id, steps, job, live
        self._attempt: AttemptPaths | None = None
        self._ended: AttemptPaths | None = None
        self._progress: Progress | None = None
        self._latest: str | None = None
        self._reported_part = 0

    def report(self, last: bool = False) -> None:
        """Print a new attempt, its end, and progress that is worth a line."""
        attempts = self._run.attempts()
        newest = attempts[-1] if attempts else None
        has_ended = self._attempt is not None and self._attempt != self._ended and self._attempt.exit.is_file()
        self._report_progress(last or has_ended)
        if has_ended:
            self._report_end()
        if newest and newest != self._attempt and read_object(newest.order).get("job") == self._job.number:
            self._attempt, self._progress, self._reported_part = newest, Progress(newest.metrics, self._steps), 0
            host = read_json(newest.order)["host"]
            print_message(f"{self._run_id}: attempt {newest.number} runs on {host}; log: {newest.log}")
            self._report_progress(last)

    def _report_progress(self, at_once: bool) -> None:
        if self._progress is None:
            return
        self._latest = self._progress.poll() or self._latest
        if self._latest and self._live:
            utf8 = (sys.stderr.encoding or "").lower().startswith("utf")
            show_bar(f"{self._run_id}  {self._progress.bar(*() if utf8 else '#.')}")
            self._latest = None
        elif self._latest and (at_once or self._progress.part > self._reported_part):
            print_message(f"{self._run_id}: {self._latest}")
            self._latest, self._reported_part = None, self._progress.part
        if at_once:
            end_bar()

    def _report_end(self) -> None:
        """The end of an attempt that is followed by another; the launcher reports the last one's end."""
        assert self._attempt is not None
        self._ended = self._attempt
        end = read_object(self._attempt.exit)
        if end.get("again") or end.get("cause") == ENDED_BY_SLURM:
            why = end.get("detail") or end.get("cause")
            print_message(
                f"{self._run_id}: attempt {self._attempt.number} {end['kind']} after step {end['last_step']}: {why}"
            )
