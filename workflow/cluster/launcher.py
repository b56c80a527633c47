"""See to it that one run is trained: submit or attach, wait, verify.

    python -m workflow.cluster.launcher RUN_FOLDER --spec JSON --inputs inputs.json --stack verify.json --cpus N

Called by the `train` rule. What it promises:
- a run that is finished (its fingerprint, its inputs) is never trained again, whatever became of Snakemake's own files;
- at most one job of a run lives at a time: a second head waits, and a head that finds a live job attaches to it;
- success is the attempt's own done.json, never an exit code alone;
- nothing of an earlier attempt is deleted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import submitit

from analysis.errors import UserError
from workflow.cluster.job import POLL_S, run_attempt
from workflow.cluster.locks import Lock, holder_note, try_lock
from workflow.cluster.paths import AttemptPaths, RunPaths
from workflow.cluster.progress import Progress
from workflow.files import ROOT, read_json, write_json, write_text
from workflow.messages import reporting_errors, say
from workflow.trainers import JOB_MODULES

MIN_FREE_GIB = 0.5
LOG_TAIL_LINES = 15
# A job needs a moment between its submission and its taking of the live lock.
START_PATIENCE_S = 60.0
PROGRESS_EVERY_S = 2.0
# submitit's local executor has a time limit; a run on this machine has none.
_NO_LIMIT_MIN = 60 * 24 * 365


class Launcher:
    """One head for one run."""

    def __init__(self, run: RunPaths, spec: dict[str, Any], inputs: Path, stack: Path, cpus: int) -> None:
        self.run, self.spec, self.inputs, self.stack, self.cpus = run, spec, inputs, stack, cpus
        self.run_id, self.fingerprint = str(spec["run_id"]), str(spec["fingerprint"])
        self.inputs_sha256 = _inputs_sha256(inputs)
        self._stop_requests = 0

    def ensure_done(self) -> None:
        """Return when the run is finished and its done.json stands; a `UserError` says why it cannot be."""
        with self._head_lock():
            write_json(self.run.spec, self.spec)
            finished = self.finished_attempt()
            if finished is not None:
                say(f"{self.run_id}: already finished (attempt {finished.number}); nothing to do")
            else:
                finished = self._train()
            write_text(self.run.done, finished.done.read_text(encoding="utf-8"))

    def _head_lock(self) -> Lock:
        """The lock that makes this head the one that cares for the run, after any other head."""
        waiting = False
        while (lock := try_lock(self.run.head_lock)) is None:
            if not waiting:
                say(f"{self.run_id}: another head cares for this run; waiting for it")
                waiting = True
            if self._stop_requests:
                raise self._stopped_waiting()
            time.sleep(POLL_S)
        return lock

    def _stopped_waiting(self) -> UserError:
        return UserError(f"{self.run_id}: stopped while it waited; nothing was started")

    def finished_attempt(self) -> AttemptPaths | None:
        """The newest attempt that finished this very run: same fingerprint, same data, same model, all steps."""
        for attempt in reversed(self.run.attempts()):
            if attempt.done.is_file() and self._problem_of(attempt) is None:
                return attempt
        return None

    def _problem_of(self, attempt: AttemptPaths) -> str | None:
        """Why an attempt's done.json does not finish this run; None if it does."""
        try:
            done = read_json(attempt.done)
        except (ValueError, OSError) as error:
            return f"it cannot be read ({error})"
        if not isinstance(done, dict):
            return "it holds no object"
        wanted = {
            "fingerprint": self.fingerprint,
            "attempt": attempt.number,
            "last_step": self.spec["workload"]["steps"],
            "inputs": self.inputs_sha256,
        }
        for key, value in wanted.items():
            if done.get(key) != value:
                return f"its {key} is {done.get(key)!r}, wanted {value!r}"
        return None

    def _train(self) -> AttemptPaths:
        while (attempt := self._live_attempt()) and not self._computes_this(attempt):
            say(f"{self.run_id}: attempt {attempt.number}, of another configuration, is still training; waiting for it")
            self._wait(attempt)
            if self._stop_requests:
                raise self._stopped_waiting()
        if attempt is None:
            attempt = self._submit()
        else:
            say(f"{self.run_id}: attaching to attempt {attempt.number}, which is running")
        while True:
            self._wait(attempt)
            end = read_json(attempt.exit) if attempt.exit.is_file() else {"kind": "vanished"}
            if end["kind"] == "duplicate" and (live := self._live_attempt()):
                attempt = live
                say(f"{self.run_id}: attaching to attempt {attempt.number}, which was quicker")
                continue
            return self._verified(attempt, end)

    def _live_attempt(self) -> AttemptPaths | None:
        """The attempt whose job is alive, if any is."""
        while (note := holder_note(self.run.live_lock)) == "":
            time.sleep(POLL_S)  # its holder has just taken the lock, and is about to write its number
        return None if note is None else self.run.attempt(int(note))

    def _computes_this(self, attempt: AttemptPaths) -> bool:
        """Whether an attempt was ordered for this very spec and these very inputs."""
        order = read_json(attempt.order)
        return bool(order["fingerprint"] == self.fingerprint and order["inputs_sha256"] == self.inputs_sha256)

    def _submit(self) -> AttemptPaths:
        free_gib = shutil.disk_usage(self.run.folder).free / 2**30
        if free_gib < MIN_FREE_GIB:
            raise UserError(
                f"{self.run_id}: {free_gib:.2f} GiB free in {self.run.folder}, at least {MIN_FREE_GIB} GiB is needed "
                "for logs and checkpoints; free some and start again (nothing was started)"
            )
        attempts = self.run.attempts()
        attempt = self.run.attempt(attempts[-1].number + 1 if attempts else 1)
        attempt.folder.mkdir(parents=True)
        checkpoints = self.run.checkpoints(self.fingerprint, self.inputs_sha256)
        write_json(attempt.spec, self.spec)
        write_json(
            attempt.order,
            {
                "attempt": attempt.number,
                "run_id": self.run_id,
                "fingerprint": self.fingerprint,
                "spec": str(attempt.spec),
                "inputs": str(self.inputs),
                "inputs_sha256": self.inputs_sha256,
                "attempt_dir": str(attempt.folder),
                "checkpoint_dir": str(checkpoints),
                "cpus": self.cpus,
                "cwd": str(ROOT),
                "env": self.spec["env"],
                "command": [
                    str(self.stack.parent / "env" / "bin" / "python"),
                    "-m",
                    JOB_MODULES[self.spec["trainer"]],
                    str(attempt.order),
                ],
            },
        )
        executor = submitit.AutoExecutor(folder=attempt.submitit, cluster="local")
        executor.update_parameters(timeout_min=_NO_LIMIT_MIN, name=self.run_id)
        with _ignored(signal.SIGINT):  # inherited by the job: a Ctrl-C is for this head, which passes it on
            job = executor.submit(run_attempt, str(self.run.folder), attempt.number)
        write_json(
            self.run.job,
            {
                "attempt": attempt.number,
                "fingerprint": self.fingerprint,
                "cluster": "local",
                "job_id": job.job_id,
                "submitted": time.time(),
            },
        )
        earlier = f" (attempt {attempt.number}; {_checkpoint_note(checkpoints)})" if attempt.number > 1 else ""
        say(f"{self.run_id}: started{earlier}, {self.spec['workload']['steps']} steps; log: {attempt.log}")
        return attempt

    def _wait(self, attempt: AttemptPaths) -> None:
        """Return when the attempt has ended, or its job is gone without a word."""
        progress = Progress(attempt.metrics, self.run_id, self.spec["workload"]["steps"])
        said_at = unseen_since = time.monotonic()
        seen = False
        latest = None
        while not attempt.exit.is_file():
            now = time.monotonic()
            if holder_note(self.run.live_lock) is not None:
                seen, unseen_since = True, now
            # After the lock is free its holder has written exit.json, or it was killed.
            elif now - unseen_since > (2.0 if seen else START_PATIENCE_S):
                break
            latest = progress.poll() or latest
            if latest and (now - said_at > PROGRESS_EVERY_S):
                say(latest)
                latest, said_at = None, now
            if self._stop_requests:
                self._pass_stop_on(attempt)
            time.sleep(POLL_S)
        if latest := (progress.poll() or latest):
            say(latest)

    def _verified(self, attempt: AttemptPaths, end: dict[str, Any]) -> AttemptPaths:
        """The attempt, if it truly finished; otherwise a `UserError` that says how it ended and what to do."""
        problem = self._problem_of(attempt) if attempt.done.is_file() else "there is none"
        if problem is None:
            return attempt
        kind, code = end["kind"], end.get("code")
        reasons = {
            "finished": f"its job ended well, but its done.json does not prove it: {problem}",
            "stopped": "was stopped; start again and it goes on from its last checkpoint",
            "refused": "was refused by the trainer's job",
            "killed": f"was killed by signal {-(code or 0)}"
            + (" (often: out of memory; see `dmesg`)" if code == -signal.SIGKILL else ""),
            "vanished": "its job vanished without a word (killed from outside, or the machine went down); "
            "start again and it goes on from its last checkpoint",
            "not started": f"its job could not start the trainer: {end.get('error')}",
            "duplicate": "another job of this run was alive, and is gone now; start again",
        }
        reason = reasons.get(kind, f"failed: the trainer ended with exit code {code}")
        raise UserError(f"{self.run_id}: {reason}\nlog: {attempt.log}\n{_log_tail(attempt.log)}".rstrip())

    def request_stop(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: once, stop after the step; twice, at once."""
        self._stop_requests += 1

    def _pass_stop_on(self, attempt: AttemptPaths) -> None:
        wanted = "soon" if self._stop_requests == 1 else "now"
        if not attempt.stop.exists() or attempt.stop.read_text() != wanted:
            say(
                f"{self.run_id}: stopping after the current step (once more to stop at once)"
                if wanted == "soon"
                else f"{self.run_id}: stopping at once"
            )
            write_text(attempt.stop, wanted)


def _inputs_sha256(inputs: Path) -> dict[str, str]:
    """The prepared data's and model's hashes, as a job puts them into done.json."""
    try:
        prepared = read_json(inputs)
        return {"data_sha256": str(prepared["data"]["sha256"]), "model_sha256": str(prepared["model"]["sha256"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{inputs} is damaged ({error!r}); delete it and start snakemake again") from None


def _checkpoint_note(folder: Path) -> str:
    return "goes on from a checkpoint" if folder.is_dir() and any(folder.iterdir()) else "from the start: no checkpoint"


def _log_tail(log: Path) -> str:
    if not log.is_file():
        return ""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(f"  | {line}" for line in lines[-LOG_TAIL_LINES:])


@contextmanager
def _ignored(number: signal.Signals) -> Iterator[None]:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


def main(argv: list[str] | None = None) -> int:
    """The command line; 0 when the run is finished, 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_folder", type=Path)
    parser.add_argument("--spec", type=json.loads, required=True, help="what is to be run: the content of spec.json")
    parser.add_argument("--inputs", type=Path, required=True)
    parser.add_argument("--stack", type=Path, required=True, help="the stack's verify.json")
    parser.add_argument("--cpus", type=int, required=True)
    parser.add_argument("--log", type=Path, help="also write what is said here")
    args = parser.parse_args(argv)
    os.umask(os.umask(0) | 0o022)  # others may read results, not write them
    return reporting_errors(lambda: _run(args), log=args.log)


def _run(args: argparse.Namespace) -> None:
    run = RunPaths(args.run_folder.resolve())
    launcher = Launcher(run, args.spec, args.inputs.resolve(), args.stack.resolve(), args.cpus)
    signal.signal(signal.SIGINT, launcher.request_stop)
    signal.signal(signal.SIGTERM, launcher.request_stop)
    launcher.ensure_done()


if __name__ == "__main__":
    sys.exit(main())
