"""Sees to it that one run is trained: submits or attaches, waits, verifies.

    python -m workflow.cluster.launcher RUN_FOLDER --spec JSON --inputs inputs.json --stack verify.json --cpus N
        --cluster slurm --partition h100 ...

Called by the `train` rule. What it promises:
- a run that is finished (its fingerprint, its inputs) is never trained again, whatever became of Snakemake's own files;
- at most one job of a run lives at a time: a second head waits, and a head that finds a live job attaches to it;
- a job that Slurm took away is submitted again, and goes on from its last checkpoint;
- success is the attempt's own done.json, never an exit code or a state of Slurm's alone;
- nothing of an earlier attempt is deleted.

Hundreds of these wait at once on a login node: what is heavy (submitit) runs in a short program of its own.
"""

from __future__ import annotations

import signal

# A Ctrl-C while the rest loads ends the head without a traceback: nothing is started yet.
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import errno
import os
import sys
import time
from types import FrameType
from typing import Any

from common import retry
from common.errors import UserError
from common.files import DiskFull, read_json, write_json, write_text
from common.messages import can_redraw, print_message, remedy, report_errors
from workflow.cluster.ends import RETRIED, cancelled_by, end_from_slurm, explain, final_end, retry_reason
from workflow.cluster.history import attempts_of_job, computes, finished_attempt, log_of, read_object, why_unfinished
from workflow.cluster.jobstate import JobState, JobVerdict, Life
from workflow.cluster.locks import Lock, try_lock
from workflow.cluster.paths import AttemptPaths, JobPaths, RunPaths
from workflow.cluster.progress import readable_duration
from workflow.cluster.request import command_line, request_of
from workflow.cluster.scheduler import LocalScheduler, Scheduler, SlurmScheduler, remark
from workflow.cluster.submitter import Submitter, log_tail
from workflow.cluster.waiting import ASKING, NOTHING_STARTED, Detached, JobReporter, LauncherStop

MOST_DUPLICATES = 3
# How long a head waits for a file system that cannot be read; a quarter of an hour without such an error, and anew.
FILES_PATIENCE_S = 1800.0
# Room on a disk is made by people, who must be told.
ROOM_PATIENCE_S = 30.0
# Of a folder that never was this head's, these are an answer, not a fault that passes.
_NOT_MINE = (errno.EACCES, errno.EPERM, errno.EROFS)


class Launcher:
    """One head for one run."""

    def __init__(self, run: RunPaths, request: dict[str, Any]) -> None:
        self.run, self.request = run, request
        self.spec: dict[str, Any] = request["spec"]
        self.run_id, self.fingerprint = str(self.spec["run_id"]), str(self.spec["fingerprint"])
        self.steps = int(self.spec["workload"]["steps"])
        self._stop = LauncherStop(self.run_id)
        self.scheduler = self._scheduler(request["cluster"])
        self._leaves_at_once = self.scheduler.detaches
        """Whether a Ctrl-C ends this head wherever it is."""
        self._submitter = Submitter(run, request, self.scheduler, self._stop)
        self._head_lock: Lock | None = None
        self._was_head = False
        self._news: dict[int, JobReporter] = {}
        self._cares_for: JobPaths | None = None
        """The job whose end decides what follows, also where the head begins anew meanwhile."""
        self._cancelled_at_first: dict[int, str | None] = {}

    def _scheduler(self, cluster: str) -> Scheduler:
        if cluster == "slurm":
            return SlurmScheduler(self.run, self.run_id, self._stop.leave_if_told)
        return LocalScheduler(self.run)

    def ensure_done(self) -> None:
        """Return when the run is finished and its done.json stands; a `UserError` says why it cannot be.

        Where the file system refuses a read, the head begins anew, as one that was killed: it finds what is there.
        """
        failing_since = last = float("-inf")
        while True:
            try:
                return self._ensure_done()
            except (OSError, DiskFull) as error:
                if isinstance(error, OSError) and not self._was_head and error.errno in _NOT_MINE:
                    raise UserError(
                        f"{self.run_id}: {error}{remedy(error)} (nothing was started; an experiment of another name "
                        "has a folder of its own)"
                    ) from None
                now = time.monotonic()
                limit_s = ROOM_PATIENCE_S if isinstance(error, DiskFull) else FILES_PATIENCE_S
                if now - last > limit_s / 2:
                    failing_since = now
                    print_message(f"{self.run_id}: {error}; trying again for {readable_duration(limit_s)}")
                if not retry.is_transient(error) or now - failing_since > limit_s:
                    raise UserError(
                        f"{self.run_id}: {error}. What was submitted goes on; mend this, then start the same command "
                        "again to attach to it"
                    ) from None
                last = now
                self._stop.leave_if_told()
                time.sleep(self.scheduler.poll_s)

    def _ensure_done(self) -> None:
        with self._become_head() as self._head_lock:
            self._was_head = True
            try:
                self._stop.leave_if_told()
                write_json(self.run.spec, self.spec)
                finished = self.finished_attempt()
                if finished is not None:
                    print_message(f"{self.run_id}: already finished (attempt {finished.number}); nothing to do")
                else:
                    finished = self._train()
            finally:
                self._head_lock = None  # what is left takes no time: a Ctrl-C from now on is too late
            write_text(self.run.done, finished.done.read_text(encoding="utf-8"))

    def _become_head(self) -> Lock:
        """The lock that makes this head the one that cares for the run, after any other head."""
        waiting = False
        while (lock := try_lock(self.run.head_lock)) is None:
            if not waiting:
                print_message(f"{self.run_id}: another head cares for this run; waiting for it")
                waiting = True
            self._stop.leave_if_told()
            time.sleep(self.scheduler.poll_s)
        return lock

    def finished_attempt(self) -> AttemptPaths | None:
        """The newest attempt that finished this very run: same fingerprint, same data, same model, all steps."""
        return finished_attempt(self.run, self.fingerprint, self.steps, self.request["inputs_sha256"])

    def _train(self) -> AttemptPaths:
        """Jobs, one after another, until one has finished the run."""
        self._stop.means = ASKING
        self._require_one_cluster()
        barren = 0
        last, count_from = 0, None
        while True:
            # Nothing is submitted beside a job that is there, whoever submitted it.
            job = None if read_object(self.run.current).get("job") == last else self._cares_for or self._live_job()
            if (finished := self.finished_attempt()) is not None and job is None:
                return finished
            assert self._head_lock is not None
            self._cares_for = job or self._submitter.submit(self._head_lock, count_from)
            end = self._end_of(self._cares_for)
            last = int(end["job"])
            job = self.run.job(last)
            if (finished := self.finished_attempt()) is not None:
                self.scheduler.withdraw(job)
                return finished
            if end["kind"] == "duplicate" and barren < MOST_DUPLICATES:
                barren, last = barren + 1, 0  # another one has trained meanwhile: what became of that is asked first
                self._cares_for = None
                continue
            if end["kind"] not in RETRIED or not self.scheduler.retries:
                raise self._failure(job, end)
            # A job counts its attempts without a new step; here are counted the jobs that made no attempt at all.
            barren = 0 if attempts_of_job(self.run, job.number) else barren + 1
            if barren > self.request["limits"]["restarts"]:
                detail = f"{barren} jobs in a row ended before they began (the last one {retry_reason(end)})"
                raise self._failure(job, {"kind": "no progress", "detail": detail})
            print_message(f"{self.run_id}: {self.scheduler.label(job)} {retry_reason(end)}; submitting it again")
            count_from = read_json(job.order)["count_from"]
            self._cares_for = None

    def _require_one_cluster(self) -> None:
        """Refuse a run that still lives where the other profile submits to: attaching is that profile's matter."""
        job = self.run.job(int(read_object(self.run.current).get("job") or 0))
        where = read_object(job.record).get("cluster")
        if where in (None, self.request["cluster"]):
            return
        there = self._scheduler(where)
        # Nothing is started yet: a head of this machine need not wait for a Slurm that is silent to hear a Ctrl-C.
        self._leaves_at_once = True
        try:
            live = there.live_job()
        finally:
            self._leaves_at_once = self.scheduler.detaches
        if live is not None and live[1].alive:
            raise UserError(
                f"{self.run_id}: {there.label(live[0])} ({where}) still trains this run; start with the profile that "
                "submitted it to go on with it, or end it with `rolloutbench cancel` (nothing was started)"
            )

    def _live_job(self) -> JobPaths | None:
        """The job of this very run that is alive, after those of other configurations have ended.

        Raises `UserError` where the last one was cancelled after this head had begun, however it ended.
        """
        last = self.run.job(int(read_object(self.run.current).get("job") or 0))
        before = self._cancelled_at_first.setdefault(last.number, cancelled_by(last))
        job = self._job_to_attach_to()
        if job is None and before is None and (by := cancelled_by(last)):
            raise self._failure(last, {"kind": "cancelled", "by": by})
        return job

    def _job_to_attach_to(self) -> JobPaths | None:
        while (live := self.scheduler.live_job()) is not None:
            job, state = live
            if not state.alive:
                self._note_end(job, state)
                return None
            if state.verdict is JobVerdict.ENDED:
                self._wait_out(job)
                return None
            order = read_json(job.order)
            if computes(order, self.fingerprint, self.request["inputs_sha256"]):
                print_message(f"{self.run_id}: attaching to {self.scheduler.label(job)}{self._other_settings(order)}")
                return job
            print_message(
                f"{self.run_id}: {self.scheduler.label(job)}, of another configuration, is still there; waiting for it"
            )
            self._end_of(job)
        return None

    def _wait_out(self, job: JobPaths) -> None:
        """Leave a trainer alone that Slurm has lost hold of: it may finish the run, or fall silent."""
        said = None
        while (state := self.scheduler.look(job)).alive:
            if state.life is Life.ABANDONED and said is None:
                said = remark(state)
                print_message(f"{self.run_id}: {self.scheduler.label(job)} {said}; `rolloutbench cancel` ends it")
            self._stop.leave_if_told()
            time.sleep(self.scheduler.poll_s)

    def _other_settings(self, order: dict[str, Any]) -> str:
        """What a job was submitted with that the profile now says otherwise: attaching does not change it."""
        then = {**order["site"], **order["limits"], "cpus": order["cpus"]}
        now = {**self.request["site"], **self.request["limits"], "cpus": self.request["cpus"]}
        differing = [f"{key} {then.get(key)!r}, now {now[key]!r}" for key in now if then.get(key) != now[key]]
        if not differing:
            return ""
        return (
            f", which keeps what it was submitted with ({'; '.join(differing)}); to change that, "
            f"`rolloutbench cancel` it and start again"
        )

    def _end_of(self, job: JobPaths) -> dict[str, Any]:
        """How a job ended, when it has; until then its news are told."""
        # Runs on this machine follow one another; bars of many heads would draw over one another.
        live = not self.scheduler.detaches and can_redraw(sys.stderr)
        news = self._news.setdefault(job.number, JobReporter(self.run, self.run_id, self.steps, job, live))
        self._stop.means = (
            f"detached; {self.scheduler.label(job)} goes on without this head. Start the same command again to attach "
            "to it; `rolloutbench cancel` ends it"
        )
        said = ""
        while not retry.exists(job.end):
            state = self.scheduler.look(job)
            news.tell()
            if not state.alive:
                self._note_end(job, state)
                break
            if (words := remark(state)) and words != said:
                said = words
                print_message(f"{self.run_id}: {self.scheduler.label(job)} {words}")
            if self._stop.requests:
                self._pass_stop_on(job)
            time.sleep(self.scheduler.poll_s)
        news.tell(last=True)
        self._stop.means = ASKING
        return {**final_end(job, read_json(job.end)), "job": job.number}

    def _note_end(self, job: JobPaths, state: JobState) -> None:
        """Write the end of a job that did not do it itself, for whoever looks later."""
        end: dict[str, Any] = {"kind": "vanished", "told_by": "head"}
        if self.request["cluster"] == "slurm":
            end = end_from_slurm(self.run, job, state.ended, state.slurm_state)
        if not retry.exists(job.end):
            write_json(job.end, {**end, "time": time.time()})

    def _failure(self, job: JobPaths, end: dict[str, Any]) -> UserError:
        """How a job ended that did not finish the run, with its log's last lines and what to do."""
        mine = attempts_of_job(self.run, job.number)
        log = log_of(self.run, job)
        reason = explain(end)
        if end["kind"] == "finished" and mine:
            problem = "there is none"
            if mine[-1].done.is_file():
                problem = why_unfinished(mine[-1], self.fingerprint, self.steps, self.request["inputs_sha256"])
            reason = f"its job ended well, but its done.json does not prove it: {problem}"
        text = f"{self.run_id}: {reason}"
        return UserError(text if log is None else f"{text}\nlog: {log}\n{log_tail(log)}".rstrip())

    def request_stop(self, number: int, frame: FrameType | None) -> None:
        """Signal handler. On a cluster the head leaves at once, whatever it waits for, and its job stays."""
        self._stop.requests += 1
        if self._leaves_at_once and self._head_lock is not None:
            self._stop.leave_if_told()

    def _pass_stop_on(self, job: JobPaths) -> None:
        """Stop the job of this machine: after the step, then at once; one in Slurm goes on."""
        if self.scheduler.detaches:
            self._stop.leave_if_told()
        wanted = "soon" if self._stop.requests == 1 else "now"
        if not job.stop.exists() or job.stop.read_text() != wanted:
            print_message(
                f"{self.run_id}: stopping after the current step (once more to stop at once)"
                if wanted == "soon"
                else f"{self.run_id}: stopping at once"
            )
            write_text(job.stop, wanted)


def main(argv: list[str] | None = None) -> int:
    """The command line; 0 when the run is finished, 1 otherwise."""
    args = command_line(__doc__).parse_args(argv)
    os.umask(os.umask(0) | 0o022)  # others may read results, not write them
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
