"""What is a run doing? Told by its files and by what Slurm last said; nothing is changed by looking."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workflow.cluster.ends import RETRIED, cancelled_by, end_told_by_slurm, why_again
from workflow.cluster.experiment import Experiment, Wanted, run_folders
from workflow.cluster.history import attempts_of_job, computes, finished_attempt, log_of, read_object, same_attempts
from workflow.cluster.inquiry import (
    SlurmSays,
    Submission,
    clock,
    ended_state,
    last_submission,
    queued_job,
    slurm_says,
)
from workflow.cluster.locks import holder_note
from workflow.cluster.paths import AttemptPaths, RunPaths
from workflow.cluster.progress import recent_steps
from workflow.cluster.scheduler import START_PATIENCE_S
from workflow.cluster.slurm import QueueJob

_RECENT_STEPS = 10
# The job on the node shows a sign of life every five seconds; a network file system may show it late.
_BEATS_S = 30.0
_WORDS = {
    "RUNNING": "running",
    "COMPLETING": "ending",
    "CONFIGURING": "starting",
    "STAGE_OUT": "ending",
    "REQUEUED": "requeued",
    "REQUEUE_HOLD": "requeued",
    "REQUEUE_FED": "requeued",
}


@dataclass(frozen=True, slots=True)
class RunState:
    """Where a run stands.

    `state` is one of: finished, running, starting, waiting, requeued, suspended, ending, stopped, failed, cancelled,
    not submitted, unknown. `detail` is the kind of a failure, or who cancelled; `reason` is Slurm's word on why a job
    waits. `live` is whether a job of the run is there, `other` whether that (or the last) job computes something else
    than the plan wants. `step` is the last finished one of what the plan wants.
    """

    run_id: str
    state: str = "not submitted"
    detail: str = ""
    note: str = ""
    reason: str = ""
    live: bool = False
    other: bool = False
    head: bool = False
    job: Submission | None = None
    job_id: str = ""
    node: str = ""
    attempt: int | None = None
    step: int = 0
    steps: int | None = None
    step_s: float | None = None
    walltime_left_s: float | None = None
    start: float | None = None
    end: dict[str, Any] = field(default_factory=dict)
    log: Path | None = None

    @property
    def words(self) -> str:
        """The state for people."""
        if self.state == "failed":
            return "failed" if self.detail in ("", "failed") else f"failed: {self.detail}"
        return f"cancelled by {self.detail}" if self.state == "cancelled" and self.detail else self.state

    @property
    def left_s(self) -> float | None:
        """How long the remaining steps will take at the recent pace; None where that is unknown."""
        if self.state == "finished" or self.steps is None or self.step_s is None:
            return None
        return (self.steps - self.step) * self.step_s


@dataclass(frozen=True, slots=True)
class Life:
    """A job that is there, or may be."""

    state: str
    note: str = ""
    queued: QueueJob | None = None


def run_states(experiment: Experiment) -> tuple[list[RunState], SlurmSays]:
    """All runs of an experiment; Slurm is asked only where a job of theirs is in its hands."""
    there = run_folders(experiment.folder)
    runs = {want.run_id: experiment.run(want.run_id) for want in experiment.runs if want.run_id in there}
    jobs = {run_id: last_submission(run) for run_id, run in runs.items()}
    says = slurm_says(experiment.folder, [job for job in jobs.values() if job is not None])
    states = [
        look(want, runs[want.run_id], jobs[want.run_id], says)
        if want.run_id in there
        else RunState(want.run_id, steps=want.steps)
        for want in experiment.runs
    ]
    return states, says


def look(want: Wanted, run: RunPaths, job: Submission | None, says: SlurmSays) -> RunState:
    """Where one run stands."""
    head = holder_note(run.head_lock) is not None
    life = _life(run, job, says, head) if job is not None and not job.end else None
    attempts = same_attempts(run, want.fingerprint, want.inputs_sha256)
    seen = RunState(
        want.run_id,
        live=life is not None,
        other=job is not None and not computes(job.order, want.fingerprint, want.inputs_sha256),
        head=head,
        job=job,
        steps=want.steps or _steps(run, want, attempts),
    )
    # Its job may have ended well while the lines above were read: this comes last.
    if finished := finished_attempt(run, want.fingerprint, want.steps, want.inputs_sha256):
        note = f"{job.named} of another configuration is {life.state}" if job and life and seen.other else ""
        job_id = job.slurm_id if job and not seen.other else ""
        return replace(_with_progress(seen, [finished]), state="finished", note=note, job_id=job_id)
    seen = _with_progress(seen, attempts)
    if job is not None and life is not None:
        return _alive(seen, life, job)
    if seen.other or (job is None and not attempts):
        return _never(seen, run)
    return _over(seen, run, job, says)


def local_life(run: RunPaths, job: Submission, head: bool) -> Life | None:
    """A job on this machine, if it lives; one that has not taken its lock yet is told by its head."""
    if holder_note(run.live_lock) in (str(job.paths.number), ""):
        return Life("running")
    young = time.time() - job.record.get("asked", 0.0) < START_PATIENCE_S
    return Life("starting") if head and young and not attempts_of_job(run, job.paths.number) else None


def seconds_of(limit: str) -> float | None:
    """Slurm's times, such as `1-02:03:04` or `59:12`, in seconds; None for `UNLIMITED` and its like."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", limit)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds


def _steps(run: RunPaths, want: Wanted, attempts: Sequence[AttemptPaths]) -> int | None:
    for file in (run.spec, *(attempt.spec for attempt in attempts[-1:])):
        spec = read_object(file)
        if spec.get("fingerprint") == want.fingerprint:
            return int(spec["workload"]["steps"])
    return None


def _with_progress(seen: RunState, attempts: Sequence[AttemptPaths]) -> RunState:
    """How far the newest attempt is; before its first step, how far those before it were."""
    if not attempts:
        return seen
    told = read_object(attempts[-1].order)
    node = (told.get("slurm") or {}).get("nodes") or told.get("host") or ""
    seen = replace(seen, attempt=attempts[-1].number, node=node)
    for attempt in reversed(attempts):
        if steps := recent_steps(attempt.metrics):
            seconds = [seconds for _, seconds in steps[-_RECENT_STEPS:]]
            return replace(seen, step=steps[-1][0], step_s=statistics.median(seconds))
    return seen


def _life(run: RunPaths, job: Submission, says: SlurmSays, head: bool) -> Life | None:
    return _slurm_life(run, job, says, head) if job.on_slurm else local_life(run, job, head)


def _slurm_life(run: RunPaths, job: Submission, says: SlurmSays, head: bool) -> Life | None:
    if says.silence:
        return Life("unknown", _last_sign(run, job))
    answer = says.answer
    queued = queued_job(job, answer)
    if queued is None and job.job_id is None:
        return Life("starting", "is being submitted") if head and not job.record.get("error") else None
    if queued is None and answer.asked < job.record.get("submitted", 0.0) + 2.0:
        return Life("waiting", "just submitted")
    if queued is None:
        told_of = job.job_id in answer.ended or ended_state(job, answer)
        return None if told_of or not _beats(run, job) else Life("running", "unknown to Slurm, but still writes")
    if queued.state == "PENDING":
        return Life("requeued" if attempts_of_job(run, job.paths.number) else "waiting", "", queued)
    return Life(_WORDS.get(queued.state, queued.state.lower().replace("_", " ")), "", queued)


def _last_sign(run: RunPaths, job: Submission) -> str:
    """What the files tell of a job of which Slurm tells nothing."""
    age_s = _silent_s(run, job)
    if age_s is None:
        return "has not begun yet"
    return f"wrote {age_s:.0f} s ago" if age_s < _BEATS_S else f"last wrote at {clock(time.time() - age_s)}"


def _beats(run: RunPaths, job: Submission) -> bool:
    age_s = _silent_s(run, job)
    return age_s is not None and age_s < _BEATS_S


def _silent_s(run: RunPaths, job: Submission) -> float | None:
    """Seconds since the job's last attempt showed a sign of life; None if it made no attempt."""
    attempts = attempts_of_job(run, job.paths.number)
    if not attempts:
        return None
    signs = (attempts[-1].heartbeat, attempts[-1].metrics, attempts[-1].order)
    times = [file.stat().st_mtime for file in signs if file.exists()]
    return max(0.0, time.time() - max(times, default=0.0))


def _alive(seen: RunState, life: Life, job: Submission) -> RunState:
    """The state of a run that has a job."""
    note = "; ".join(filter(None, ("of another configuration" if seen.other else "", life.note)))
    seen = replace(seen, state=life.state, note=note, job_id=job.slurm_id)
    if (queued := life.queued) is None:
        return seen
    seen = replace(seen, job_id=queued.job_id, node=queued.nodes)
    if queued.state == "PENDING":
        return replace(seen, reason=queued.reason.strip("()").split(",")[0], start=queued.start)
    return replace(seen, walltime_left_s=seconds_of(queued.left))


def _over(seen: RunState, run: RunPaths, job: Submission | None, says: SlurmSays) -> RunState:
    """The state of a run whose last job has ended without finishing it."""
    if job is None:  # its attempts are older than the files of jobs
        return replace(seen, state="stopped")
    end, by = _end(run, job, says), cancelled_by(job.paths)
    seen = replace(seen, job_id=job.slurm_id, end=end, log=log_of(run, job.paths))
    if end["kind"] == "cancelled" or (end["kind"] == "stopped" and by):
        told = by or str(end.get("by") or "")
        return replace(seen, state="cancelled", detail="" if told.startswith("somebody") else told)
    if end["kind"] not in RETRIED:
        return replace(seen, state="failed", detail="no proof" if end["kind"] == "finished" else end["kind"])
    if not job.on_slurm:
        return replace(seen, state="stopped")
    return replace(seen, state="stopped", note=why_again(end) + ("; its head submits it again" if seen.head else ""))


def _never(seen: RunState, run: RunPaths) -> RunState:
    """The state of a run of which nothing was submitted, though something else may have been in its place."""
    if any(attempt.done.is_file() for attempt in run.attempts()):
        return replace(seen, note="finished, of another configuration")
    return replace(seen, note="its head is about to submit it" if seen.head else "")


def _end(run: RunPaths, job: Submission, says: SlurmSays) -> dict[str, Any]:
    """end.json, or what a head would write into it."""
    if job.end:
        return job.end
    if job.record.get("error"):
        return {"kind": "not submitted", "detail": job.record["error"]}
    if not job.on_slurm or job.job_id is None:
        return {"kind": "vanished"}
    ended = says.answer.ended.get(job.job_id)
    return end_told_by_slurm(run, job.paths, ended, ended.state if ended else ended_state(job, says.answer))
