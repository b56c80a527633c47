"""Ends an experiment's jobs, and only those: on Slurm by id, after Slurm has said whose job that is."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from common.files import user_name, write_json, write_text
from common.messages import join_first, unknown_name
from workflow.cluster import slurm
from workflow.cluster.ends import cancelled_by
from workflow.cluster.experiment import Experiment, unplanned
from workflow.cluster.jobstate import JobState, Life, filesystem_now
from workflow.cluster.locks import holder_note
from workflow.cluster.paths import JobPaths, RunPaths
from workflow.cluster.slurm import QueueJob, SlurmError
from workflow.cluster.slurm_answer import Answer, ask, want
from workflow.cluster.state import state_of
from workflow.cluster.submissions import SlurmReport, Submission, owner_of, submission

# How long a submission that is on its way is waited for; a later one is cancelled by whoever submits it.
_SUBMIT_PATIENCE_S = 10.0
_LATE = "is cancelled as soon as its submission comes back"
_DOUBTED = "is not in Slurm's answer; should its job be there, it ends before it trains"


@dataclass(frozen=True, slots=True)
class _Target:
    """A run's job that may be alive."""

    run_id: str
    run: RunPaths
    job: Submission


def cancel(experiment: Experiment, chosen: Sequence[str], now: bool = False) -> list[str]:
    """End the jobs of an experiment, or of the chosen runs of it; what was done, for people.

    Raises `UserError` if something is left that should have been cancelled.
    """
    known = [want.run_id for want in (*experiment.runs, *unplanned(experiment).runs)]
    imported = [want.run_id for want in experiment.imports]
    for run_id in chosen:
        if run_id in imported:
            raise UserError(f"run {run_id} is imported: no job of it is here to cancel; nothing was cancelled")
        if run_id not in known:
            raise UserError(f"{unknown_name('run', run_id, known)}; nothing was cancelled")
    if not known:
        return [f"all runs of {experiment.name} are imported: there is nothing to cancel"]
    if not experiment.folder.is_dir():
        return [f"nothing of {experiment.name} was started: there is nothing to cancel"]
    _require_own(experiment.folder)
    if not chosen:
        # Before anything is looked at: what is not seen on its way now will see this (workflow/cluster/submit.py).
        _note(experiment.cancelled)
    wanted = {run_id: experiment.run(run_id) for run_id in dict.fromkeys(chosen or known)}
    give_up = time.monotonic() + _SUBMIT_PATIENCE_S
    fs_now = filesystem_now(experiment.folder)
    targets = [target for run_id, run in wanted.items() for target in _targets(run_id, run, give_up, fs_now)]
    for target in targets:
        _require_own(target.job.paths.record)
    told = _cancel_local([target for target in targets if not target.job.on_slurm], now)
    told |= _cancel_slurm(experiment, [target for target in targets if target.job.on_slurm], told)
    lines = [f"{run_id}: {words}" for run_id, words in told.items()]
    if chosen:
        return lines + [f"{run_id}: {_nothing(wanted[run_id])}" for run_id in wanted if run_id not in told]
    left = len(wanted) - len(told)
    lines += [f"{left} run{'s' * (left != 1)} had nothing to cancel"] if left else []
    return [*lines, f"{experiment.name} is cancelled: nothing more is submitted until snakemake is started again"]


def _targets(run_id: str, run: RunPaths, give_up: float, now: float) -> list[_Target]:
    """A run's jobs that have not ended, or whose trainer still writes; one just being submitted is waited for."""
    found = []
    for paths in run.jobs():
        job = submission(paths)
        while _on_its_way(run, job) and time.monotonic() < give_up:
            time.sleep(0.2)
            job = submission(paths)
        target = _Target(run_id, run, job)
        if _state(target, SlurmReport(unavailable="not asked yet"), now).alive:
            found.append(target)
    return found


def _on_its_way(run: RunPaths, job: Submission) -> bool:
    """Whether a program is about to submit the job, or to say what became of that; it keeps the head's lock."""
    undecided = not job.end and job.job_id is None and not job.record.get("error")
    return undecided and holder_note(run.head_lock) is not None


def _cancel_local(targets: Iterable[_Target], now: bool) -> dict[str, str]:
    told = {}
    for target in targets:
        _note(target.job.paths.cancelled)
        write_text(target.job.paths.stop, "now" if now else "soon")
        told[target.run_id] = "told to stop at once" if now else "told to stop after its step, with a checkpoint"
    return told


def _state(target: _Target, says: SlurmReport, now: float) -> JobState:
    head = holder_note(target.run.head_lock) is not None
    return state_of(target.run, target.job, says, head, now)


def _cancel_slurm(experiment: Experiment, targets: Sequence[_Target], done: dict[str, str]) -> dict[str, str]:
    if not targets:
        return {}
    folder = targets[0].run.slurm
    for target in targets:
        want(folder, target.job.slurm_id)
    answer, now = ask(folder, fresh=True), filesystem_now(experiment.folder)
    says = SlurmReport(answer, answer.error or "")
    states = {target.job.paths: _state(target, says, now) for target in targets}
    # A trainer that Slurm has lost hold of reads its stop file all the same.
    lost = [target for target in targets if states[target.job.paths].life is Life.ABANDONED]
    for target in lost:
        _note(target.job.paths.cancelled)
        write_text(target.job.paths.stop, "now")
    told = {target.run_id: "told to stop at once, by its file: Slurm has lost hold of it" for target in lost}
    if answer.error is not None:
        raise UserError(_left(experiment, targets, done | told, f"Slurm does not answer: {answer.error}"))
    found = _live_jobs(targets, answer)
    live = [target for target in targets if found[target.job.paths]]
    unseen = {Life.SUBMITTING: _LATE, Life.DOUBTED: _DOUBTED}
    late = [target for target in targets if target not in live and states[target.job.paths].life in unseen]
    # Before Slurm is told: a job that requeues itself, a life that begins and a submission that comes back read this.
    noted = [target.job.paths.cancelled for target in live if _note(target.job.paths.cancelled)]
    for target in late:
        _note(target.job.paths.cancelled)
        told[target.run_id] = unseen[states[target.job.paths].life]
    try:
        slurm.cancel([job.job_id for target in live for job in found[target.job.paths]])
    except SlurmError as error:
        # What was not cancelled must not be told later to have been.
        for file in noted:
            file.unlink(missing_ok=True)
        raise UserError(_left(experiment, live, done | told, f"Slurm does not answer: {error}")) from None
    for target in live:
        jobs = " and ".join(f"{job.job_id} ({job.state.lower()})" for job in found[target.job.paths])
        told[target.run_id] = "; ".join(filter(None, (told.get(target.run_id), f"cancelled Slurm job {jobs}")))
    return told


def _live_jobs(targets: Sequence[_Target], answer: Answer) -> dict[JobPaths, list[QueueJob]]:
    """Each submission's jobs, by their name, which no other run has: its id may by now be another job's.

    Submissions that compute the same have one name; a job goes to the one that has its id, or else to the last.
    """
    submissions = {target.job.name: target.job.paths for target in targets}
    submissions |= {target.job.job_id or "": target.job.paths for target in targets}
    found: dict[JobPaths, list[QueueJob]] = {target.job.paths: [] for target in targets}
    for name in dict.fromkeys(target.job.name for target in targets if target.job.name):
        for job in answer.jobs_named(name):
            found[submissions.get(job.job_id, submissions[name])].append(job)
    return found


def _left(experiment: Experiment, targets: Sequence[_Target], done: dict[str, str], why: str) -> str:
    """What was not cancelled, and what was."""
    runs = list(dict.fromkeys(target.run_id for target in targets))
    cancelled = f"cancelled: {', '.join(done)}" if done else "nothing was cancelled"
    kept = "; no head will submit more" if experiment.cancelled.exists() else ""
    return f"{why}\n{cancelled}{kept}. There may be jobs of {join_first(runs, 5)}: try again when `squeue` answers"


def _note(file: Path) -> bool:
    """Write who cancels, for whoever will read it; False where somebody did before, whose word stands."""
    if file.exists():
        return False
    write_json(file, {"by": user_name(), "time": time.time()})
    return True


def _require_own(path: Path) -> None:
    owner = owner_of(path)
    if owner != os.getuid():
        name = user_name(owner)
        raise UserError(
            f"{path} belongs to {name}, who alone can cancel what is submitted from it (you are {user_name()}); "
            f"ask {name}. Nothing was cancelled"
        )


def _nothing(run: RunPaths) -> str:
    """Why there is nothing to cancel of a run."""
    if holder_note(run.head_lock) is not None:
        return "no job is there, but a head that may submit one; to stop that, cancel the whole experiment"
    jobs = run.jobs()
    by = cancelled_by(jobs[-1]) if jobs else None
    return f"nothing to cancel: cancelled by {by} before" if by else "nothing to cancel"
