"""Determines what each run is doing, from its files and Slurm's last answer; changes nothing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.retry import exists
from workflow.head.watch import START_PATIENCE_S
from workflow.runs.experiment import ExpectedRun, Experiment, run_folders
from workflow.runs.history import (
    RETRIED,
    attempts_of_job,
    end_from_slurm,
    final_end,
    finished_attempt,
    is_request_for,
    log_of,
    matching_attempts,
    read_object,
    retry_reason,
    steps_of,
)
from workflow.runs.job_state import (
    Evidence,
    JobState,
    Life,
    Pulse,
    filesystem_now,
    job_state,
    pulse_at,
    silence_s,
)
from workflow.runs.jobs import SlurmReport, Submission, clock, last_submission, slurm_report
from workflow.runs.locks import can_ask, holder_note
from workflow.runs.paths import AttemptPaths, RunPaths
from workflow.runs.progress import recent_steps
from workflow.slurm.commands import seconds_of

DONE = ("finished", "not needed")
"""The states in which nothing is left to do."""
_RECENT_STEPS = 10
# As many answers as a launcher would require: a single check trusts Slurm together with the heartbeat.
_ENOUGH_ANSWERS = 6
# A life may take minutes from its start in Slurm to its first output.
_UNHEARD_S = 600.0
_LIFE_LABELS = {Life.ABANDONED: "running", Life.DOUBTED: "unknown", Life.SILENT: "unknown", Life.SUBMITTING: "starting"}


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a run.

    `state` is one of: finished, running, starting, waiting, requeued, suspended, ending, stopped, failed, cancelled,
    not submitted, not needed, unknown. `detail`: the kind of a failure, or who cancelled. `reason`: why Slurm lets a
    job wait.
    `live`: the run has a living job. `other`: that (or the last) job is of another configuration than the plan's.
    `step`: the last finished step of the planned configuration.
    """

    run_id: str
    state: str = "not submitted"
    detail: str = ""
    note: str = ""
    reason: str = ""
    live: bool = False
    other: bool = False
    launcher: bool = False
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
    def label(self) -> str:
        if self.state == "failed":
            return "failed" if self.detail in ("", "failed") else f"failed: {self.detail}"
        return f"cancelled by {self.detail}" if self.state == "cancelled" and self.detail else self.state

    @property
    def left_s(self) -> float | None:
        """Duration of the remaining steps at the recent pace; None if unknown."""
        if self.state in DONE or self.steps is None or self.step_s is None:
            return None
        return (self.steps - self.step) * self.step_s


def run_states(experiment: Experiment) -> tuple[list[RunState], SlurmReport]:
    """The states of all runs of an experiment; Slurm is asked only if it has one of their jobs."""
    present = run_folders(experiment.folder)
    runs = {run.run_id: experiment.run(run.run_id) for run in experiment.runs if run.run_id in present}
    jobs = {run_id: last_submission(run) for run_id, run in runs.items()}
    report = slurm_report(experiment.folder, [job for job in jobs.values() if job is not None])
    now = filesystem_now(experiment.folder) if any(job and job.on_slurm for job in jobs.values()) else time.time()
    states = [
        _run_state(run, runs[run.run_id], jobs[run.run_id], report, now)
        if run.run_id in present
        else RunState(run.run_id, steps=run.steps)
        for run in experiment.runs
    ]
    needed = [run.needed for run in experiment.runs]
    return [one if of else _unneeded(one) for one, of in zip(states, needed, strict=True)], report


def _unneeded(state: RunState) -> RunState:
    """The state of a run that the looks do not want: how its job ended is a note."""
    if state.live or state.launcher or state.state == "finished":
        return state
    note = state.note if state.state == "not submitted" else state.label
    return replace(state, state="not needed", detail="", note=note, end={}, log=None)


def _run_state(
    expected: ExpectedRun, run: RunPaths, job: Submission | None, report: SlurmReport, now: float
) -> RunState:
    """One run's state; `now` is the file system's time."""
    has_launcher = holder_note(run.launcher_lock) is not None
    found = state_of_job(run, job, report, has_launcher, now) if job is not None else None
    life = found if found is not None and found.alive else None
    attempts = matching_attempts(run, expected.fingerprint, expected.inputs_sha256)
    state = RunState(
        expected.run_id,
        live=life is not None,
        other=job is not None and not is_request_for(job.request, expected.fingerprint, expected.inputs_sha256),
        launcher=has_launcher,
        job=job,
        steps=expected.steps or _steps(run, expected, attempts),
    )
    # Check this last: the job may have finished while the lines above were read.
    if finished := finished_attempt(run, expected.fingerprint, expected.steps, expected.inputs_sha256):
        note = f"{job.label} of another configuration is {_life_label(life)}" if job and life and state.other else ""
        job_id = job.slurm_id if job and not state.other else ""
        return replace(_with_progress(state, [finished]), state="finished", note=note, job_id=job_id)
    state = _with_progress(state, attempts)
    if job is not None and life is not None:
        return _alive(state, life, job, _unheard(run, job, life, now))
    if state.other or (job is None and not attempts):
        if any(exists(attempt.done) for attempt in run.attempts()):
            return replace(state, note="finished, of another configuration")
        return replace(state, note="its launcher is about to submit it" if has_launcher else "")
    return _ended(state, run, job, found)


def state_of_job(run: RunPaths, job: Submission, report: SlurmReport, has_launcher: bool, now: float) -> JobState:
    """The state of a run's job from a single check."""
    if not job.on_slurm:
        holds = holder_note(run.live_lock) in (str(job.paths.number), "")
        if not can_ask(run.live_lock):
            seen = pulse_at(run, job.paths.number, now)
            holds = bool(seen.beats) and not seen.exited
        young = time.time() - job.record.get("asked", 0.0) < START_PATIENCE_S
        pulse = Pulse(began=bool(attempts_of_job(run, job.paths.number)))
        return job_state(Evidence(job, holds_lock=holds, submitting=has_launcher and young, pulse=pulse))
    pulse = pulse_at(run, job.paths.number, now)
    # One check is enough for a job without attempts if accounting knows its end, or if there is no accounting.
    settled = job.job_id in report.answer.ended or not report.answer.accounting
    newest = next(reversed(attempts_of_job(run, job.paths.number)), None)
    # By the clocks of two hosts: if they differ, a job is for a moment called requeued that begins, or the reverse.
    began = read_object(newest.request).get("started", 0.0) if newest is not None else 0.0
    return job_state(
        Evidence(
            job,
            submitting=has_launcher,
            answer=report.answer,
            unavailable=report.unavailable and _last_sign(run, job, now),
            answers_without=_ENOUGH_ANSWERS if pulse.began or job.end or settled else 1,
            pulse=pulse,
            began_since=began > report.answer.asked,
        )
    )


def _steps(run: RunPaths, expected: ExpectedRun, attempts: Sequence[AttemptPaths]) -> int | None:
    for file in (run.spec, *(attempt.spec for attempt in attempts[-1:])):
        spec = read_object(file)
        if spec.get("fingerprint") == expected.fingerprint:
            return steps_of(spec)
    return None


def _with_progress(state: RunState, attempts: Sequence[AttemptPaths]) -> RunState:
    """Adds the progress of the newest attempt, or before its first step that of the attempt before it."""
    if not attempts:
        return state
    request = read_object(attempts[-1].request)
    node = (request.get("slurm") or {}).get("nodes") or request.get("host") or ""
    state = replace(state, attempt=attempts[-1].number, node=node)
    for attempt in reversed(attempts):
        if steps := recent_steps(attempt.metrics):
            seconds = [seconds for _, seconds in steps[-_RECENT_STEPS:]]
            return replace(state, step=steps[-1][0], step_s=statistics.median(seconds))
    return state


def _last_sign(run: RunPaths, job: Submission, now: float) -> str:
    attempts = attempts_of_job(run, job.paths.number)
    if not attempts:
        return "has not begun yet"
    age_s = silence_s(attempts[-1], now)
    return f"wrote {age_s:.0f} s ago" if age_s < 60.0 else f"last wrote at {clock(time.time() - age_s)}"


def _unheard(run: RunPaths, job: Submission, life: JobState, now: float) -> str:
    """The remedy for a job that runs according to Slurm and has not written for long; empty if all is well.

    A slurmctld that was killed while the job ended shows it as running again, and corrects that only after minutes.
    """
    attempts = attempts_of_job(run, job.paths.number)
    if life.queued is None or life.queued.state != "RUNNING" or not attempts:
        return ""
    if silence_s(attempts[-1], now) < _UNHEARD_S:
        return ""
    remedy = f"if no process of it is on its node, `scontrol requeue {life.queued.job_id}` lets it continue"
    return f"runs for Slurm, but {_last_sign(run, job, now)}: {remedy}"


def _life_label(state: JobState) -> str:
    if state.life is Life.RUNNING and state.queued is not None and state.queued.state != "RUNNING":
        return state.queued.state.lower().replace("_", " ")
    return _LIFE_LABELS.get(state.life, str(state.life))


def _alive(state: RunState, life: JobState, job: Submission, unheard: str) -> RunState:
    note = "; ".join(filter(None, ("of another configuration" if state.other else "", life.note, unheard)))
    state = replace(state, state=_life_label(life), note=note, job_id=job.slurm_id)
    if (queued := life.queued) is None:
        return state
    state = replace(state, job_id=queued.job_id, node=queued.nodes)
    if queued.state == "PENDING":
        return replace(state, reason=queued.reason.strip("()").split(",")[0], start=queued.start)
    return replace(state, walltime_left_s=seconds_of(queued.left))


def _ended(state: RunState, run: RunPaths, job: Submission | None, found: JobState | None) -> RunState:
    """The state of a run whose last job has ended without finishing it."""
    if job is None or found is None:  # its attempts are older than the files of jobs
        return replace(state, state="stopped")
    end = _end(run, job, found)
    state = replace(state, job_id=job.slurm_id, end=end, log=log_of(run, job.paths))
    if end["kind"] == "cancelled":
        by = str(end.get("by") or "")
        return replace(state, state="cancelled", detail="" if by.startswith("somebody") else by)
    if end["kind"] not in RETRIED:
        return replace(state, state="failed", detail="no proof" if end["kind"] == "finished" else end["kind"])
    if not job.on_slurm:
        return replace(state, state="stopped")
    again = "; its launcher submits it again" if state.launcher else ""
    return replace(state, state="stopped", note=retry_reason(end) + again)


def _end(run: RunPaths, job: Submission, found: JobState) -> dict[str, Any]:
    """end.json, or what a launcher would write into it."""
    if job.end:
        return final_end(job.paths, job.end)
    if job.record.get("error"):
        return {"kind": "not submitted", "detail": job.record["error"]}
    if not job.on_slurm or job.job_id is None:
        return {"kind": "vanished"}
    return end_from_slurm(run, job.paths, found.ended, found.slurm_state)
