"""Prints an experiment's state: a row per run, and beneath it what needs a sentence."""

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
    """Print an experiment's status, again and again if asked to, until all of it is finished or Ctrl-C.

    Waits while the file system refuses reads: a status must not take what it cannot read for what is not there.
    """

    def look() -> tuple[list[RunState], list[str]]:
        experiment = find()
        states, says = run_states(experiment)
        return states, status_lines(experiment, states, says)

    try:
        while True:
            patience_s = READ_PATIENCE_S if every_s is None else PATIENCE_S
            states, lines = retry_io(look, "the results", patience_s, for_others=False)
            if every_s is not None:
                print(time.strftime("%Y-%m-%d %H:%M:%S"))
            print("\n".join(lines), flush=True)
            if every_s is None or all(state.state == "finished" for state in states):
                return
            interruptible_sleep(every_s)
            print()
    except KeyboardInterrupt:
        print()


def status_lines(experiment: Experiment, states: Sequence[RunState], says: SlurmReport) -> list[str]:
    """All that is printed of an experiment's status."""
    return [*table_lines(HEADER, status_rows(experiment, states), NUMBERS), *notes(experiment, states, says)]


def status_rows(experiment: Experiment, states: Sequence[RunState]) -> list[tuple[str, ...]]:
    """The table's rows: the runs that are trained in the order of `states`, then those that are imported."""
    return [
        *map(row_of, states),
        *(_import_row(want.run_id, is_imported(experiment, want)) for want in experiment.imports),
    ]


def notes(experiment: Experiment, states: Sequence[RunState], says: SlurmReport) -> list[str]:
    """What stands beneath the table: failures, remarks, how many runs are where, and who sees to them."""
    lines: list[str] = []
    parts = [
        [line for state in states for line in _failure(state)],
        _remarks(experiment, states, says),
        [_count(experiment, states)],
        head_lines(experiment.folder, states),
    ]
    for before, part in zip(["", "", "", None], parts, strict=True):
        lines += ([] if before is None or not part else [before]) + part
    return lines


def head_lines(folder: Path, states: Sequence[RunState]) -> list[str]:
    """Who sees to the experiment; what to do if nobody does."""
    open_runs = [state for state in states if state.state != "finished"]
    if not open_runs:
        return []
    if (holder := holder_note(folder / ".head.lock")) is not None:
        return [f"snakemake sees to it: {holder}"]
    if heads := sum(state.head for state in states):
        return [f"{heads} launcher{'s' * (heads > 1)} see{'s' * (heads == 1)} to it, without a snakemake"]
    if not any(state.job for state in states) and not (folder / ".head.lock").exists():
        return ["nothing of it was started yet"]
    without = sum(not state.live for state in open_runs)
    told = "no head is running" + _elsewhere(folder)
    if without:
        s = "s" * (without > 1)
        return [f"{told}: start snakemake again, as before, and it goes on ({without} unfinished run{s} without a job)"]
    return [f"{told}; the jobs go on without one. Start snakemake again, as before, and it attaches to them"]


def _elsewhere(folder: Path) -> str:
    """Where the last head ran, if not here: not every file system's locks reach other machines."""
    try:
        note = (folder / ".head.lock").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
    host = note.rpartition(" on ")[2]
    return f", as far as {socket.gethostname()} can see (the last one: {note})" if host != socket.gethostname() else ""


def row_of(state: RunState) -> tuple[str, ...]:
    """A trained run's row of the table."""
    return (
        state.run_id,
        state.words,
        state.job_id,
        state.node,
        "" if state.attempt is None else str(state.attempt),
        "" if state.steps is None and not state.step else f"{state.step}/{state.steps or '?'}",
        "" if state.step_s is None else readable_step(state.step_s),
        "" if state.left_s is None or state.state == "failed" else readable_duration(state.left_s),
        "" if state.walltime_left_s is None else readable_duration(state.walltime_left_s),
        state.note or _why(state),
    )


def _import_row(run_id: str, read: bool) -> tuple[str, ...]:
    """A run that is not trained here: no job, no attempt and no step is ours to tell."""
    state, note = ("imported", "") if read else ("to import", "snakemake reads it")
    return (run_id, state, *("" for _ in HEADER[3:]), note)


def _count(experiment: Experiment, states: Sequence[RunState]) -> str:
    count = len(experiment.imports)
    imported = f"{count} imported run{'s' * (count != 1)}"
    if not states:
        return f"{imported} of {experiment.name}; none is trained"
    trained = f"{summary(states)} of {len(states)} run{'s' * (len(states) != 1)} of {experiment.name}"
    return f"{trained}, and {imported}" if count else trained


def _why(state: RunState) -> str:
    """Slurm's word for why a job waits, and when Slurm expects it to begin."""
    begins = f", from {clock(state.start)}" if state.start and state.start > time.time() else ""
    return state.reason + begins if state.reason not in ("", "None") else ""


def readable_step(seconds: float) -> str:
    """A step's time with three digits or more: `0.05`, `4.08`, `408`."""
    return f"{seconds:.0f}" if seconds >= 100 else f"{seconds:.1f}" if seconds >= 10 else f"{seconds:.2f}"


def _failure(state: RunState) -> list[str]:
    if state.state != "failed":
        return []
    return [f"{state.run_id}: {explain(state.end)}", *([f"  log: {state.log}"] if state.log else [])]


def _remarks(experiment: Experiment, states: Sequence[RunState], says: SlurmReport) -> list[str]:
    reasons = dict.fromkeys(state.reason for state in states if state.reason in REASONS)
    lines = [f"{reason}: {REASONS[reason]}" for reason in reasons]
    if says.unavailable:
        error = f" ({says.answer.error})" if says.answer.error else ""
        lines.append(f"{says.unavailable}{error}: the table shows what the files tell")
    extra, _ = run_states(unplanned(experiment))
    for state in extra:
        if state.live:
            lines.append(f"{state.run_id}, which this plan does not have, has a job, too: {state.state} {state.job_id}")
    lines += stack_notes(experiment.stacks)
    by = read_object(experiment.cancelled)
    if "by" in by:
        lines.append(f"cancelled by {by['by']} at {clock(float(by.get('time', 0)))}: no head submits anything before")
        lines[-1] += " snakemake is started again"
    return lines


def summary(states: Sequence[RunState]) -> str:
    """How many runs are in each state."""
    counts = Counter(state.state for state in states)
    words = sorted(counts, key=lambda word: ORDER.index(word) if word in ORDER else len(ORDER))
    return ", ".join(f"{counts[word]} {word}" for word in words)
