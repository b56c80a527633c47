"""Cancels an experiment's jobs and no others: in Slurm by id, after Slurm has confirmed whose job that is."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

from common.errors import UserError
from common.files import user_name, write_json, write_text
from common.messages import join_first, unknown_name
from common.ownership import obey_only_own_files, own_folder
from common.retry import READ_PATIENCE_S, retry_io
from common.shown import print_lines
from workflow.runs.experiment import Experiment, find_experiment, unplanned
from workflow.runs.history import cancelled_by
from workflow.runs.job_state import JobState, Life, filesystem_now
from workflow.runs.jobs import SlurmReport, Submission, owner_of, submission
from workflow.runs.locks import holder_note
from workflow.runs.paths import JobPaths, RunPaths
from workflow.runs.run_state import state_of_job
from workflow.slurm import commands as slurm
from workflow.slurm.commands import QueueJob, SlurmError
from workflow.slurm.shared_answer import Answer, ask, request_details

# A submission under way is waited for this long; a later one is cancelled by its submitter.
_SUBMIT_PATIENCE_S = 10.0
_NOT_IN_SLURM = {
    Life.SUBMITTING: "its submission is under way; it is cancelled as soon as that ends",
    Life.DOUBTED: "is not in Slurm's answer; if its job still exists, it ends before it trains",
}


def cancel_jobs(args: argparse.Namespace) -> None:
    """Run `rolloutbench cancel`."""
    obey_only_own_files()
    given: list[str] = args.words
    first = Path(given[0] if given else "")
    is_config = bool(given) and (first.suffix in (".yaml", ".yml", ".json") or first.is_file())
    config, runs = (first, given[1:]) if is_config else (None, given)
    find = find_experiment(config, args.experiment)
    experiment = retry_io(find, "the experiment", READ_PATIENCE_S, for_others=False)
    print_lines(cancel(experiment, runs, args.now))


def cancel(experiment: Experiment, chosen: Sequence[str], now: bool = False) -> list[str]:
    """Cancel the jobs of an experiment, or of the chosen runs; a message for each run.

    Raises `UserError` if some jobs could not be cancelled.
    """
    known = [run.run_id for run in (*experiment.runs, *unplanned(experiment).runs)]
    imported = [run.run_id for run in experiment.imports]
    for run_id in chosen:
        if run_id in imported:
            raise UserError(f"run {run_id} is imported and has no job here; nothing was cancelled")
        if run_id not in known:
            raise UserError(f"{unknown_name('run', run_id, known)}; nothing was cancelled")
    if not known:
        return [f"all runs of {experiment.name} are imported: there is nothing to cancel"]
    if not experiment.folder.is_dir():
        return [f"no run of {experiment.name} was started: there is nothing to cancel"]
    _require_own(experiment.folder)
    own_folder(experiment.folder)
    if not chosen:
        # Before any check: a submission that the checks do not see yet will read this (workflow/head/submit.py).
        _note(experiment.cancelled)
    runs = {run_id: experiment.run(run_id) for run_id in dict.fromkeys(chosen or known)}
    give_up = time.monotonic() + _SUBMIT_PATIENCE_S
    fs_now = filesystem_now(experiment.folder)
    jobs = [job for run in runs.values() for job in _living(run, give_up, fs_now)]
    for job in jobs:
        _require_own(job.paths.record)
    results = {}
    for job in jobs:
        if not job.on_slurm:
            _stop(job, "now" if now else "soon")
            when = "at once" if now else "after its step, with a checkpoint"
            results[job.run_id] = f"asked to stop {when}"
    results |= _cancel_slurm(experiment, [job for job in jobs if job.on_slurm], results)
    lines = [f"{run_id}: {result}" for run_id, result in results.items()]
    if chosen:
        return lines + [f"{run_id}: {_why_nothing(runs[run_id])}" for run_id in runs if run_id not in results]
    left = len(runs) - len(results)
    lines += [f"{left} run{'s' * (left != 1)} had nothing to cancel"] if left else []
    return [*lines, f"{experiment.name} is cancelled: nothing is submitted until snakemake is started again"]


def _living(run: RunPaths, give_up: float, now: float) -> list[Submission]:
    """A run's jobs that have not ended, or whose trainer still writes; waits for a submission under way."""
    found = []
    for paths in run.jobs():
        job = submission(paths)
        while _is_submitting(job) and time.monotonic() < give_up:
            time.sleep(0.2)
            job = submission(paths)
        if _state(job, SlurmReport(unavailable="not asked yet"), now).alive:
            found.append(job)
    return found


def _is_submitting(job: Submission) -> bool:
    """Whether a submitter, which holds the launcher's lock, has yet to record the job's id or an error."""
    undecided = not job.end and job.job_id is None and not job.record.get("error")
    return undecided and holder_note(job.run.launcher_lock) is not None


def _stop(job: Submission, when: str) -> None:
    _note(job.paths.cancelled)
    write_text(job.paths.stop, when)


def _state(job: Submission, report: SlurmReport, now: float) -> JobState:
    return state_of_job(job.run, job, report, holder_note(job.run.launcher_lock) is not None, now)


def _cancel_slurm(experiment: Experiment, jobs: Sequence[Submission], done: dict[str, str]) -> dict[str, str]:
    if not jobs:
        return {}
    folder = jobs[0].run.slurm
    for job in jobs:
        request_details(folder, job.slurm_id)
    answer, now = ask(folder, fresh=True), filesystem_now(experiment.folder)
    report = SlurmReport(answer, answer.error or "")
    lives = {job.paths: _state(job, report, now).life for job in jobs}
    # A trainer that Slurm has given up still reads its stop file.
    results = {}
    for job in jobs:
        if lives[job.paths] is Life.ABANDONED:
            _stop(job, "now")
            results[job.run_id] = "asked to stop at once, by its stop file: Slurm has given it up"
    if answer.error is not None:
        raise UserError(_incomplete(experiment, jobs, done | results, f"Slurm does not answer: {answer.error}"))
    found = _living_jobs(jobs, answer)
    live = [job for job in jobs if found[job.paths]]
    # Before scancel: a job that requeues itself, a new life and a late submission read this.
    noted = [job.paths.cancelled for job in live if _note(job.paths.cancelled)]
    for job in jobs:
        if job not in live and lives[job.paths] in _NOT_IN_SLURM:
            _note(job.paths.cancelled)
            results[job.run_id] = _NOT_IN_SLURM[lives[job.paths]]
    try:
        slurm.cancel([queued.job_id for job in live for queued in found[job.paths]])
    except SlurmError as error:
        # These jobs were not cancelled and must not count as such.
        for file in noted:
            file.unlink(missing_ok=True)
        raise UserError(_incomplete(experiment, live, done | results, f"Slurm does not answer: {error}")) from None
    for job in live:
        names = " and ".join(f"{queued.job_id} ({queued.state.lower()})" for queued in found[job.paths])
        results[job.run_id] = "; ".join(filter(None, (results.get(job.run_id), f"cancelled Slurm job {names}")))
    return results


def _living_jobs(jobs: Sequence[Submission], answer: Answer) -> dict[JobPaths, list[QueueJob]]:
    """Each submission's jobs in Slurm, found by their name, which is unique to the run; Slurm reuses ids.

    Submissions of the same configuration share a name; a job belongs to the one with its id, or else to the last.
    """
    submissions = {job.name: job.paths for job in jobs} | {job.job_id or "": job.paths for job in jobs}
    found: dict[JobPaths, list[QueueJob]] = {job.paths: [] for job in jobs}
    for name in dict.fromkeys(job.name for job in jobs if job.name):
        for queued in answer.jobs_named(name):
            found[submissions.get(queued.job_id, submissions[name])].append(queued)
    return found


def _incomplete(experiment: Experiment, jobs: Sequence[Submission], done: dict[str, str], why: str) -> str:
    runs = list(dict.fromkeys(job.run_id for job in jobs))
    cancelled = f"cancelled: {', '.join(done)}" if done else "nothing was cancelled"
    kept = "; nothing more is submitted" if experiment.cancelled.exists() else ""
    return f"{why}\n{cancelled}{kept}. Jobs of {join_first(runs, 5)} may be alive: try again when `squeue` answers"


def _note(file: Path) -> bool:
    """Record who cancels; False if an earlier record exists, which stays."""
    if file.exists():
        return False
    write_json(file, {"by": user_name(), "time": time.time()})
    return True


def _require_own(path: Path) -> None:
    owner = owner_of(path)
    if owner != os.getuid():
        name = user_name(owner)
        raise UserError(
            f"{path} belongs to {name}, and only {name} can cancel its jobs (you are {user_name()}); ask {name}. "
            "Nothing was cancelled"
        )


def _why_nothing(run: RunPaths) -> str:
    if holder_note(run.launcher_lock) is not None:
        return "nothing to cancel yet: its launcher may submit a job; to stop that, cancel the whole experiment"
    last = next(reversed(run.jobs()), None)
    by = cancelled_by(last) if last else None
    return f"nothing to cancel: cancelled by {by} before" if by else "nothing to cancel"
