"""Watches an experiment: a live table on a terminal, and elsewhere a line for each change, until all is finished."""

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
_SAID = {"node": "on", "note": ""}
# The table's head, a line for the runs that are not shown, and the time below all.
_OTHER_LINES = 4
_GAP = 2
# A narrow terminal does without them, in this order; notes then stand below.
_GIVE_WAY = ("note", "node", "attempt", "job", "limit in", "s/step")


@dataclass(frozen=True)
class Look:
    """What one look at an experiment found."""

    time: str
    states: list[RunState]
    rows: list[tuple[str, ...]]
    """Of each state, then of each imported run."""
    notes: list[str]

    @property
    def finished(self) -> bool:
        return all(state.state == "finished" for state in self.states)


def watch(find: Callable[[], Experiment], every_s: float = EVERY_S) -> None:
    """Show an experiment's state until all of it is finished or Ctrl-C; Slurm is not asked more often for it."""
    show = _table_shown if can_redraw(sys.stdout) else _changes_shown
    try:
        show(lambda: retry_io(lambda: look(find()), "the results", PATIENCE_S, for_others=False), every_s)
    except KeyboardInterrupt:
        print()


def look(experiment: Experiment) -> Look:
    """An experiment's state now."""
    states, says = run_states(experiment)
    now = time.strftime("%H:%M:%S")
    return Look(now, states, status_rows(experiment, states), notes(experiment, states, says))


def _table_shown(look_again: Callable[[], Look], every_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    # Drawn by us alone, at each look: nothing else needs a thread.
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
        while True:
            found = look_again()
            live.update(table_of(found, every_s, console.width, console.height), refresh=True)
            if found.finished:
                return
            interruptible_sleep(every_s)


def table_of(found: Look, every_s: float, width: int, height: int) -> Group:
    """The live table: what is on its way first, as many runs as the terminal has lines for, and what stands below."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    order = {state.run_id: ORDER.index(state.state) for state in found.states}
    # The finished ones are least news.
    rows = sorted(found.rows, key=lambda row: order.get(row[0], len(ORDER)) or len(ORDER))
    columns = _columns_for(rows, width)
    below = [line for note in _notes_of(found, columns) for line in textwrap.wrap(note, width)]
    shown = rows[: max(1, height - len(below) - _OTHER_LINES)]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    for number in columns:
        name = HEADER[number]
        # A name may be cut, a number never.
        least = None if number == 0 else _width(rows, number)
        table.add_column(name, justify="right" if name in NUMBERS else "left", no_wrap=True, min_width=least)
    for row in shown:
        colour = _COLOURS.get(row[1].partition(":")[0].split(" by ")[0], "")
        table.add_row(*(Text(row[number], style=colour if number == 1 else "") for number in columns))
    more = [state for state in found.states if state.run_id not in {row[0] for row in shown}]
    lines = [f"and {len(rows) - len(shown)} more: {summary(more)}"] if len(shown) < len(rows) else []
    end = "all is finished" if found.finished else f"every {every_s:g} s; Ctrl-C ends this, and no run"
    lines += [*below, f"as of {found.time}; {end}"]
    return Group(table, *(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))


def _width(rows: Sequence[Sequence[str]], number: int) -> int:
    return max(len(HEADER[number]), *(len(row[number]) for row in rows))


def _columns_for(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """The columns that have content, without those that a narrow terminal has no room for."""
    columns = [number for number in range(len(HEADER)) if any(row[number] for row in rows)]
    for name in _GIVE_WAY:
        if sum(_width(rows, number) + _GAP for number in columns) - _GAP > width and HEADER.index(name) in columns:
            columns.remove(HEADER.index(name))
    return columns


def _notes_of(found: Look, columns: Sequence[int]) -> list[str]:
    """What stands below the table, with the rows' own notes where their column had no room."""
    note = HEADER.index("note")
    of_rows = [f"{row[0]}: {row[note]}" for row in found.rows if row[note] and note not in columns]
    return [*of_rows, *filter(None, found.notes)]


def _changes_shown(look_again: Callable[[], Look], every_s: float) -> None:
    before: Look | None = None
    while True:
        found = look_again()
        for line in changes(before, found):
            print(f"{found.time} {line}", flush=True)
        if found.finished:
            return
        before = found
        interruptible_sleep(every_s)


def changes(before: Look | None, found: Look) -> Iterator[str]:
    """A line for each run whose state, job, node or attempt is another, or that is in its next part; then new notes."""
    then = {} if before is None else dict(zip((row[0] for row in before.rows), _signs(before), strict=True))
    for row, sign in zip(found.rows, _signs(found), strict=True):
        if then.get(row[0]) != sign:
            cells = zip(HEADER[2:], row[2:], strict=True)
            told = [f"{_SAID.get(name, name)} {cell}".lstrip() for name, cell in cells if cell]
            yield f"{row[0]}: {', '.join([row[1], *told])}"
    known = set() if before is None else set(before.notes)
    yield from (note for note in found.notes if note and note not in known)


def _signs(found: Look) -> Sequence[tuple[object, ...]]:
    """What of each row is news when it changes: not the seconds, and not every step."""
    parts = [part_of(state.step, state.steps or 0) for state in found.states]
    parts += [0] * (len(found.rows) - len(parts))
    return [(*row[1:5], part) for row, part in zip(found.rows, parts, strict=True)]
