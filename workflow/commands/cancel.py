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
from workflow.runs.history import is_own_command
from workflow.runs.locks import holder_note
from workflow.runs.orders import Order, Presence, local_job, order_of, owner_of, write_end
from workflow.runs.pulse import filesystem_now, still_writes
from workflow.slurm import commands as slurm
from workflow.slurm.commands import SlurmError
from workflow.slurm.shared_queue import ask

# A submission under way is waited for this long; a later one is cancelled by its submitter.
_SUBMIT_PATIENCE_S = 10.0


def cancel_jobs(args: argparse.Namespace) -> None:
    """Run `rolloutbench cancel`."""
    obey_only_own_files()
    runs: list[str] = args.words
    config = Path(runs.pop(0)) if runs and args.experiment is None else None
    if config is None and args.experiment is None:
        raise UserError("cancel needs a configuration: rolloutbench cancel my.yaml [RUN ...] (nothing was cancelled)")
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
    orders = {run_id: order_of(run) for run_id, run in runs.items()}
    for order in filter(None, orders.values()):
        _require_own(order.run.order)
    results = {}
    for run_id, order in orders.items():
        if not order.on_slurm and local_job(order.run).job is not Presence.NONE:
            _end(order, "now" if now else "soon")
            how = "after its step, with a checkpoint"
            if is_own_command(order.content):
                how = "by SIGTERM: a script has no step to wait for"
            results[run_id] = f"asked to stop {'at once' if now else how}"
    results |= _cancel_slurm(experiment, {run_id: order for run_id, order in orders.items() if order.on_slurm}, results)
    lines = [f"{run_id}: {result}" for run_id, result in results.items()]
    if chosen:
        return lines + [f"{run_id}: {_why_nothing(orders[run_id])}" for run_id in runs if run_id not in results]
    left = len(runs) - len(results)
    lines += [f"{left} run{'s' * (left != 1)} had nothing to cancel"] if left else []
    return [*lines, f"{experiment.name} is cancelled: nothing is submitted until snakemake is started again"]


def _end(order: Order, when: str) -> None:
    """End an order: its job asks for this before it trains, before it requeues itself, and with every heartbeat."""
    if order:
        write_end(order.run, order.start, {"kind": "cancelled", "by": user_name(), "told_by": "cancel"})
    write_text(order.run.stop, when)


def _cancel_slurm(experiment: Experiment, orders: dict[str, Order], done: dict[str, str]) -> dict[str, str]:
    give_up = time.monotonic() + _SUBMIT_PATIENCE_S
    while any(_is_submitting(order) for order in orders.values()) and time.monotonic() < give_up:
        time.sleep(0.2)
        orders = {run_id: order_of(order.run) for run_id, order in orders.items()}
    now = filesystem_now(experiment.folder)
    if not any(not order.end() or _may_live(order, now) for order in orders.values()):
        return {}
    queue = ask(orders[next(iter(orders))].run.queue, time.time())
    if queue.error is not None:
        raise UserError(_incomplete(experiment, [*orders], done, f"Slurm does not answer: {queue.error}"))
    found = {run_id: queue.living(order.name) for run_id, order in orders.items()}
    # Before scancel: a job that requeues itself, a new life and a late submission read this.
    ended = [run_id for run_id, order in orders.items() if not order.end() and found[run_id]]
    results = {}
    for run_id, order in orders.items():
        if run_id in ended:
            _end(order, "soon")
        elif not found[run_id] and (why := _may_live(order, now)):
            _end(order, "now")
            results[run_id] = why
    try:
        slurm.cancel([job.job_id for jobs in found.values() for job in jobs])
    except SlurmError as error:
        # These jobs were not cancelled and must not count as such.
        for run_id in ended:
            orders[run_id].run.end.unlink(missing_ok=True)
            orders[run_id].run.stop.unlink(missing_ok=True)
        raise UserError(_incomplete(experiment, ended, done | results, f"Slurm does not answer: {error}")) from None
    for run_id, jobs in found.items():
        if jobs:
            names = " and ".join(f"{job.job_id} ({job.state.lower()})" for job in jobs)
            results[run_id] = f"cancelled Slurm job {names}"
    return results


def _is_submitting(order: Order) -> bool:
    """Whether a submitter, which holds the launcher's lock, has yet to record the job's id or an error."""
    undecided = bool(order) and not order.end() and "submitted" not in order.content
    return undecided and holder_note(order.run.launcher_lock) is not None


def _may_live(order: Order, now: float) -> str:
    """What becomes of a job that squeue does not list; empty where none is expected."""
    if _is_submitting(order):
        return "its submission is under way; it is cancelled as soon as that ends"
    if order and still_writes(order.run, now):
        return "asked to stop at once, by its stop file: Slurm has given it up"
    if order and not order.end() and holder_note(order.run.launcher_lock) is not None:
        return "is not in Slurm's answer; if its job still exists, it ends before it trains"
    return ""


def _incomplete(experiment: Experiment, runs: Sequence[str], done: dict[str, str], why: str) -> str:
    cancelled = f"cancelled: {', '.join(done)}" if done else "nothing was cancelled"
    kept = "; nothing more is submitted" if experiment.cancelled.exists() else ""
    return f"{why}\n{cancelled}{kept}. Jobs of {join_first(runs, 5)} may be alive: try again when `squeue` answers"


def _note(file: Path) -> None:
    """Record who cancels, unless somebody has."""
    if not file.exists():
        write_json(file, {"by": user_name(), "time": time.time()})


def _require_own(path: Path) -> None:
    owner = owner_of(path)
    if owner != os.getuid():
        name = user_name(owner)
        raise UserError(
            f"{path} belongs to {name}, and only {name} can cancel its jobs (you are {user_name()}); ask {name}. "
            "Nothing was cancelled"
        )


def _why_nothing(order: Order) -> str:
    if holder_note(order.run.launcher_lock) is not None:
        return "nothing to cancel yet: its launcher may submit a job; to stop that, cancel the whole experiment"
    by = order.end().get("by")
    return f"nothing to cancel: cancelled by {by} before" if by else "nothing to cancel"
