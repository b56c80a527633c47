"""Reads a table with a row for each phase of a step: the columns step, phase and seconds.

Its phases are the timers of a known trainer, or, with a column parent, of a tree of their own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.sources.table_columns import SELECTING, Row, name_taken
from analysis.sources.table_rows import names_phases
from analysis.sources.table_texts import number_of
from common.errors import UserError
from common.messages import join_first
from common.shown import shown
from common.verdicts import Verdict, count_of
from trainers.logs.log_files import PrintedNumber, half_digit, parse_number
from trainers.logs.record import STEPS_LOGGED, TIMERS, Imported, SourceRead, StepRecord, TablePhase
from trainers.timers.own import NOT_SUMMED, add_phase, category_of, require_name

# A table with the first of these has its own timer tree (trainers/timers/own.py).
PARENT, CATEGORY = "parent", "category"
# A number with more decimals than this is not rounded: a program printed it in full.
FULL_DECIMALS = 9
LATEST_STEP = 1e15
# A column `phase` with these alone, one of them a training's, says what a row for a step is of.
STAGES = {"train", "training", "eval", "evaluation", "val", "valid", "validation", "test"}
_Texts = Mapping[str, str]
"""A row's texts, by column in lower case."""


@dataclass(frozen=True, slots=True)
class _Value:
    """The seconds of one row, under the record's name of its phase."""

    line: int
    step: int
    name: str
    seconds: PrintedNumber
    row: _Texts

    @property
    def group(self) -> str:
        """What is rounded alike: all phases of the step, or a phase outside it."""
        return TIMERS if self.name.startswith(TIMERS) else self.name


def is_long(rows: Sequence[Row]) -> bool:
    """Whether rows are those of a table of phases."""
    phases = {_texts(row)["phase"].lower() for _, _, row in rows if row and names_phases(row)}
    return bool(phases) and (has_tree(rows) or not phases <= STAGES or phases.isdisjoint({"train", "training"}))


def has_tree(rows: Iterable[Row]) -> bool:
    """Whether such rows have a tree of their own."""
    return any(row and PARENT in _texts(row) for _, _, row in rows)


def read_long(rows: Iterable[Row], path: Path, form: str, names: Collection[str] = ()) -> Imported:
    """The phases of one run, under verl's names (`gen` is `timing_s/gen`).

    Where a column run, arm or engine distinguishes several runs, `names` (the run's id, its arm, its engine) select the
    rows. The rounding of all seconds is half a unit of the last decimal that any of them has. With a column parent the
    phases have their own tree, and a phase outside the step's sum keeps its own name and rounding. An unreadable row is
    a finding. `UserError` where no name selects one of several runs, or where parents contradict each other.
    """
    unread = {"seconds": "a row that is cut off, or has more values than columns"}
    texts = ((line, unread if row is None else _texts(row)) for _, line, row in rows)
    filled = [(line, row) for line, row in texts if any(row.values())]
    columns = {column for _, row in filled for column in row}
    selecting = [column for column in SELECTING if column in columns]
    table = _of_one_run(filled, selecting, names, path)
    values, verdicts = _values(table, path)
    if any(value.name == STEPS_LOGGED for value in values):
        values = [value for value in values if value.name != STEPS_LOGGED]
        verdicts.append(name_taken(path))
    steps, again, told = _last_values(values, path)
    by_group: dict[str, list[PrintedNumber]] = {}
    first_lines: dict[int, int] = {}
    for value in values:
        by_group.setdefault(value.group, []).append(value.seconds)
        first_lines.setdefault(value.step, value.line)
    rounding = {group: _rounding(seconds) for group, seconds in by_group.items()}
    records = {}
    for step, of_step in sorted(steps.items()):
        scalars = {name: value.seconds.value for name, value in of_step.items()}
        finite = [name for name, seconds in scalars.items() if math.isfinite(seconds)]
        cut = {name: off for name in finite if (off := rounding[of_step[name].group])}
        origins = {name: (path, value.line) for name, value in of_step.items()}
        records[step] = StepRecord(step, {}, scalars, {}, step in again[:1], path, first_lines[step], cut, origins)
    # All rows are of one run, so each of these columns has one value, and these values select the run's rows.
    selected = {column: table[0][1].get(column, "") for column in selecting if table}
    tree = _own_tree(values, path) if PARENT in columns else None
    return Imported(SourceRead(records, verdicts + told, set(again)), form, selected=selected, tree=tree)


def _texts(row: Mapping[str, Any]) -> _Texts:
    return {name.strip().lower(): "" if value is None else str(value).strip() for name, value in row.items()}


def _of_one_run(
    table: Sequence[tuple[int, _Texts]], selecting: Sequence[str], names: Collection[str], path: Path
) -> Sequence[tuple[int, _Texts]]:
    for column in selecting:
        values = {row.get(column, "") for _, row in table}
        chosen = values & set(names)
        if len(values) > 1 and len(chosen) == 1:
            table = [(line, row) for line, row in table if row.get(column, "") in chosen]
    for column in selecting:
        found = list(dict.fromkeys(row.get(column, "") for _, row in table))
        if len(found) > 1:
            raise runs_in_column(path, column, found, names)
    return table


def runs_in_column(path: Path, column: str, found: Sequence[str], names: Collection[str]) -> UserError:
    """The error for a table whose column has several runs, none of them named."""
    found = [shown(one) for one in found]
    known = f", and this run is known as {', '.join(dict.fromkeys(names))}" if any(names) else ""
    return UserError(
        f"{path} holds several runs: column {column} has {join_first(found, 6)}{known}. Name the arm as the "
        f"table does (compare {found[0]}={path}), or split the table: one file for each value of {column}"
    )


def _values(table: Sequence[tuple[int, _Texts]], path: Path) -> tuple[list[_Value], list[Verdict]]:
    """The seconds of every readable row, and a finding for each of the others."""
    found, verdicts = [], []
    for line, row in table:
        step, phase, text = (row.get(column, "") for column in ("step", "phase", "seconds"))
        number, seconds = _step_of(step), parse_number(text)
        if seconds is None and (of_time := number_of(text)[0]) is not None:
            seconds = PrintedNumber(of_time, None)
        if number is None or seconds is None or not phase:
            got = ", ".join(shown(one[:80]) or "nothing" for one in (step, phase, text))
            said = (
                f"{path}:{line} cannot be read and was skipped: step must be a whole number from 1, phase a name and "
                f"seconds a number such as 12.5 (got {got})"
            )
            verdicts.append(Verdict("warning", "corrupt-line", said))
            continue
        prefix = "" if row.get(PARENT) == NOT_SUMMED else TIMERS
        found.append(_Value(line, number, prefix + shown(phase.removeprefix(TIMERS)), seconds, row))
    return found, verdicts


def _step_of(text: str) -> int | None:
    number, is_time = number_of(text)
    whole = number is not None and not is_time and 1 <= number < LATEST_STEP and number.is_integer()
    return int(number) if number is not None and whole else None


def _last_values(values: Sequence[_Value], path: Path) -> tuple[dict[int, dict[str, _Value]], list[int], list[Verdict]]:
    """Each step's values, the last of each name; the steps that were trained again; what is to be said.

    Rows may come in any order. Two or more steps of which every phase comes again with other seconds were trained
    again after a restart. `UserError` where the first step is among them: the table holds several runs.
    """
    steps: dict[int, dict[str, _Value]] = {}
    repeated: dict[int, set[str]] = {}
    changed: dict[int, list[tuple[_Value, _Value]]] = {}
    for value in values:
        earlier = steps.setdefault(value.step, {}).setdefault(value.name, value)
        if earlier is value:
            continue
        repeated.setdefault(value.step, set()).add(value.name)
        if earlier.seconds.value != value.seconds.value:
            changed.setdefault(value.step, []).append((earlier, value))
            steps[value.step][value.name] = value
    again = [step for step in changed if repeated[step] == steps[step].keys()]
    # A single step that comes again was corrected by hand.
    if len(again) < 2:
        pairs = [pair for of_step in changed.values() for pair in of_step]
        return steps, [], [_corrected(earlier, later, path) for earlier, later in pairs]
    line = changed[again[0]][0][1].line
    if min(steps) in again:
        raise UserError(
            f"{path} holds several runs, or several rows a phase: {count_of(len(again), 'step')}, the first among "
            f"them, come again from line {line} on with other seconds. Of several runs: give the rows of each run a "
            "value of their own in a column run. Of several rows a phase (ranks, micro-batches): sum them, or take "
            "the slowest"
        )
    text = (
        f"{path}: {count_of(len(again), 'step')} ({min(again)} to {max(again)}) come again from line {line} on: the "
        "run was started again, and the later rows count"
    )
    others = [pair for step, of_step in changed.items() if step not in again for pair in of_step]
    told = [Verdict("note", "duplicate-step", text), *(_corrected(*pair, path) for pair in others)]
    return steps, again, told


def _corrected(earlier: _Value, later: _Value, path: Path) -> Verdict:
    text = (
        f"{path} has {later.name} of step {later.step} on lines {earlier.line} and {later.line}; "
        f"line {later.line} counts"
    )
    return Verdict("warning", "duplicate-value", text)


def _own_tree(values: Sequence[_Value], path: Path) -> dict[str, TablePhase]:
    """The phases of these rows, with their parents."""
    found: dict[str, TablePhase] = {}
    outside: dict[str, int] = {}
    for value in values:
        name, parent = (value.row.get(column, "").removeprefix(TIMERS) for column in ("phase", PARENT))
        for one in (name, parent):
            require_name(one, f"{path}:{value.line}")
        if parent == NOT_SUMMED:
            outside.setdefault(name, value.line)
        else:
            category = category_of(value.row.get(CATEGORY, ""), f"{path}:{value.line}: phase {name}")
            add_phase(found, name, TablePhase(parent, category, value.line, path))
    for name in found.keys() & outside.keys():
        raise UserError(
            f"phase {name} is outside the step on line {outside[name]} of {path} (parent -), and inside it on "
            f"{found[name].place}. Give it one parent"
        )
    return found


def _rounding(values: Sequence[PrintedNumber]) -> float:
    """Half a unit of the last decimal that the table shows: a spreadsheet drops zeros at the end."""
    decimals = max((v.decimals for v in values if v.decimals is not None), default=0)
    full = decimals > FULL_DECIMALS or any(v.in_full for v in values)
    return 0.0 if full else half_digit(decimals)
