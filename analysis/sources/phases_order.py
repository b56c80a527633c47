"""Finds several runs and restarts in a table of phases: steps that come again, and columns of counters that fall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from common.errors import UserError
from common.verdicts import Verdict, count_of
from trainers.logs.counters import ELAPSED, OF_TRAINING, Restart, falls, restart_verdicts
from trainers.logs.printed import Printed, printed
from trainers.logs.record import StepRecord

# Columns that count, by the names that logs give them.
_COUNTERS = {name.partition("/")[2]: name for name in reversed(OF_TRAINING)} | {name: name for name in OF_TRAINING}
_ELAPSED = ("_runtime", "elapsed_time")
# A column of that name is a clock where it rises in as many steps; a step's own seconds go up and down.
_CLOCK_RISES = 2 / 3
_TIME = "_timestamp"
SEPARATE = (
    "Give the rows of each run a value of their own in a column run, or split the table, with its first line in both"
)


@dataclass
class TableOrder:
    """The steps that a table holds twice, those that are the first after a restart, and when each was logged."""

    again: set[int] = field(default_factory=set)
    resumed: set[int] = field(default_factory=set)
    times: dict[int, float] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)


def order_of(
    read: Sequence[tuple[int, int, str, Printed]], table: Sequence[tuple[int, Mapping[str, str]]], path: Path
) -> TableOrder:
    """What the order of a table's rows and its counters tell; `read` are (line, step, name, seconds) of `table`.

    Rows may stand in any order. Two steps or more of which every phase comes again, with other seconds, were trained
    again: the later count. `UserError` where the first step is among them: these are several runs.
    """
    found = TableOrder()
    first: dict[tuple[int, str], float] = {}
    names: dict[int, set[str]] = {}
    repeated: dict[int, set[str]] = {}
    lines: dict[int, int] = {}
    for line, step, name, value in read:
        if (step, name) not in first:
            first[step, name] = value.value
            names.setdefault(step, set()).add(name)
            continue
        repeated.setdefault(step, set()).add(name)
        if value.value != first[step, name]:
            lines.setdefault(step, line)
    # One step that comes again was corrected by hand.
    if len(whole := [step for step in lines if repeated[step] == names[step]]) > 1:
        if min(names) in whole:
            raise UserError(
                f"{path} holds several runs, or several rows a phase: {count_of(len(whole), 'step')}, the first among "
                f"them, come again from line {min(lines.values())} on with other seconds. Which is meant is not "
                f"guessed. Of several runs: {SEPARATE[0].lower()}{SEPARATE[1:]}. Of several rows a phase (ranks, "
                "micro-batches): sum them, or take the slowest, before the import"
            )
        found.again, found.resumed = set(whole), {whole[0]}
        text = (
            f"{path}: {count_of(len(whole), 'step')} ({min(whole)} to {max(whole)}) come again from line "
            f"{lines[whole[0]]} on: the run was started again, and the later count"
        )
        found.verdicts.append(Verdict("note", "duplicate-step", text))
    if table and {*_COUNTERS, *_ELAPSED, _TIME} & table[0][1].keys():
        rows = dict(table)
        _note_counters(found, [(line, step, rows[line]) for line, step, *_ in read], path)
    return found


def _note_counters(found: TableOrder, rows: Sequence[tuple[int, int, Mapping[str, str]]], path: Path) -> None:
    """Adds what the columns of counters tell, step by step."""
    steps: dict[int, StepRecord] = {}
    for line, step, row in rows:
        scalars = {name: v for column, name in _COUNTERS.items() if (v := _number(row.get(column))) is not None}
        elapsed = next((v for column in _ELAPSED if (v := _number(row.get(column))) is not None), None)
        steps[step] = StepRecord(step, {}, scalars, {}, None, path, line, elapsed_s=elapsed)
        if (time := _number(row.get(_TIME))) is not None:
            found.times[step] = max(time, found.times.get(step, time))
    in_order = [steps[step] for step in sorted(steps)]
    if not _is_clock([one.elapsed_s for one in in_order if one.elapsed_s is not None]):
        in_order = [replace(one, elapsed_s=None) for one in in_order]
    fell = [
        Restart(before, after, some)
        for before, after in pairwise(in_order)
        if after.step not in found.resumed and (some := falls(before, after))
    ]
    found.resumed |= {one.after.step for one in fell}
    found.verdicts += restart_verdicts(fell, str(path), lambda _: SEPARATE[0].lower() + SEPARATE[1:])
    by_clock = [str(one.after.step) for one in fell if all(fall.name == ELAPSED for fall in one.fell)]
    if len(by_clock) > 1:
        column = next(name for name in _ELAPSED if any(row.get(name) for *_, row in rows))
        text = (
            f"{path}: column {column} falls {len(by_clock)} times (at step {', '.join(by_clock[:10])}"
            f"{', …' if len(by_clock) > 10 else ''}), and no other counter there: these steps do not count. If it "
            "holds durations and no time since the start, give it another name"
        )
        found.verdicts.append(Verdict("warning", "clock-fell", text))


def _is_clock(values: Sequence[float]) -> bool:
    rises = sum(before < after for before, after in pairwise(values))
    return rises >= _CLOCK_RISES * (len(values) - 1)


def _number(text: str | None) -> float | None:
    value = printed(text) if text else None
    return None if value is None else value.value
