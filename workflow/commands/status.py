"""Prints an experiment's state: a table with a row per run, and notes below it."""

from __future__ import annotations

import argparse
import shutil
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common.files import user_name
from common.messages import can_redraw, table_lines
from common.ownership import let_others_only_read
from common.retry import PATIENCE_S, READ_PATIENCE_S, interruptible_sleep, retry_io
from common.shown import own_stream, print_lines
from workflow.runs.ends import explain
from workflow.runs.experiment import Experiment, find_experiment, is_imported, unplanned
from workflow.runs.history import read_object
from workflow.runs.locks import can_ask, holder_note
from workflow.runs.orders import clock
from workflow.runs.progress import readable_duration
from workflow.runs.run_state import DONE, RunState, run_states
from workflow.slurm import commands as slurm
from workflow.slurm.commands import explain_wait
from workflow.slurm.shared_queue import Queue
from workflow.stacks.verification import stack_notes

HEADER = ("run", "state", "job", "node", "attempt", "step", "s/step", "left", "limit in", "note")
NUMBERS = ("job", "attempt", "step", "s/step", "left", "limit in")
ORDER = (
    *("finished", "running", "waiting", "stopped", "failed", "cancelled"),
    *("not submitted", "unknown", "not needed"),
)
EVERY_S, EVERY_PRINTED_S = 2.0, 60.0
LIMIT_S = 45.0
"""For one `status`, whatever does not answer."""


@dataclass(frozen=True)
class Snapshot:
    """An experiment's state at one moment."""

    states: list[RunState]
    rows: list[tuple[str, ...]]  # a row per state, then one per imported run
    notes: list[str]

    @property
    def finished(self) -> bool:
        return all(state.state in DONE for state in self.states)


def status(args: argparse.Namespace) -> None:
    """Run `rolloutbench status`."""
    let_others_only_read()
    find = find_experiment(args.config, args.experiment)
    redraws = args.watch and can_redraw(sys.stdout)
    every_s = args.every or (EVERY_S if redraws else EVERY_PRINTED_S if args.watch else None)
    show_status(find, every_s, redraws)


def show_status(find: Callable[[], Experiment], every_s: float | None, redraws: bool = False) -> None:
    """Print an experiment's status; with `every_s` repeatedly, until every run is finished or Ctrl-C.

    `redraws`: on a terminal, in the place of the one before.
    """
    try:
        for number, snapshot in enumerate(_snapshots(find, every_s)):
            lines = status_lines(snapshot)
            if redraws:
                height = shutil.get_terminal_size().lines - 2
                lines = [*_fitting(snapshot, height), f"every {every_s:g} s; Ctrl-C ends the watch, not the runs"]
                print("\x1b[H\x1b[2J", end="", file=own_stream(sys.stdout))
            elif every_s is not None:
                lines = [*[""] * bool(number), time.strftime("%Y-%m-%d %H:%M:%S"), *lines]
            print_lines(lines)
            sys.stdout.flush()
    except KeyboardInterrupt:
        print()


def _snapshots(find: Callable[[], Experiment], every_s: float | None) -> Iterator[Snapshot]:
    """Snapshots until every run is finished; a single one without `every_s`.

    Waits while the file system refuses reads: unreadable files must not count as missing.
    """
    # A person waits for a single snapshot: files and Slurm share one limit, and the files have its last seconds.
    limit_s, patience_s = (LIMIT_S, READ_PATIENCE_S) if every_s is None else (float("inf"), PATIENCE_S)
    while True:
        deadline = time.monotonic() + limit_s
        with slurm.limited(limit_s * 0.9):
            snapshot = retry_io(lambda: take_snapshot(find()), "the results", patience_s, False, deadline)
        yield snapshot
        if every_s is None or snapshot.finished:
            return
        interruptible_sleep(every_s)


def status_lines(snapshot: Snapshot) -> list[str]:
    return [*table_lines(HEADER, snapshot.rows, NUMBERS), *snapshot.notes]


def take_snapshot(experiment: Experiment) -> Snapshot:
    states, queue = run_states(experiment)
    rows = [row_of(state) for state in states]
    for run in experiment.imports:
        state, note = ("imported", "") if is_imported(experiment, run) else ("to import", "snakemake reads it")
        rows.append((run.run_id, state, *("" for _ in HEADER[3:]), note))
    return Snapshot(states, rows, _notes(experiment, states, queue))


def _notes(experiment: Experiment, states: Sequence[RunState], queue: Queue) -> list[str]:
    """The lines below the table: failures, remarks, the number of runs in each state, and what manages them."""
    failures: list[str] = []
    for state in states:
        if state.state == "failed":
            spec = state.order.content.get("spec", {}) if state.order else {}
            failures.append(f"{state.run_id}: {explain(state.end, spec)}")
            failures += [f"  log: {state.log}"] if state.log else []
    lines: list[str] = []
    for part in (failures, _remarks(experiment, states, queue), [_count(experiment, states)]):
        lines += ["", *part] if part else []
    return lines + _manager_lines(experiment.folder, states)


def _manager_lines(folder: Path, states: Sequence[RunState]) -> list[str]:
    """Whether a snakemake or a launcher manages the experiment; if none does, what to do."""
    unfinished = [state for state in states if state.state not in DONE]
    if not unfinished:
        return []
    if (holder := holder_note(folder / ".head.lock")) is not None:
        return [f"snakemake is running: {holder}"]
    if not can_ask(folder / ".head.lock"):
        return [f"only {user_name(folder.stat().st_uid)} can see whether a snakemake is running"]
    if launchers := sum(state.launcher for state in states):
        several = launchers > 1
        return [f"{launchers} launcher{'s' * several} {'are' if several else 'is'} running, without a snakemake"]
    if not any(state.order for state in states) and not (folder / ".head.lock").exists():
        return ["no run was started yet"]
    without = sum(not state.live for state in unfinished)
    message = "no snakemake is running" + _elsewhere(folder)
    if without:
        s = "s" * (without > 1)
        return [f"{message}: start the same command again to continue ({without} unfinished run{s} without a job)"]
    return [f"{message}; the jobs continue without it. Start the same command again to attach to them"]


def _elsewhere(folder: Path) -> str:
    """The host of the last snakemake, if it is another one: some file systems do not share locks between hosts."""
    try:
        note = (folder / ".head.lock").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
    host = note.rpartition(" on ")[2]
    return f", as far as {socket.gethostname()} can see (the last one: {note})" if host != socket.gethostname() else ""


def row_of(state: RunState) -> tuple[str, ...]:
    begins = f", from {clock(state.start)}" if state.start and state.start > time.time() else ""
    return (
        state.run_id,
        state.label,
        state.job_id,
        state.node,
        "" if state.attempt is None else str(state.attempt),
        ""
        if state.steps is None and not state.step
        else f"{state.step}/{state.steps or (state.step if state.state == 'finished' else '?')}",
        "" if state.step_s is None else readable_step(state.step_s),
        "" if state.left_s is None or state.state == "failed" else readable_duration(state.left_s),
        "" if state.walltime_left_s is None else readable_duration(state.walltime_left_s),
        state.note or ("" if state.reason in ("", "None") else state.reason + begins),
    )


def _count(experiment: Experiment, states: Sequence[RunState]) -> str:
    count = len(experiment.imports)
    imported = f"{count} imported run{'s' * (count != 1)}"
    if not states:
        return f"{imported} of {experiment.name}; none is trained"
    trained = f"{summary(states)} of {len(states)} run{'s' * (len(states) != 1)} of {experiment.name}"
    return f"{trained}, and {imported}" if count else trained


def readable_step(seconds: float) -> str:
    """A step's time with three digits or more: `0.05`, `4.08`, `408`."""
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.1f}" if seconds >= 10 else f"{seconds:.2f}"


def _remarks(experiment: Experiment, states: Sequence[RunState], queue: Queue) -> list[str]:
    reasons = dict.fromkeys(state.reason for state in states)
    lines = [f"{reason}: {text}" for reason in reasons if (text := explain_wait(reason))]
    if queue.error:
        lines.append(f"{queue.error}: the table shows only what the files contain")
    extra, _ = run_states(unplanned(experiment))
    lines += [
        f"{state.run_id}, which is not in this plan, also has a job: {state.state} {state.job_id}"
        for state in extra
        if state.live
    ]
    lines += stack_notes(experiment.stacks)
    cancel = read_object(experiment.cancelled)
    if "by" in cancel and any(state.state not in DONE for state in states):
        when = clock(float(cancel.get("time", 0)))
        lines.append(f"cancelled by {cancel['by']} at {when}: nothing is submitted until snakemake is started again")
    return lines


def summary(states: Sequence[RunState]) -> str:
    counts = Counter(state.state for state in states)
    present = sorted(counts, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    return ", ".join(f"{counts[name]} {name}" for name in present)


def _fitting(snapshot: Snapshot, height: int) -> list[str]:
    """The status in so many lines: without the runs that are finished, and then without the last ones."""
    lines = status_lines(snapshot)
    done = {state.run_id for state in snapshot.states if state.state in DONE}
    rows = [row for row in snapshot.rows if row[0] not in done]
    if len(lines) > height:
        lines = status_lines(replace(snapshot, rows=rows[: max(1, height - len(snapshot.notes) - 2)]))
    return lines[:height]
