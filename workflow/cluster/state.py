"""Describes what a run is doing, by its files and by what Slurm last said; nothing is changed by looking."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.retry import exists
from workflow.cluster.ends import RETRIED, end_from_slurm, final_end, retry_reason
from workflow.cluster.experiment import ExpectedRun, Experiment, run_folders
from workflow.cluster.history import attempts_of_job, computes, finished_attempt, log_of, matching_attempts, read_object
from workflow.cluster.jobstate import Evidence, JobState, Life, Pulse, filesystem_now, job_state, pulse_at, silence_s
from workflow.cluster.locks import holder_note
from workflow.cluster.paths import AttemptPaths, RunPaths
from workflow.cluster.progress import recent_steps
from workflow.cluster.scheduler import START_PATIENCE_S
from workflow.cluster.slurm import seconds_of
from workflow.cluster.submissions import SlurmReport, Submission, clock, last_submission, slurm_report

_RECENT_STEPS = 10
# As many answers as a head would want of Slurm: a look that decides nothing takes Slurm's word with the heartbeat's.
_ENOUGH_ANSWERS = 6
# A life may take minutes from its start in Slurm to its first word.
_UNHEARD_S = 600.0
_WORDS = {Life.ABANDONED: "running", Life.DOUBTED: "unknown", Life.SILENT: "unknown", Life.SUBMITTING: "starting"}


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


def run_states(experiment: Experiment) -> tuple[list[RunState], SlurmReport]:
    """All runs of an experiment; Slurm is asked only where a job of theirs is in its hands."""
    there = run_folders(experiment.folder)
    runs = {want.run_id: experiment.run(want.run_id) for want in experiment.runs if want.run_id in there}
    jobs = {run_id: last_submission(run) for run_id, run in runs.items()}
    says = slurm_report(experiment.folder, [job for job in jobs.values() if job is not None])
    now = filesystem_now(experiment.folder) if any(job and job.on_slurm for job in jobs.values()) else time.time()
    states = [
        look(want, runs[want.run_id], jobs[want.run_id], says, now)
        if want.run_id in there
        else RunState(want.run_id, steps=want.steps)
        for want in experiment.runs
    ]
    return states, says


def look(want: ExpectedRun, run: RunPaths, job: Submission | None, says: SlurmReport, now: float) -> RunState:
    """Where one run stands, at a time of the file system's."""
    head = holder_note(run.head_lock) is not None
    found = state_of(run, job, says, head, now) if job is not None else None
    life = found if found is not None and found.alive else None
    attempts = matching_attempts(run, want.fingerprint, want.inputs_sha256)
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
        note = f"{job.label} of another configuration is {_word(life)}" if job and life and seen.other else ""
        job_id = job.slurm_id if job and not seen.other else ""
        return replace(_with_progress(seen, [finished]), state="finished", note=note, job_id=job_id)
    seen = _with_progress(seen, attempts)
    if job is not None and life is not None:
        return _alive(seen, life, job, _unheard(run, job, life, now))
    if seen.other or (job is None and not attempts):
        return _never(seen, run)
    return _over(seen, run, job, found)


def state_of(run: RunPaths, job: Submission, says: SlurmReport, head: bool, now: float) -> JobState:
    """The state of a run's job at a single look; `head` is whether a launcher cares for the run."""
    if not job.on_slurm:
        holds = holder_note(run.live_lock) in (str(job.paths.number), "")
        young = time.time() - job.record.get("asked", 0.0) < START_PATIENCE_S
        pulse = Pulse(began=bool(attempts_of_job(run, job.paths.number)))
        return job_state(Evidence(job, holds_lock=holds, submitting=head and young, pulse=pulse))
    pulse = pulse_at(run, job.paths.number, now)
    return job_state(
        Evidence(
            job,
            submitting=head,
            answer=says.answer,
            unavailable=says.unavailable and _last_sign(run, job, now),
            answers_without=_ENOUGH_ANSWERS if pulse.began or job.end or _settled(job, says) else 1,
            pulse=pulse,
        )
    )


def _settled(job: Submission, says: SlurmReport) -> bool:
    """Whether one look is enough for a job that made no attempt: accounting has its end, or there is no accounting."""
    return job.job_id in says.answer.ended or not says.answer.accounting


def _steps(run: RunPaths, want: ExpectedRun, attempts: Sequence[AttemptPaths]) -> int | None:
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


def _last_sign(run: RunPaths, job: Submission, now: float) -> str:
    """What the files tell of a job of which Slurm tells nothing."""
    attempts = attempts_of_job(run, job.paths.number)
    if not attempts:
        return "has not begun yet"
    age_s = silence_s(attempts[-1], now)
    return f"wrote {age_s:.0f} s ago" if age_s < 60.0 else f"last wrote at {clock(time.time() - age_s)}"


def _unheard(run: RunPaths, job: Submission, life: JobState, now: float) -> str:
    """What to do about a job that Slurm has running though it has not written for long; nothing where all is well.

    A slurmctld that was killed while the job ended has it running again, and finds the truth after many minutes.
    """
    attempts = attempts_of_job(run, job.paths.number)
    if life.queued is None or life.queued.state != "RUNNING" or not attempts:
        return ""
    if silence_s(attempts[-1], now) < _UNHEARD_S:
        return ""
    remedy = f"if its node has no process of it, `scontrol requeue {life.queued.job_id}` lets it go on"
    return f"runs for Slurm, but {_last_sign(run, job, now)}: {remedy}"


def _word(state: JobState) -> str:
    """A job's life for people."""
    if state.life is Life.RUNNING and state.queued is not None and state.queued.state != "RUNNING":
        return state.queued.state.lower().replace("_", " ")
    return _WORDS.get(state.life, str(state.life))


def _alive(seen: RunState, life: JobState, job: Submission, unheard: str) -> RunState:
    """The state of a run that has a job."""
    note = "; ".join(filter(None, ("of another configuration" if seen.other else "", life.note, unheard)))
    seen = replace(seen, state=_word(life), note=note, job_id=job.slurm_id)
    if (queued := life.queued) is None:
        return seen
    seen = replace(seen, job_id=queued.job_id, node=queued.nodes)
    if queued.state == "PENDING":
        return replace(seen, reason=queued.reason.strip("()").split(",")[0], start=queued.start)
    return replace(seen, walltime_left_s=seconds_of(queued.left))


def _over(seen: RunState, run: RunPaths, job: Submission | None, found: JobState | None) -> RunState:
    """The state of a run whose last job has ended without finishing it."""
    if job is None or found is None:  # its attempts are older than the files of jobs
        return replace(seen, state="stopped")
    end = _end(run, job, found)
    seen = replace(seen, job_id=job.slurm_id, end=end, log=log_of(run, job.paths))
    if end["kind"] == "cancelled":
        told = str(end.get("by") or "")
        return replace(seen, state="cancelled", detail="" if told.startswith("somebody") else told)
    if end["kind"] not in RETRIED:
        return replace(seen, state="failed", detail="no proof" if end["kind"] == "finished" else end["kind"])
    if not job.on_slurm:
        return replace(seen, state="stopped")
    return replace(seen, state="stopped", note=retry_reason(end) + ("; its head submits it again" if seen.head else ""))


def _never(seen: RunState, run: RunPaths) -> RunState:
    """The state of a run of which nothing was submitted, though something else may have been in its place."""
    if any(exists(attempt.done) for attempt in run.attempts()):
        return replace(seen, note="finished, of another configuration")
    return replace(seen, note="its head is about to submit it" if seen.head else "")


def _end(run: RunPaths, job: Submission, found: JobState) -> dict[str, Any]:
    """end.json, or what a head would write into it."""
    if job.end:
        return final_end(job.paths, job.end)
    if job.record.get("error"):
        return {"kind": "not submitted", "detail": job.record["error"]}
    if not job.on_slurm or job.job_id is None:
        return {"kind": "vanished"}
    return end_from_slurm(run, job.paths, found.ended, found.slurm_state)
