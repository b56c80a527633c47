"""Writes a run's order and submits its jobs: again while the scheduler is down, until the launcher is stopped."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import ROOT, last_lines, module_command, write_json
from common.messages import QUOTE, print_message
from common.ownership import read_own_json
from common.redaction import without_secrets
from trainers import Spread, driver_module
from workflow.head.train_rule import require_fit
from workflow.head.watch import Watch
from workflow.runs.locks import Lock
from workflow.runs.orders import Order, order_of, write_end
from workflow.runs.paths import AttemptPaths, RunPaths
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


def job_name(folder: Path, spec: dict[str, Any], inputs_sha256: dict[str, str]) -> str:
    """The job's name in Slurm: readable, and unique for a spec, its inputs and the run's folder."""
    key = [spec["fingerprint"], inputs_sha256, str(folder)]
    return f"{spec['run_id']}.{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]}"


class Submitter:
    def __init__(self, run: RunPaths, request: dict[str, Any], stop: LauncherStop, watch: Watch) -> None:
        self._run, self._request, self._stop, self._watch = run, request, stop, watch
        self._run_id = str(request["spec"]["run_id"])

    def new_order(self, count_from: int | None = None, avoid: Sequence[str] = ()) -> Order:
        """A new order: an earlier one's end counts no more, nor a request to stop its job.

        `count_from` is the first attempt whose progress counts, `avoid` are nodes to exclude.
        """
        self._require_space()
        self._require_fit()
        spec, inputs, here = self._request["spec"], self._request["inputs_sha256"], self._run.folder.resolve()
        order = {
            **self._request,
            "start": secrets.token_hex(8),
            "folder": str(here),
            "name": job_name(here, spec, inputs),
            "count_from": count_from or max((attempt.number for attempt in self._run.attempts()), default=0) + 1,
            "avoid": list(avoid),
            "job_ids": [],
            "run_id": spec["run_id"],
            "fingerprint": spec["fingerprint"],
            "checkpoint_dir": str(self._run.checkpoints(spec["fingerprint"], inputs)),
            "module": spec["job_module"],
            "spread": Spread.from_spec(spec),
            "env": spec["env"],
            "cwd": str(ROOT),
            "visible_gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }
        if order["spread"] is Spread.OWN:
            # The user's files as they are now; a module of the standard library.
            importlib.import_module(driver_module(order["module"])).keep(spec, self._run.folder)
        self._run.stop.unlink(missing_ok=True)
        write_json(self._run.order, order)
        return order_of(self._run)

    def submit(self, order: Order, lock: Lock) -> Order:
        """Submit a job of the order, and the order with its id; retry while the scheduler is down."""
        give_up = time.monotonic() + SUBMIT_PATIENCE_S
        pause_s = 5.0
        while True:
            self._require_not_cancelled(order)
            self._require_space()
            self._run_submit(lock)
            order = order_of(self._run)
            error = order.content.get("error") or ""
            if not error:
                break
            self._require_not_cancelled(order)  # the submission saw that, too
            if is_submit_limit(error):
                give_up = time.monotonic() + SUBMIT_PATIENCE_S  # the user's other jobs will end
            elif not may_pass(error) or time.monotonic() > give_up:
                write_end(self._run, order.start, {"kind": "not submitted", "detail": error, "told_by": "head"})
                raise UserError(
                    f"{self._run_id}: its job was not accepted: {error}\n"
                    f"requested: {json.dumps(self._request['site'])}; change set-resources in the profile"
                )
            print_message(f"{self._run_id}: {error}; trying again in {pause_s:.0f} s")
            self._stop.sleep(pause_s)
            pause_s = min(2 * pause_s, 120.0)
            if (queued := self._watch.state(order, fresh=True).queued) is not None:  # sbatch had submitted all the same
                write_json(self._run.order, {**order.content, "error": "", "job_ids": [queued.job_id]})
                order = order_of(self._run)
                break
        self._watch.submitted()
        attempts = self._run.attempts()
        resumes, steps = self._resume_note(attempts), self._request["spec"]["workload"].get("steps")
        if resumes or order.on_slurm:  # a local attempt begins at once and is reported then
            what = "submitted" if not order.on_slurm else f"submitted as {order.label}"
            print_message(f"{self._run_id}: {what}{resumes}{f', {steps} steps' if steps else ''}")
        return order

    def _run_submit(self, lock: Lock) -> None:
        """Run submitit in its own program, which outlives this launcher and keeps its lock until it has submitted."""
        self._stop.message = SUBMITTING
        with (self._run.folder / "submit.log").open("ab") as log:
            program = subprocess.Popen(
                [*module_command("workflow.head.submit"), str(self._run.folder)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
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
        folder = self._run.checkpoints(self._request["spec"]["fingerprint"], self._request["inputs_sha256"])
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

    def _require_not_cancelled(self, order: Order) -> None:
        by = order.end().get("by", "")
        with suppress(FileNotFoundError):
            by = by or read_own_json(self._run.cancelled)["by"]
        if by:
            raise UserError(f"{self._run_id}: {by} cancelled it meanwhile; start snakemake again to continue")


def log_tail(log: Path) -> str:
    return "\n".join(QUOTE + without_secrets(line) for line in last_lines(log, LOG_TAIL_LINES))
