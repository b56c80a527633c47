"""Submits a run's job for its launcher: again while the scheduler is down, until it is stopped."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import ROOT, last_lines, write_json_once
from common.messages import QUOTE, print_message
from common.ownership import read_own_json
from common.redaction import without_secrets
from workflow.head.train_rule import require_fit
from workflow.head.watch import Scheduler
from workflow.runs.history import steps_of
from workflow.runs.locks import Lock
from workflow.runs.paths import AttemptPaths, JobPaths, RunPaths
from workflow.slurm.commands import is_submit_limit, may_pass

MIN_FREE_GIB = 0.5
LOG_TAIL_LINES = 15
# Limit for a scheduler that does not answer; a restart takes a minute or two.
SUBMIT_PATIENCE_S = 1800.0

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


class Submitter:
    def __init__(
        self,
        run: RunPaths,
        request: dict[str, Any],
        scheduler: Scheduler,
        stop: LauncherStop,
    ) -> None:
        self._run, self._request, self._scheduler, self._stop = run, request, scheduler, stop
        spec = request["spec"]
        self._run_id, self._fingerprint = str(spec["run_id"]), str(spec["fingerprint"])
        self._steps = steps_of(spec)

    def submit(self, lock: Lock, count_from: int | None) -> JobPaths:
        """Submit a new job; retry while the scheduler is down."""
        self._require_space()
        self._require_fit()
        attempts = self._run.attempts()
        first = attempts[-1].number + 1 if attempts else 1
        request = self._request | {"count_from": count_from or first}
        give_up = time.monotonic() + SUBMIT_PATIENCE_S
        pause_s = 5.0
        while True:
            self._require_not_cancelled()
            self._run_submit(request, lock)
            job = self._run.job(read_own_json(self._run.current)["job"])
            record = read_own_json(job.record)
            if record["job_id"] is not None:
                break
            # A failed sbatch may have submitted all the same: ask Slurm before every retry.
            error = record.get("error") or "the submission ended without a result"
            if (found := self._scheduler.adopt(job)) is not None:
                job = found
                break
            self._require_not_cancelled()  # the submission saw that, too
            if is_submit_limit(error):
                give_up = time.monotonic() + SUBMIT_PATIENCE_S  # the user's other jobs will end
            elif not may_pass(error) or time.monotonic() > give_up:
                write_json_once(
                    job.end, {"kind": "not submitted", "detail": error, "time": time.time(), "told_by": "head"}
                )
                raise UserError(
                    f"{self._run_id}: its job was not accepted: {error}\n"
                    f"requested: {json.dumps(self._request['site'])}; change set-resources in the profile"
                )
            print_message(f"{self._run_id}: {error}; trying again in {pause_s:.0f} s")
            self._stop.sleep(pause_s)
            pause_s = min(2 * pause_s, 120.0)
            if (found := self._scheduler.adopt(job)) is not None:
                job = found
                break
        resumes = self._resume_note(attempts)
        steps = "" if self._steps is None else f", {self._steps} steps"
        if resumes or self._scheduler.is_cluster:  # a local attempt begins at once and is reported then
            print_message(f"{self._run_id}: submitted as {self._scheduler.label(job)}{resumes}{steps}")
        return job

    def _run_submit(self, request: dict[str, Any], lock: Lock) -> None:
        """Run submitit in its own program, which outlives this launcher and keeps its lock until it has submitted."""
        self._stop.message = SUBMITTING
        with (self._run.folder / "submit.log").open("ab") as log, tempfile.TemporaryFile() as file:
            file.write(json.dumps(request).encode())  # complete before the program starts, in case this launcher dies
            file.seek(0)
            program = subprocess.Popen(
                [sys.executable, "-P", "-m", "workflow.head.submit", str(self._run.folder)],
                cwd=ROOT,
                stdin=file,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[lock.descriptor],
            )
            while program.poll() is None:  # `wait` would miss a Ctrl-C that comes just before it
                time.sleep(0.1)
        self._stop.message = ASKING
        if program.returncode != 0:
            tail = log_tail(self._run.folder / "submit.log")
            raise UserError(f"{self._run_id}: the submission failed\nlog: {self._run.folder / 'submit.log'}\n{tail}")

    def _resume_note(self, attempts: list[AttemptPaths]) -> str:
        if not attempts:
            return ""
        folder = self._run.checkpoints(self._fingerprint, self._request["inputs_sha256"])
        exists = folder.is_dir() and any(folder.iterdir())
        start = "resumes from a checkpoint" if exists else "starts again: no checkpoint"
        return f" (after attempt {attempts[-1].number}; {start})"

    def _require_space(self) -> None:
        free_gib = shutil.disk_usage(self._run.folder).free / 2**30
        if free_gib < MIN_FREE_GIB:
            raise UserError(
                f"{self._run_id}: {free_gib:.2f} GiB free in {self._run.folder}, but logs and checkpoints need at "
                f"least {MIN_FREE_GIB} GiB; free some space and start again (nothing was started)"
            )

    def _require_fit(self) -> None:
        try:
            remark = require_fit(self._request)
        except UserError as error:
            raise UserError(f"{self._run_id}: {error}") from None
        if remark:
            print_message(f"{self._run_id}: {remark}")

    def _require_not_cancelled(self) -> None:
        with suppress(FileNotFoundError):
            by = read_own_json(self._run.cancelled)["by"]
            raise UserError(
                f"{self._run_id}: {by} cancelled the experiment meanwhile; start snakemake again to continue"
            )


def log_tail(log: Path) -> str:
    return "\n".join(QUOTE + without_secrets(line) for line in last_lines(log, LOG_TAIL_LINES))
