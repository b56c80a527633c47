"""Gets one run trained: submits a job or attaches to one, waits, and verifies the result.

    python -m workflow.head.launcher RUN_FOLDER --spec JSON --inputs inputs.json --stack verify.json --cpus N
        --cluster slurm --partition h100 ...

The `train` rule calls it. Its guarantees:
- a finished run (same fingerprint, same inputs) is never trained again, whatever happened to Snakemake's own files;
- at most one job of a run is alive: a second launcher waits, and a launcher that finds a living job attaches to it;
- a job that Slurm took away is submitted again, and resumes from its last checkpoint;
- only the attempt's own done.json proves success, never an exit code or a Slurm state alone;
- no file of an earlier attempt is deleted.

Hundreds of launchers wait at once on a login node: heavy imports (submitit) run in a short program of their own.
"""

from __future__ import annotations

import signal

# A Ctrl-C during the imports ends the launcher without a traceback: nothing is started yet.
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import errno
import sys
import time
from types import FrameType
from typing import Any

from common import retry
from common.errors import UserError
from common.files import DiskFull, write_json, write_json_once, write_text
from common.messages import print_message, remedy, report_errors
from common.ownership import obey_only_own_files, read_own_json
from workflow.head.submission import ASKING, NOTHING_STARTED, Detached, LauncherStop, Submitter, log_tail
from workflow.head.train_rule import command_line, request_of
from workflow.head.watch import LocalScheduler, Scheduler, SlurmScheduler, remark
from workflow.runs.history import (
    RETRIED,
    attempts_of_job,
    cancelled_by,
    end_from_slurm,
    explain,
    final_end,
    finished_attempt,
    is_request_for,
    log_of,
    read_object,
    retry_reason,
    steps_of,
    why_unfinished,
)
from workflow.runs.job_state import JobState, JobVerdict, Life
from workflow.runs.locks import Lock, try_lock
from workflow.runs.paths import AttemptPaths, JobPaths, RunPaths
from workflow.runs.progress import JobReporter, readable_duration

MOST_DUPLICATES = 3
# Limit for a file system that cannot be read; it restarts after a quarter of an hour without such an error.
FILES_PATIENCE_S = 1800.0
# Only a person can free disk space, so the message must come soon.
ROOM_PATIENCE_S = 30.0
# In a folder that this launcher never locked, these errors are final.
_NO_ACCESS = (errno.EACCES, errno.EPERM, errno.EROFS)


class Launcher:
    def __init__(self, run: RunPaths, request: dict[str, Any]) -> None:
        self.run, self.request = run, request
        self.spec: dict[str, Any] = request["spec"]
        self.run_id, self.fingerprint = str(self.spec["run_id"]), str(self.spec["fingerprint"])
        self.steps = steps_of(self.spec)
        self._stop = LauncherStop(self.run_id)
        self.scheduler = self._scheduler(request["cluster"])
        self._leaves_at_once = self.scheduler.is_cluster  # a Ctrl-C ends this launcher at any point
        self._submitter = Submitter(run, request, self.scheduler, self._stop)
        self._lock: Lock | None = None
        self._had_lock = False
        self._reporters: dict[int, JobReporter] = {}
        self._job: JobPaths | None = None  # its end decides what follows; kept when the launcher starts over
        self._cancelled_at_first: dict[int, str | None] = {}

    def _scheduler(self, cluster: str) -> Scheduler:
        if cluster == "slurm":
            return SlurmScheduler(self.run, self.run_id, self._stop.leave_if_asked)
        return LocalScheduler(self.run)

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
                time.sleep(self.scheduler.poll_s)

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
        while (lock := try_lock(self.run.launcher_lock)) is None:
            if not waiting:
                self._print("another launcher is responsible for this run; waiting for it")
                waiting = True
            self._stop.leave_if_asked()
            time.sleep(self.scheduler.poll_s)
        return lock

    def finished_attempt(self) -> AttemptPaths | None:
        return finished_attempt(self.run, self.fingerprint, self.steps, self.request["inputs_sha256"])

    def _train(self) -> AttemptPaths:
        self._stop.message = ASKING
        self._require_one_cluster()
        barren = 0
        last, count_from = 0, None
        while True:
            # Never submit beside an existing job, whoever submitted it.
            job = None if read_object(self.run.current).get("job") == last else self._job or self._live_job()
            if (finished := self.finished_attempt()) is not None and job is None:
                return finished
            assert self._lock is not None
            self._job = job or self._submitter.submit(self._lock, count_from)
            end = self._end_of(self._job)
            last = int(end["job"])
            job = self.run.job(last)
            if (finished := self.finished_attempt()) is not None:
                self.scheduler.withdraw(job)
                return finished
            if end["kind"] == "duplicate" and barren < MOST_DUPLICATES:
                barren, last = barren + 1, 0  # another job trained meanwhile: first find out how that ended
                self._job = None
                continue
            if end["kind"] not in RETRIED or not self.scheduler.is_cluster:
                raise self._failure(job, end)
            # A job counts its attempts without a new step; this counts the jobs without any attempt.
            barren = 0 if attempts_of_job(self.run, job.number) else barren + 1
            if barren > self.request["limits"]["restarts"]:
                detail = f"{barren} jobs in a row ended before they began (the last one {retry_reason(end)})"
                raise self._failure(job, {"kind": "no progress", "detail": detail})
            self._print(f"{self.scheduler.label(job)} {retry_reason(end)}; submitting it again")
            count_from = read_own_json(job.request)["count_from"]
            self._job = None

    def _require_one_cluster(self) -> None:
        """Refuse a run that still has a job where the other profile submits to: only that profile can attach to it."""
        job = self.run.job(int(read_object(self.run.current).get("job") or 0))
        where = read_object(job.record).get("cluster")
        if where in (None, self.request["cluster"]):
            return
        there = self._scheduler(where)
        # Nothing is started yet: a Ctrl-C may end a local launcher while Slurm does not answer.
        self._leaves_at_once = True
        try:
            live = there.live_job()
        finally:
            self._leaves_at_once = self.scheduler.is_cluster
        if live is not None and live[1].alive:
            raise UserError(
                f"{self.run_id}: {there.label(live[0])} ({where}) still trains this run; start with the profile that "
                "submitted it to continue it, or end it with `rolloutbench cancel` (nothing was started)"
            )

    def _live_job(self) -> JobPaths | None:
        """The living job of this configuration, once those of other configurations have ended.

        Raises `UserError` if the last job was cancelled after this launcher had started, however it ended.
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
            # A new start revokes a cancellation: the job that it ended decides nothing any more. One that Slurm ends
            # for another reason may be requeued, and is attached to then.
            cancelled = self._cancelled_at_first.get(job.number)
            if cancelled or state.life is Life.ENDING:
                why = f"was cancelled by {cancelled} before this start" if cancelled else "is ending"
                self._print(f"{self.scheduler.label(job)} {why}; waiting for its end")
                self._wait_out(job, while_ending=not cancelled)
                continue
            submitted = read_own_json(job.request)
            if is_request_for(submitted, self.fingerprint, self.request["inputs_sha256"]):
                self._print(f"attaching to {self.scheduler.label(job)}{self._other_settings(submitted)}")
                return job
            self._print(f"{self.scheduler.label(job)}, of another configuration, is still alive; waiting for it")
            self._end_of(job)
        return None

    def _wait_out(self, job: JobPaths, while_ending: bool = False) -> None:
        """Wait until a job is gone, or only while Slurm ends it.

        A trainer that Slurm has given up still writes: it may finish the run, or become silent.
        """
        reported = False
        while (state := self.scheduler.current_state(job)).alive and (state.life is Life.ENDING or not while_ending):
            if state.life is Life.ABANDONED and not reported:
                self._print(f"{self.scheduler.label(job)} {remark(state)}; `rolloutbench cancel` ends it")
                reported = True
            self._stop.leave_if_asked()
            time.sleep(self.scheduler.poll_s)

    def _other_settings(self, submitted: dict[str, Any]) -> str:
        """A note on settings of the job that differ from the profile's; attaching does not change them."""
        then = {**submitted["site"], **submitted["limits"], "cpus": submitted["cpus"]}
        now = {**self.request["site"], **self.request["limits"], "cpus": self.request["cpus"]}
        differing = [f"{key} {then.get(key)!r}, now {now[key]!r}" for key in now if then.get(key) != now[key]]
        if not differing:
            return ""
        return (
            f", which keeps the settings it was submitted with ({'; '.join(differing)}); to change them, "
            "`rolloutbench cancel` it and start again"
        )

    def _end_of(self, job: JobPaths) -> dict[str, Any]:
        """Wait for a job's end and report its progress; the end, with the job's number."""
        reporter = self._reporters.setdefault(job.number, JobReporter(self.run, self.run_id, self.steps, job))
        self._stop.message = (
            f"detached; {self.scheduler.label(job)} continues without this launcher. Start the same command again to "
            "attach to it; `rolloutbench cancel` ends it"
        )
        last_remark = ""
        while not retry.exists(job.end):
            state = self.scheduler.current_state(job)
            reporter.report()
            if not state.alive:
                self._note_end(job, state)
                break
            if (text := remark(state)) and text != last_remark:
                last_remark = text
                self._print(f"{self.scheduler.label(job)} {text}")
            if self._stop.requests:
                self._pass_stop_on(job)
            time.sleep(self.scheduler.poll_s)
        reporter.report(last=True)
        self._stop.message = ASKING
        return {**final_end(job, read_own_json(job.end)), "job": job.number}

    def _note_end(self, job: JobPaths, state: JobState) -> None:
        end: dict[str, Any] = {"kind": "vanished", "told_by": "head"}
        if self.request["cluster"] == "slurm":
            end = end_from_slurm(self.run, job, state.ended, state.slurm_state)
        write_json_once(job.end, {**end, "time": time.time()})

    def _failure(self, job: JobPaths, end: dict[str, Any]) -> UserError:
        """The error for a job that did not finish the run: its end, what to do, and the last lines of its log."""
        attempts = attempts_of_job(self.run, job.number)
        log = log_of(self.run, job)
        reason = explain(end)
        if end["kind"] == "finished" and attempts:
            problem = "there is none"
            if attempts[-1].done.is_file():
                problem = why_unfinished(attempts[-1], self.fingerprint, self.steps, self.request["inputs_sha256"])
            reason = f"its job ended without an error, but its done.json does not prove that it finished: {problem}"
        text = f"{self.run_id}: {reason}"
        return UserError(text if log is None else f"{text}\nlog: {log}\n{log_tail(log)}".rstrip())

    def request_stop(self, number: int, frame: FrameType | None) -> None:
        """Signal handler; on a cluster the launcher leaves at once, and its job continues."""
        self._stop.requests += 1
        if self._leaves_at_once and self._lock is not None:
            self._stop.leave_if_asked()

    def _pass_stop_on(self, job: JobPaths) -> None:
        """Stop a local job after its step, at a second request at once; a job in Slurm continues."""
        if self.scheduler.is_cluster:
            self._stop.leave_if_asked()
        wanted = "soon" if self._stop.requests == 1 else "now"
        if not job.stop.exists() or job.stop.read_text() != wanted:
            when = "after the current step (once more to stop at once)" if wanted == "soon" else "at once"
            self._print(f"stopping {when}")
            write_text(job.stop, wanted)


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
