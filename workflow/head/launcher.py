"""Gets one run trained: orders it, submits a job or attaches to one, waits, and verifies the result.

    python -m workflow.head.launcher RUN_FOLDER --spec JSON --inputs inputs.json --stack verify.json --resources ...

The `train` rule calls it. docs/reliability.md has its invariants. It may die at any time, and so may its job: all state
is in the run's files and in Slurm. It leaves when the snakemake that started it is gone.

Hundreds of launchers wait at once on a login node: heavy imports (submitit) run in a short program of their own.
"""

from __future__ import annotations

import signal

# A Ctrl-C during the imports ends the launcher without a traceback: nothing is started yet.
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import errno
import os
import socket
import sys
import time
from types import FrameType
from typing import Any

from common import retry
from common.errors import UserError
from common.files import DiskFull, write_json, write_text
from common.messages import print_message, remedy, report_errors
from common.ownership import obey_only_own_files
from workflow.head.submission import ASKING, NOTHING_STARTED, Detached, LauncherStop, Submitter, log_tail
from workflow.head.train_rule import command_line, request_of
from workflow.head.watch import LocalWatch, SlurmWatch, Watch, remark
from workflow.runs.ends import Then, explain, what_follows
from workflow.runs.history import attempts_of_order, finished_attempt, log_of, steps_of, why_unfinished
from workflow.runs.locks import Lock, holder_note, try_lock
from workflow.runs.orders import JobState, Order, Presence, order_of, write_end
from workflow.runs.paths import AttemptPaths, RunPaths
from workflow.runs.progress import JobReporter, readable_duration

# Limit for a file system that cannot be read; it restarts after a quarter of an hour without such an error.
FILES_PATIENCE_S = 1800.0
# Only a person can free disk space, so the message must come soon.
ROOM_PATIENCE_S = 30.0
# In a folder that this launcher never locked, these errors are final.
_NO_ACCESS = (errno.EACCES, errno.EPERM, errno.EROFS)
_ORPHAN_S = 2.0


class Launcher:
    def __init__(self, run: RunPaths, request: dict[str, Any]) -> None:
        self.run, self.request = run, request
        self.spec: dict[str, Any] = request["spec"]
        self.run_id, self.fingerprint = str(self.spec["run_id"]), str(self.spec["fingerprint"])
        self._stop = LauncherStop(self.run_id)
        self.watch: Watch = SlurmWatch(run) if request["cluster"] == "slurm" else LocalWatch(run)
        self._leaves_at_once = True  # a Ctrl-C ends this launcher at any point: its job goes on, or there is none
        self._submitter = Submitter(run, request, self._stop, self.watch)
        self._lock: Lock | None = None
        self._had_lock = False
        self._reporters: dict[str, JobReporter] = {}
        self._order: Order | None = None  # kept when the launcher starts over
        # The snakemake that started this launcher holds the experiment's lock; without one nobody is waited for.
        self._has_head = holder_note(run.experiment / ".head.lock") is not None
        self._looked = time.monotonic()

    def _print(self, message: str) -> None:
        print_message(f"{self.run_id}: {message}")

    def ensure_done(self) -> None:
        """Return when the run is finished and its done.json is written; raise a `UserError` if it cannot be.

        If the file system refuses a read, start over like a launcher after a kill: all state is in the files.
        """
        failing_since = last = float("-inf")
        while True:
            try:
                return self._ensure_done()
            except (OSError, DiskFull) as error:
                if isinstance(error, OSError) and not self._had_lock and error.errno in _NO_ACCESS:
                    raise UserError(
                        f"{self.run_id}: {error}{remedy(error)} (nothing was started; an experiment with another name "
                        "has its own folder)"
                    ) from None
                now = time.monotonic()
                limit_s = ROOM_PATIENCE_S if isinstance(error, DiskFull) else FILES_PATIENCE_S
                if now - last > limit_s / 2:
                    failing_since = now
                    self._print(f"{error}; trying again for {readable_duration(limit_s)}")
                if not retry.is_transient(error) or now - failing_since > limit_s:
                    raise UserError(
                        f"{self.run_id}: {error}. Submitted jobs continue; fix this, then start the same command again "
                        "to attach to them"
                    ) from None
                last = now
                self._stop.leave_if_asked()
                self._pause()

    def _ensure_done(self) -> None:
        self.run.folder.mkdir(parents=True, exist_ok=True)
        self.run.make_own()
        with self._wait_for_lock() as self._lock:
            self._had_lock = True
            try:
                self._stop.leave_if_asked()
                write_json(self.run.spec, self.spec)
                finished = self.finished_attempt()
                if finished is not None:
                    self._print(f"already finished (attempt {finished.number}); nothing to do")
                else:
                    finished = self._train()
            finally:
                self._lock = None  # the rest is instant: a Ctrl-C comes too late
            write_text(self.run.done, finished.done.read_text(encoding="utf-8"))

    def _wait_for_lock(self) -> Lock:
        """The lock that makes this launcher responsible for the run, once no other one holds it."""
        waiting = False
        note = f"process {os.getpid()} on {socket.gethostname()}, configuration {self.fingerprint[:12]}"
        while (lock := try_lock(self.run.launcher_lock, note=note)) is None:
            if not waiting:
                holder = holder_note(self.run.launcher_lock) or "it has just begun"
                self._print(f"another launcher is responsible for this run ({holder}); waiting for it")
                waiting = True
            self._stop.leave_if_asked()
            self._pause()
        return lock

    def _pause(self) -> None:
        """Wait a moment; leave if the snakemake that started this launcher is gone: nobody waits for it any more."""
        time.sleep(self.watch.poll_s)
        if self._has_head and time.monotonic() - self._looked > _ORPHAN_S:
            self._looked = time.monotonic()
            if holder_note(self.run.experiment / ".head.lock") is None:
                raise Detached(f"{self.run_id}: its snakemake is gone; {self._stop.message}")

    def finished_attempt(self) -> AttemptPaths | None:
        return finished_attempt(self.run, self.fingerprint, steps_of(self.spec), self.request["inputs_sha256"])

    def _train(self) -> AttemptPaths:
        self._stop.message = ASKING
        assert self._lock is not None
        order = self._order or self._order_to_attach_to()
        self._leaves_at_once = self.watch.is_cluster
        if (finished := self.finished_attempt()) is not None and order is None:
            return finished
        if order is None:
            order = self._submitter.submit(self._submitter.new_order(), self._lock)
        barren = 0
        while True:
            self._order = order
            attempts = len(attempts_of_order(self.run, order.content))
            end = self._end_of(order)
            if (finished := self.finished_attempt()) is not None:
                self.watch.withdraw(order)
                return finished
            then = what_follows(end) if self.watch.is_cluster else Then.FINAL
            if then is Then.ELSEWHERE and end.get("nodes") and not self._has_tried_elsewhere(order):
                self._print(f"{_short(end)}; trying once more without {end['nodes']} (--exclude)")
                order = self._submitter.new_order(order.content["count_from"], [end["nodes"]])
            elif then is not Then.AGAIN:
                self.watch.withdraw(order)
                raise self._failure(order, write_end(self.run, order.start, end))
            else:
                # A job counts its attempts without a new step; this counts the jobs without any attempt.
                barren = 0 if len(attempts_of_order(self.run, order.content)) > attempts else barren + 1
                if barren > self.request["limits"]["restarts"]:
                    detail = f"{barren} jobs in a row ended before they began (the last one {_short(end)})"
                    end = {"kind": "no progress", "detail": detail, "told_by": "head"}
                    raise self._failure(order, write_end(self.run, order.start, end))
                self._print(f"{order.label} {_short(end)}; submitting it again")
            order = self._submitter.submit(order, self._lock)

    def _has_tried_elsewhere(self, order: Order) -> bool:
        """Whether the run's failure on a node was tried on others, or may not be: the profile names the nodes."""
        return bool(order.content["avoid"] or self.request["site"].get("nodelist"))

    def _order_to_attach_to(self) -> Order | None:
        """The order whose job lives and trains this configuration; None once no job of the run lives.

        A job is looked for where its order was submitted to: the other profile may have.
        """
        said, elsewhere = "", LocalWatch(self.run) if self.watch.is_cluster else SlurmWatch(self.run)
        while True:
            order = order_of(self.run)
            if self.watch.is_cluster and not order:
                return None  # Slurm has no job of this run, and a lock says nothing there
            watch = self.watch if order.on_slurm == self.watch.is_cluster else elsewhere
            # By a new answer, once there is one.
            state = watch.state(order, fresh=not said)
            if state.job is Presence.NONE:
                return None
            name = order.label if state.queued is None else f"Slurm job {state.queued.job_id}"
            if not (why := self._why_not_attached(order, state)):
                self._print(f"attaching to {name}{self._other_settings(order)}")
                return order
            if why != said:
                self._print(f"{name} {why}")
                said = why
            if order:
                self._reporter(order).report()
            self._stop.leave_if_asked()
            self._pause()

    def _why_not_attached(self, order: Order, state: JobState) -> str:
        """Why a run's job is waited for and not attached to; empty if it is attached to."""
        unknown = state.job is Presence.UNKNOWN
        if order and order.on_slurm != self.watch.is_cluster:
            doubt = f" and {state.note}" if unknown else ""
            return f"was submitted with another profile{doubt}; waiting for its end (`rolloutbench cancel` ends it)"
        if unknown:
            return f"{state.note}; waiting"
        if not order:
            return "was ordered for another folder, from which this one was moved; waiting for its end"
        if not order.is_for(self.fingerprint, self.request["inputs_sha256"]):
            return "is of another configuration; waiting for its end"
        if by := order.end().get("by"):
            return f"was cancelled by {by} before this start; waiting for its end"
        return "is ending; waiting for its end" if order.end() or state.note == "completing" else ""

    def _other_settings(self, order: Order) -> str:
        """A note on settings of the job that differ from the profile's; attaching does not change them."""
        then = {**order.content["site"], **order.content["limits"], "cpus": order.content["cpus"]}
        now = {**self.request["site"], **self.request["limits"], "cpus": self.request["cpus"]}
        differing = [f"{key} {then.get(key)!r}, now {now[key]!r}" for key in now if then.get(key) != now[key]]
        if not differing:
            return ""
        return (
            f", which keeps the settings it was submitted with ({'; '.join(differing)}); to change them, "
            "`rolloutbench cancel` it and start again"
        )

    def _reporter(self, order: Order) -> JobReporter:
        return self._reporters.setdefault(order.start, JobReporter(self.run, order.content))

    def _end_of(self, order: Order) -> dict[str, Any]:
        """Wait until an order has an end, or its job is gone, and report its progress; how it ended."""
        reporter, said = self._reporter(order), ""
        self._stop.message = (
            f"detached; {order.label} continues without this launcher. Start the same command again to attach to it; "
            "`rolloutbench cancel` ends it"
        )
        # Whoever cancels ends the order at once, and its job a moment later.
        while not (end := order.end()) or end.get("told_by") == "cancel":
            state = self.watch.state(order)
            reporter.report()
            if state.job is Presence.NONE:
                end = order.end() or self.watch.last_words(order)
                break
            if (text := remark(state)) and text != said:
                said = text
                self._print(f"{order.label} {text}")
            if self._stop.requests:
                self._pass_stop_on()
            self._pause()
        reporter.report(last=True)
        self._stop.message = ASKING
        return end

    def _failure(self, order: Order, end: dict[str, Any]) -> UserError:
        """The error for an order that did not finish the run: its end, what to do, and the last lines of its log."""
        log = log_of(self.run, end)
        reason = explain(end, self.spec)
        if end["kind"] == "finished" and end.get("attempt"):
            inputs = self.request["inputs_sha256"]
            problem = why_unfinished(self.run.attempt(end["attempt"]), self.fingerprint, steps_of(self.spec), inputs)
            reason = f"its job ended without an error, but its done.json does not prove that it finished: {problem}"
        text = f"{self.run_id}: {reason}"
        return UserError(text if log is None else f"{text}\nlog: {log}\n{log_tail(log)}".rstrip())

    def request_stop(self, number: int, frame: FrameType | None) -> None:
        """Signal handler."""
        self._stop.requests += 1
        if self._leaves_at_once and self._lock is not None:
            self._stop.leave_if_asked()

    def _pass_stop_on(self) -> None:
        """Stop a local job after its step, at a second request at once; a job in Slurm continues."""
        if self.watch.is_cluster:
            self._stop.leave_if_asked()
        wanted = "soon" if self._stop.requests == 1 else "now"
        if not self.run.stop.exists() or self.run.stop.read_text() != wanted:
            when = "after the current step (once more to stop at once)" if wanted == "soon" else "at once"
            self._print(f"stopping {when}")
            write_text(self.run.stop, wanted)


def _short(end: dict[str, Any]) -> str:
    """How a job ended, without what to do: it is done already."""
    return explain(end, {}).partition("; ")[0]


def main(argv: list[str] | None = None) -> int:
    """The command line; 0 when the run is finished, 1 otherwise."""
    args = command_line(__doc__).parse_args(argv)
    obey_only_own_files()
    return report_errors(lambda: _run(args), log=args.log)


def _run(args: argparse.Namespace) -> None:
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        launcher = Launcher(RunPaths(args.run_folder.resolve()), request_of(args))
        signal.signal(signal.SIGINT, launcher.request_stop)
    except KeyboardInterrupt:
        raise UserError(f"{args.spec['run_id']}: {NOTHING_STARTED}") from None
    signal.signal(signal.SIGTERM, launcher.request_stop)
    try:
        launcher.ensure_done()
    except Detached as detached:
        raise UserError(str(detached)) from None


if __name__ == "__main__":
    sys.exit(main())
