"""Watches an experiment until every run is finished: a live table on a terminal, else a line for each change."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.messages import can_redraw
from common.retry import PATIENCE_S, interruptible_sleep, retry_io
from workflow.cluster.experiment import Experiment
from workflow.cluster.progress import part_of
from workflow.cluster.state import RunState, run_states
from workflow.cluster.status import HEADER, NUMBERS, ORDER, notes, status_rows, summary

if TYPE_CHECKING:
    from rich.console import Group

EVERY_S = 2.0
_COLOURS = {"finished": "green", "running": "cyan", "failed": "red", "unknown": "red", "waiting": "yellow"}
_CELL_LABELS = {"node": "on", "note": ""}
# The table's header, the line on the hidden runs, and the last line with the time.
_OTHER_LINES = 4
_GAP = 2
# A narrow terminal drops these columns, in this order; notes then follow below the table.
_OPTIONAL_COLUMNS = ("note", "node", "attempt", "job", "limit in", "s/step")


@dataclass(frozen=True)
class Snapshot:
    """An experiment's state at one moment."""

    time: str
    states: list[RunState]
    rows: list[tuple[str, ...]]
    """A row per state, then one per imported run."""
    notes: list[str]

    @property
    def finished(self) -> bool:
        return all(state.state == "finished" for state in self.states)


def watch(find: Callable[[], Experiment], every_s: float = EVERY_S) -> None:
    """Show an experiment's state until every run is finished or Ctrl-C; the watch causes no extra queries to Slurm."""
    show = _show_table if can_redraw(sys.stdout) else _show_changes
    try:
        show(lambda: retry_io(lambda: take_snapshot(find()), "the results", PATIENCE_S, for_others=False), every_s)
    except KeyboardInterrupt:
        print()


def take_snapshot(experiment: Experiment) -> Snapshot:
    """An experiment's state now."""
    states, report = run_states(experiment)
    now = time.strftime("%H:%M:%S")
    return Snapshot(now, states, status_rows(experiment, states), notes(experiment, states, report))


def _show_table(take: Callable[[], Snapshot], every_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    # Drawn only after each snapshot: no refresh thread is needed.
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
        while True:
            snapshot = take()
            live.update(table_of(snapshot, every_s, console.width, console.height), refresh=True)
            if snapshot.finished:
                return
            interruptible_sleep(every_s)


def table_of(snapshot: Snapshot, every_s: float, width: int, height: int) -> Group:
    """The live table: unfinished runs first, as many as fit into the terminal, and the notes below it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    order = {state.run_id: ORDER.index(state.state) for state in snapshot.states}
    # Finished runs come last.
    rows = sorted(snapshot.rows, key=lambda row: order.get(row[0], len(ORDER)) or len(ORDER))
    columns = _columns_for(rows, width)
    below = [line for note in _notes_of(snapshot, columns) for line in textwrap.wrap(note, width)]
    shown = rows[: max(1, height - len(below) - _OTHER_LINES)]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for number in columns:
        name = HEADER[number]
        # Only the run's name may be cut.
        least = None if number == 0 else _width(rows, number)
        table.add_column(name, justify="right" if name in NUMBERS else "left", no_wrap=True, min_width=least)
    for row in shown:
        colour = _COLOURS.get(row[1].partition(":")[0].split(" by ")[0], "")
        table.add_row(*(Text(row[number], style=colour if number == 1 else "") for number in columns))
    more = [state for state in snapshot.states if state.run_id not in {row[0] for row in shown}]
    lines = [f"and {len(rows) - len(shown)} more: {summary(more)}"] if len(shown) < len(rows) else []
    end = "all runs are finished" if snapshot.finished else f"every {every_s:g} s; Ctrl-C ends the watch, not the runs"
    lines += [*below, f"as of {snapshot.time}; {end}"]
    return Group(table, *(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))


def _width(rows: Sequence[Sequence[str]], number: int) -> int:
    return max(len(HEADER[number]), *(len(row[number]) for row in rows))


def _columns_for(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """The columns with content that fit into the terminal."""
    columns = [number for number in range(len(HEADER)) if any(row[number] for row in rows)]
    for name in _OPTIONAL_COLUMNS:
        if sum(_width(rows, number) + _GAP for number in columns) - _GAP > width and HEADER.index(name) in columns:
            columns.remove(HEADER.index(name))
    return columns


def _notes_of(snapshot: Snapshot, columns: Sequence[int]) -> list[str]:
    """The notes below the table, with the rows' own notes if their column is dropped."""
    note = HEADER.index("note")
    of_rows = [f"{row[0]}: {row[note]}" for row in snapshot.rows if row[note] and note not in columns]
    return [*of_rows, *filter(None, snapshot.notes)]


def _show_changes(take: Callable[[], Snapshot], every_s: float) -> None:
    before: Snapshot | None = None
    while True:
        now = take()
        for line in changes(before, now):
            print(f"{now.time} {line}", flush=True)
        if now.finished:
            return
        before = now
        interruptible_sleep(every_s)


def changes(before: Snapshot | None, now: Snapshot) -> Iterator[str]:
    """A line for each run with a new state, job, node, attempt or part of its steps; then the new notes."""
    old_signs = {} if before is None else dict(zip((row[0] for row in before.rows), _signs(before), strict=True))
    for row, sign in zip(now.rows, _signs(now), strict=True):
        if old_signs.get(row[0]) != sign:
            cells = zip(HEADER[2:], row[2:], strict=True)
            facts = [f"{_CELL_LABELS.get(name, name)} {cell}".lstrip() for name, cell in cells if cell]
            yield f"{row[0]}: {', '.join([row[1], *facts])}"
    known = set() if before is None else set(before.notes)
    yield from (note for note in now.notes if note and note not in known)


def _signs(snapshot: Snapshot) -> Sequence[tuple[object, ...]]:
    """The values of each row whose change is reported: not the seconds, and not every step."""
    parts = [part_of(state.step, state.steps or 0) for state in snapshot.states]
    parts += [0] * (len(snapshot.rows) - len(parts))
    return [(*row[1:5], part) for row, part in zip(snapshot.rows, parts, strict=True)]
