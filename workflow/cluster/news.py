"""Reports a job's progress while a head waits for it: new attempts, how they ended, and their steps."""

from __future__ import annotations

import time

from common.files import read_json
from common.messages import say
from workflow.cluster.ends import ENDED_BY_SLURM
from workflow.cluster.history import read_object
from workflow.cluster.paths import AttemptPaths, JobPaths, RunPaths
from workflow.cluster.progress import Progress

PROGRESS_EVERY_S = 2.0


class News:
    """Tells of one job; `tell` is called again and again."""

    def __init__(self, run: RunPaths, run_id: str, steps: int, job: JobPaths) -> None:
        self._run, self._run_id, self._steps, self._job = run, run_id, steps, job
        self._attempt: AttemptPaths | None = None
        self._ended: AttemptPaths | None = None
        self._progress: Progress | None = None
        self._latest: str | None = None
        self._told_at = 0.0

    def tell(self, last: bool = False) -> None:
        """Say what is new; at most a line of progress every few seconds, except for the last one."""
        attempts = self._run.attempts()
        newest = attempts[-1] if attempts else None
        has_ended = self._attempt is not None and self._attempt != self._ended and self._attempt.exit.is_file()
        self._tell_progress(last or has_ended)
        if has_ended:
            self._tell_end()
        if newest and newest != self._attempt and read_object(newest.order).get("job") == self._job.number:
            self._attempt, self._progress = newest, Progress(newest.metrics, self._steps)
            host = read_json(newest.order)["host"]
            say(f"{self._run_id}: attempt {newest.number} runs on {host}; log: {newest.log}")
            self._tell_progress(last)

    def _tell_progress(self, at_once: bool) -> None:
        if self._progress is not None:
            self._latest = self._progress.poll() or self._latest
        if self._latest and (at_once or time.monotonic() - self._told_at > PROGRESS_EVERY_S):
            say(f"{self._run_id}: {self._latest}")
            self._latest, self._told_at = None, time.monotonic()

    def _tell_end(self) -> None:
        """How an attempt ended that is not the last; the last one's end is the head's own message."""
        assert self._attempt is not None
        self._ended = self._attempt
        end = read_object(self._attempt.exit)
        if end.get("again") or end.get("cause") == ENDED_BY_SLURM:
            why = end.get("detail") or end.get("cause")
            say(f"{self._run_id}: attempt {self._attempt.number} {end['kind']} after step {end['last_step']}: {why}")
