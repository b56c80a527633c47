"""Determines what each run is doing, from its files and squeue's last answer; changes nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.retry import exists
from workflow.runs.ends import Then, end_from_slurm, explain, what_follows
from workflow.runs.experiment import ExpectedRun, Experiment, run_folders
from workflow.runs.history import finished_attempt, log_of, matching_attempts, read_object, steps_of
from workflow.runs.locks import holder_note
from workflow.runs.orders import JobState, Order, Presence, clock, job_state, order_of, queue_now
from workflow.runs.paths import AttemptPaths, RunPaths
from workflow.runs.progress import Pace, reader_of
from workflow.runs.pulse import filesystem_now, silence_s, still_writes
from workflow.slurm.commands import seconds_of
from workflow.slurm.shared_queue import Queue

DONE = ("finished", "not needed")
"""The states in which nothing is left to do."""
# A life may take minutes from its start in Slurm to its first output.
_UNHEARD_S = 600.0


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a run.

    `state` is one of: finished, failed, cancelled (its order has ended); running, waiting, unknown (its job);
    stopped, not submitted (no job), not needed. `detail`: the kind of a failure, or who cancelled. `reason`: why Slurm
    lets a job wait. `live`: the run has a living job. `other`: that (or the last) job is of another configuration than
    the plan's. `step`: the last finished step of the planned configuration.
    """

    run_id: str
    state: str = "not submitted"
    detail: str = ""
    note: str = ""
    reason: str = ""
    live: bool = False
    other: bool = False
    launcher: bool = False
    order: Order | None = None
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


def run_states(experiment: Experiment) -> tuple[list[RunState], Queue]:
    """The states of all runs of an experiment; Slurm is asked only if it may have one of their jobs."""
    present = run_folders(experiment.folder)
    orders = {run.run_id: order_of(experiment.run(run.run_id)) for run in experiment.runs if run.run_id in present}
    queue = queue_now(experiment.folder, orders.values())
    now = filesystem_now(experiment.folder) if any(order.on_slurm for order in orders.values()) else time.time()
    states = [
        _run_state(run, orders[run.run_id], queue, now)
        if run.run_id in present
        else RunState(run.run_id, steps=run.steps)
        for run in experiment.runs
    ]
    needed = [run.needed for run in experiment.runs]
    return [one if of else _unneeded(one) for one, of in zip(states, needed, strict=True)], queue


def _unneeded(state: RunState) -> RunState:
    """The state of a run that the looks do not want: how its job ended is a note."""
    if state.live or state.launcher or state.state == "finished":
        return state
    note = state.note if state.state == "not submitted" else state.label
    return replace(state, state="not needed", detail="", note=note, end={}, log=None)


def _run_state(expected: ExpectedRun, order: Order, queue: Queue, now: float) -> RunState:
    """One run's state; `now` is the file system's time."""
    run = order.run
    job = job_state(order, queue) if not (order.end() and not order.on_slurm) else JobState(Presence.NONE)
    writes = job.job is Presence.NONE and order.on_slurm and still_writes(run, now)
    if writes and not order.end():
        job = JobState(Presence.RUNNING, "squeue does not list it, and it still writes")
    attempts = matching_attempts(run, expected.fingerprint, expected.inputs_sha256)
    state = RunState(
        expected.run_id,
        live=job.job is not Presence.NONE and not (job.job is Presence.UNKNOWN and bool(order.end())),
        other=bool(order) and not order.is_for(expected.fingerprint, expected.inputs_sha256),
        launcher=holder_note(run.launcher_lock) is not None,
        order=order if order else None,
        job_id=job.queued.job_id if job.queued is not None else order.job_id,
        steps=expected.steps or _steps(run, expected, attempts),
    )
    # Check this last: the job may have finished while the lines above were read.
    if finished := finished_attempt(run, expected.fingerprint, expected.steps, expected.inputs_sha256):
        note = f"{order.label} of another configuration is {job.job}" if state.live and state.other else ""
        job_id = "" if state.other else state.job_id
        return replace(_with_progress(state, [finished]), state="finished", note=note, job_id=job_id)
    state = _with_progress(state, attempts)
    if state.live:
        return _alive(state, job, order, now)
    if state.other or (not order and not attempts):
        if any(exists(attempt.done) for attempt in run.attempts()):
            return replace(state, note="finished, of another configuration")
        return replace(state, note=_of_launcher(run) if state.launcher else "")
    state = _ended(state, order, queue)
    if writes:
        note = "its last attempt still writes, on a node that Slurm gave up: `rolloutbench cancel` ends it"
        state = replace(state, note="; ".join(filter(None, (state.note, note))))
    return state


def _of_launcher(run: RunPaths) -> str:
    """What the launcher of a run without an order does: it submits nothing of an experiment that is cancelled."""
    return "its launcher ends" if exists(run.cancelled) else "its launcher is about to submit it"


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
        pace = Pace(reader_of(attempt, newest=True))
        if pace.advance():
            return replace(
                state, step=pace.last_step or 0, step_s=pace.usual_s or None, steps=state.steps or pace.steps
            )
    return state


def _alive(state: RunState, job: JobState, order: Order, now: float) -> RunState:
    attempts, sign = order.run.attempts(), ""
    if attempts:
        age_s = silence_s(attempts[-1], now)
        sign = f"wrote {age_s:.0f} s ago" if age_s < 60.0 else f"last wrote at {clock(time.time() - age_s)}"
    queued = job.queued
    if job.job is Presence.UNKNOWN:
        job = replace(job, note=sign or "has not begun yet")
    elif queued is not None and queued.state == "RUNNING" and attempts and silence_s(attempts[-1], now) > _UNHEARD_S:
        # A slurmctld that was killed while the job ended shows it as running, and corrects that only after minutes.
        remedy = f"if no process of it is on its node, `scontrol requeue {queued.job_id}` lets it continue"
        job = replace(job, note=f"runs for Slurm, but {sign}: {remedy}")
    by = order.end().get("by")
    other = "of another configuration" if state.other else ""
    note = "; ".join(filter(None, (other, f"cancelled by {by}" if by else "", job.note)))
    state = replace(state, state=str(job.job), note=note)
    if queued is None:
        return state
    state = replace(state, node=queued.nodes)
    if job.job is Presence.WAITING:
        return replace(state, reason=queued.reason.strip("()").split(",")[0], start=queued.start)
    return replace(state, walltime_left_s=seconds_of(queued.left))


def _ended(state: RunState, order: Order, queue: Queue) -> RunState:
    """The state of a run without a job that has not finished: its order has ended, or nobody has seen to it yet."""
    if not order:  # its attempts are those of an earlier release
        return replace(state, state="stopped")
    end = order.end() or _last_words(order, queue)
    state = replace(state, end=end, log=log_of(order.run, end))
    if end["kind"] == "cancelled":
        by = str(end.get("by") or "")
        return replace(state, state="cancelled", detail="" if by.startswith("somebody") else by)
    if order.on_slurm and what_follows(end) is Then.AGAIN:
        again = "; its launcher submits it again" if state.launcher else ""
        return replace(state, state="stopped", note=explain(end, {}).partition("; ")[0] + again)
    if end["kind"] == "stopped":
        return replace(state, state="stopped")
    return replace(state, state="failed", detail="no proof" if end["kind"] == "finished" else end["kind"])


def _last_words(order: Order, queue: Queue) -> dict[str, Any]:
    """How a job ended that wrote no end itself, as far as a single look can tell."""
    if not order.on_slurm:
        return {"kind": "vanished"}
    listed, lives = queue.ended(order.name, order.content["job_ids"]), order.run.attempts()[-1:]
    newest = {**read_object(lives[0].exit), "attempt": lives[0].number} if lives else None
    return end_from_slurm(listed.state if listed else "", None, newest, "")
