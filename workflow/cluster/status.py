"""Prints an experiment's state: a table with a row per run, and notes below it."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from common.messages import table_lines
from common.retry import PATIENCE_S, READ_PATIENCE_S, interruptible_sleep, retry_io
from workflow.cluster.ends import explain
from workflow.cluster.experiment import Experiment, is_imported, unplanned
from workflow.cluster.history import read_object
from workflow.cluster.locks import holder_note
from workflow.cluster.progress import readable_duration
from workflow.cluster.scheduler import REASONS
from workflow.cluster.state import RunState, run_states
from workflow.cluster.submissions import SlurmReport, clock
from workflow.stacks.verification import stack_notes

HEADER = ("run", "state", "job", "node", "attempt", "step", "s/step", "left", "limit in", "note")
NUMBERS = ("job", "attempt", "step", "s/step", "left", "limit in")
ORDER = (
    *("finished", "running", "starting", "ending", "suspended", "waiting", "requeued"),
    *("stopped", "failed", "cancelled", "not submitted", "unknown"),
)


def show_status(find: Callable[[], Experiment], every_s: float | None) -> None:
    """Print an experiment's status; with `every_s` repeatedly, until every run is finished or Ctrl-C.

    Waits while the file system refuses reads: unreadable files must not count as missing.
    """

    def read_status() -> tuple[list[RunState], list[str]]:
        experiment = find()
        states, report = run_states(experiment)
        return states, status_lines(experiment, states, report)

    try:
        while True:
            patience_s = READ_PATIENCE_S if every_s is None else PATIENCE_S
            states, lines = retry_io(read_status, "the results", patience_s, for_others=False)
            if every_s is not None:
                print(time.strftime("%Y-%m-%d %H:%M:%S"))
            print("\n".join(lines), flush=True)
            if every_s is None or all(state.state == "finished" for state in states):
                return
            interruptible_sleep(every_s)
            print()
    except KeyboardInterrupt:
        print()


def status_lines(experiment: Experiment, states: Sequence[RunState], report: SlurmReport) -> list[str]:
    """All lines of an experiment's status."""
    return [*table_lines(HEADER, status_rows(experiment, states), NUMBERS), *notes(experiment, states, report)]


def status_rows(experiment: Experiment, states: Sequence[RunState]) -> list[tuple[str, ...]]:
    """The table's rows: the trained runs in the order of `states`, then the imported ones."""
    rows = [row_of(state) for state in states]
    for run in experiment.imports:
        state, note = ("imported", "") if is_imported(experiment, run) else ("to import", "snakemake reads it")
        rows.append((run.run_id, state, *("" for _ in HEADER[3:]), note))
    return rows


def notes(experiment: Experiment, states: Sequence[RunState], report: SlurmReport) -> list[str]:
    """The lines below the table: failures, remarks, the number of runs in each state, and what manages them."""
    failures: list[str] = []
    for state in states:
        if state.state == "failed":
            failures.append(f"{state.run_id}: {explain(state.end)}")
            failures += [f"  log: {state.log}"] if state.log else []
    lines: list[str] = []
    for part in (failures, _remarks(experiment, states, report), [_count(experiment, states)]):
        lines += ["", *part] if part else []
    return lines + _manager_lines(experiment.folder, states)


def _manager_lines(folder: Path, states: Sequence[RunState]) -> list[str]:
    """Whether a snakemake or a launcher manages the experiment; if none does, what to do."""
    unfinished = [state for state in states if state.state != "finished"]
    if not unfinished:
        return []
    if (holder := holder_note(folder / ".head.lock")) is not None:
        return [f"snakemake is running: {holder}"]
    if launchers := sum(state.launcher for state in states):
        several = launchers > 1
        return [f"{launchers} launcher{'s' * several} {'are' if several else 'is'} running, without a snakemake"]
    if not any(state.job for state in states) and not (folder / ".head.lock").exists():
        return ["no run was started yet"]
    without = sum(not state.live for state in unfinished)
    nobody = "no snakemake is running" + _elsewhere(folder)
    if without:
        s = "s" * (without > 1)
        return [f"{nobody}: start the same command again to continue ({without} unfinished run{s} without a job)"]
    return [f"{nobody}; the jobs continue without it. Start the same command again to attach to them"]


def _elsewhere(folder: Path) -> str:
    """The host of the last snakemake, if it is another one: some file systems do not share locks between hosts."""
    try:
        note = (folder / ".head.lock").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
    host = note.rpartition(" on ")[2]
    return f", as far as {socket.gethostname()} can see (the last one: {note})" if host != socket.gethostname() else ""


def row_of(state: RunState) -> tuple[str, ...]:
    """A trained run's row of the table."""
    begins = f", from {clock(state.start)}" if state.start and state.start > time.time() else ""
    return (
        state.run_id,
        state.label,
        state.job_id,
        state.node,
        "" if state.attempt is None else str(state.attempt),
        "" if state.steps is None and not state.step else f"{state.step}/{state.steps or '?'}",
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


def _remarks(experiment: Experiment, states: Sequence[RunState], report: SlurmReport) -> list[str]:
    reasons = dict.fromkeys(state.reason for state in states if state.reason in REASONS)
    lines = [f"{reason}: {REASONS[reason]}" for reason in reasons]
    if report.unavailable:
        error = f" ({report.answer.error})" if report.answer.error else ""
        lines.append(f"{report.unavailable}{error}: the table shows only what the files contain")
    extra, _ = run_states(unplanned(experiment))
    lines += [
        f"{state.run_id}, which is not in this plan, also has a job: {state.state} {state.job_id}"
        for state in extra
        if state.live
    ]
    lines += stack_notes(experiment.stacks)
    cancel = read_object(experiment.cancelled)
    if "by" in cancel:
        when = clock(float(cancel.get("time", 0)))
        lines.append(f"cancelled by {cancel['by']} at {when}: nothing is submitted until snakemake is started again")
    return lines


def summary(states: Sequence[RunState]) -> str:
    """The number of runs in each state."""
    counts = Counter(state.state for state in states)
    present = sorted(counts, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    return ", ".join(f"{counts[name]} {name}" for name in present)
