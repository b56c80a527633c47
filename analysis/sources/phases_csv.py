"""Reads a table of phases: a CSV with the columns step, phase and seconds."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO, TextIOWrapper
from itertools import pairwise
from pathlib import Path

from common.errors import UserError
from common.verdicts import Verdict, count_of
from trainers.logs.log_files import open_log
from trainers.logs.printed import PrintedNumber, half_digit, parse_number
from trainers.logs.record import TIMERS, Imported, SourceRead, StepRecord, TablePhase
from trainers.logs.restarts import ELAPSED, TRAINING_COUNTERS, Restart, counter_drops, restart_verdicts
from trainers.timers.own import NOT_SUMMED, add_phase, category_of, require_name

# Columns that count, by the names that logs give them.
_COUNTERS = {name.partition("/")[2]: name for name in reversed(TRAINING_COUNTERS)} | {
    name: name for name in TRAINING_COUNTERS
}
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

    repeated: set[int] = field(default_factory=set)
    resumed: set[int] = field(default_factory=set)
    times: dict[int, float] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)


def order_of(
    read: Sequence[tuple[int, int, str, PrintedNumber]], table: Sequence[tuple[int, Mapping[str, str]]], path: Path
) -> TableOrder:
    """What the order of a table's rows and its counters tell; `read` are (line, step, name, seconds) of `table`.

    Rows may stand in any order. Two steps or more of which every phase comes again, with other seconds, were trained
    again: the later count. `UserError` where the first step is among them: these are several runs.
    """
    found = TableOrder()
    first: dict[tuple[int, str], float] = {}
    names: dict[int, set[str]] = {}
    repeated_phases: dict[int, set[str]] = {}
    lines: dict[int, int] = {}
    for line, step, name, value in read:
        if (step, name) not in first:
            first[step, name] = value.value
            names.setdefault(step, set()).add(name)
            continue
        repeated_phases.setdefault(step, set()).add(name)
        if value.value != first[step, name]:
            lines.setdefault(step, line)
    # One step that comes again was corrected by hand.
    if len(whole := [step for step in lines if repeated_phases[step] == names[step]]) > 1:
        if min(names) in whole:
            raise UserError(
                f"{path} holds several runs, or several rows a phase: {count_of(len(whole), 'step')}, the first among "
                f"them, come again from line {min(lines.values())} on with other seconds. Which is meant is not "
                f"guessed. Of several runs: {SEPARATE[0].lower()}{SEPARATE[1:]}. Of several rows a phase (ranks, "
                "micro-batches): sum them, or take the slowest, before the import"
            )
        found.repeated, found.resumed = set(whole), {whole[0]}
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
    clock = [one.elapsed_s for one in in_order if one.elapsed_s is not None]
    if sum(before < after for before, after in pairwise(clock)) < _CLOCK_RISES * (len(clock) - 1):
        in_order = [replace(one, elapsed_s=None) for one in in_order]
    fell = [
        Restart(before, after, some)
        for before, after in pairwise(in_order)
        if after.step not in found.resumed and (some := counter_drops(before, after))
    ]
    found.resumed |= {one.after.step for one in fell}
    found.verdicts += restart_verdicts(fell, str(path), lambda _: SEPARATE[0].lower() + SEPARATE[1:])
    by_clock = [str(one.after.step) for one in fell if all(fall.name == ELAPSED for fall in one.drops)]
    if len(by_clock) > 1:
        column = next(name for name in _ELAPSED if any(row.get(name) for *_, row in rows))
        text = (
            f"{path}: column {column} falls {len(by_clock)} times (at step {', '.join(by_clock[:10])}"
            f"{', …' if len(by_clock) > 10 else ''}), and no other counter there: these steps do not count. If it "
            "holds durations and no time since the start, give it another name"
        )
        found.verdicts.append(Verdict("warning", "clock-fell", text))


def _number(text: str | None) -> float | None:
    value = parse_number(text) if text else None
    return None if value is None else value.value


FORMAT = "phases-csv"
REQUIRED = ("step", "phase", "seconds")
# The table's own tree (trainers/timers/own.py), where it has the first of these.
PARENT, CATEGORY = "parent", "category"
# Columns that may tell several runs in one table apart, the most particular first.
SELECTING = ("run", "arm", "engine")
DELIMITERS = ",;\t"
# More decimals than that are no rounding: somebody's program wrote its numbers in full.
FULL_DECIMALS = 9
_DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")
# What may as well be thousands.
_THREE_DIGITS = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")


def columns_of(line: str) -> tuple[list[str], str] | None:
    """A table's columns and what separates them, by its first line; None where it is no table of phases."""
    for delimiter in DELIMITERS:
        names = [name.strip().strip('"').lower() for name in line.lstrip("\ufeff").rstrip("\r\n").split(delimiter)]
        if set(REQUIRED) <= set(names):
            return names, delimiter
    return None


def has_tree(path: Path) -> bool:
    """Whether a table of phases has a tree of its own."""
    with TextIOWrapper(open_log(path), encoding="utf-8-sig", errors="replace") as file:
        found = columns_of(file.readline(1_000_000))
    return found is not None and PARENT in found[0]


def other_columns(path: Path, line: str) -> str:
    """What to do with a table that has other columns, such as one for each phase."""
    if not line.strip():
        return f"{path} has no first line: a table of phases begins with its columns, {','.join(REQUIRED)}"
    delimiter = max(DELIMITERS, key=line.count)
    names = [name.strip().strip('"') for name in line.lstrip("\ufeff").rstrip("\r\n").split(delimiter)]
    phases = [name for name in names if name and name.lower() not in (*REQUIRED, *SELECTING, PARENT, CATEGORY)]
    shown = ", ".join(_shown(name) for name in names[:8]) + (", ..." if len(names) > 8 else "")
    rows = "\n".join(f"  3,{_shown(name)},12.5" for name in (phases or ["gen"])[:2])
    return (
        f"{path} has the columns {shown}; a table of phases is long, with one row for each step and phase, in the "
        f"columns {', '.join(REQUIRED)}:\n  {','.join(REQUIRED)}\n{rows}"
    )


def _shown(text: str) -> str:
    """A word of a file, so that it can be shown."""
    return "".join(c if c.isprintable() else "?" for c in text[:40])


def read_phases_csv(path: Path, names: Collection[str] = ()) -> Imported:
    """The phases of one run, under verl's names (`gen` is `timing_s/gen`).

    Where a column run, arm or engine tells several runs apart, the rows count whose values are among `names` (the
    run's id, its arm, its engine). The rounding of all seconds is half a unit of the last decimal that any of them has.
    With a column parent the phases have a tree of their own, and what it marks as no part of the step's sum keeps its
    own name and rounding. A row that cannot be read is a verdict. `UserError` where the table holds several runs that
    none of the names tells apart, or parents that contradict each other.
    """
    columns, table = _rows_of(path)
    table = _of_one_run(table, columns, names, path)
    read, verdicts = _values(table, path)
    order = order_of(read, table, path)
    verdicts += order.verdicts
    by_name: dict[str, list[PrintedNumber]] = {}
    for _, _, name, value in read:
        by_name.setdefault(TIMERS if name.startswith(TIMERS) else name, []).append(value)
    rounding = {name: _rounding(values) for name, values in by_name.items()}
    steps: dict[int, tuple[int, dict[str, tuple[int, float]]]] = {}
    for line, step, name, value in read:
        _, values = steps.setdefault(step, (line, {}))
        if name in values:
            earlier, before = values[name]
            if before == value.value:
                continue
            if step not in order.repeated:
                words = f"{path} has {name} of step {step} on lines {earlier} and {line}; line {line} counts"
                verdicts.append(Verdict("warning", "duplicate-value", words))
        values[name] = line, value.value
    records = {step: _record(step, *found, rounding, path, order) for step, found in sorted(steps.items())}
    # Of one run, so that each of these columns has one value, and all rows with these values are the run's.
    selected = {column: table[0][1].get(column, "") for column in SELECTING if column in columns and table}
    tree = _own_tree(table, {line for line, *_ in read}, path) if PARENT in columns else None
    return Imported(SourceRead(records, verdicts, order.repeated), FORMAT, selected=selected, tree=tree)


def _rows_of(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """A table's columns, and its rows with the lines on which they end."""
    try:
        text = TextIOWrapper(open_log(path), encoding="utf-8-sig").read()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error}); save the table as CSV UTF-8") from None
    found = columns_of(text.split("\n", 1)[0])
    if found is None:
        raise UserError(other_columns(path, text.split("\n", 1)[0]))
    columns, delimiter = found
    rows = csv.reader(StringIO(text, newline=""), delimiter=delimiter)
    next(rows)
    try:
        table = [(rows.line_num, _by_column(columns, row)) for row in rows if any(row)]
    except csv.Error as error:
        raise UserError(
            f"{path}:{rows.line_num} cannot be read ({error}); correct that line, or leave it out"
        ) from None
    return columns, table


def _own_tree(table: Sequence[tuple[int, dict[str, str]]], lines: Collection[int], path: Path) -> dict[str, TablePhase]:
    """The phases of the rows on these lines, with their parents."""
    found: dict[str, TablePhase] = {}
    beside: dict[str, int] = {}
    for line, row in table:
        name, parent = _name(row["phase"]) if line in lines else "", _name(row.get(PARENT, ""))
        if not name:
            continue
        for one in (name, parent):
            require_name(one, f"{path}:{line}")
        if parent == NOT_SUMMED:
            beside.setdefault(name, line)
        else:
            category = category_of(row.get(CATEGORY, ""), f"{path}:{line}: phase {name}")
            add_phase(found, name, TablePhase(parent, category, line, path))
    for name in found.keys() & beside.keys():
        raise UserError(
            f"phase {name} is no part of the step on line {beside[name]} of {path} (parent -), and a part of it on "
            f"{found[name].place}. Give it one parent"
        )
    return found


def _name(text: str) -> str:
    return text.removeprefix(TIMERS)


def _record(
    step: int,
    first_line: int,
    values: Mapping[str, tuple[int, float]],
    rounding: Mapping[str, float],
    path: Path,
    order: TableOrder,
) -> StepRecord:
    """A step's record, of the line and the seconds of each name."""
    scalars = {name: value for name, (_, value) in values.items()}
    cuts = {name: rounding[TIMERS if name.startswith(TIMERS) else name] for name in scalars}
    cut = {name: off for name, off in cuts.items() if off and math.isfinite(scalars[name])}
    origins = {name: (path, line) for name, (line, _) in values.items()}
    resumed, time = step in order.resumed, order.times.get(step)
    return StepRecord(step, {}, scalars, {}, resumed, path, first_line, cut, origins, time=time)


def _by_column(columns: Sequence[str], row: Sequence[str]) -> dict[str, str]:
    found = dict(zip(columns, (value.strip() for value in row), strict=False))
    # A decimal comma where commas part the columns: its whole seconds would be read.
    return found | {"seconds": "more values than columns"} if any(v.strip() for v in row[len(columns) :]) else found


def _of_one_run(
    table: Sequence[tuple[int, dict[str, str]]], columns: Sequence[str], names: Collection[str], path: Path
) -> list[tuple[int, dict[str, str]]]:
    """The rows of the run that is meant."""
    rows = list(table)
    for column in SELECTING:
        if column not in columns:
            continue
        values = list(dict.fromkeys(row.get(column, "") for _, row in rows))
        chosen = [value for value in values if value in names]
        if len(values) > 1 and len(chosen) == 1:
            rows = [(line, row) for line, row in rows if row.get(column, "") == chosen[0]]
    for column in SELECTING:
        values = list(dict.fromkeys(row.get(column, "") for _, row in rows)) if column in columns else []
        if len(values) > 1:
            meant = ", ".join(dict.fromkeys(names)) or "none"
            raise UserError(
                f"{path} holds several runs: column {column} has {', '.join(values[:6])}"
                f"{', ...' if len(values) > 6 else ''}, and the run that is imported is known as {meant}. Name the arm "
                f"or the run as the table does, or split the table: one file for each value of {column}"
            )
    return rows


def _values(
    table: Sequence[tuple[int, dict[str, str]]], path: Path
) -> tuple[list[tuple[int, int, str, PrintedNumber]], list[Verdict]]:
    """(line, step, name, seconds) of every row that can be read."""
    read, verdicts = [], []
    point = "." if _has_decimal_commas([row.get("seconds", "") for _, row in table]) else ","
    for line, row in table:
        step, phase = row.get("step", ""), row.get("phase", "")
        seconds = parse_number(row.get("seconds", "").replace(",", point))
        if len(step) > 18 or not step.isdecimal() or int(step) < 1 or seconds is None or not phase:
            text = (
                f"{path}:{line} cannot be read and was skipped: step must be a whole number from 1, phase a name and "
                "seconds a number such as 12.5 "
                f"(got {step or 'nothing'}, {phase or 'nothing'}, {row.get('seconds') or 'nothing'})"
            )
            verdicts.append(Verdict("warning", "corrupt-line", text))
            continue
        name = _name(phase) if row.get(PARENT) == NOT_SUMMED else TIMERS + _name(phase)
        read.append((line, int(step), name, seconds))
    return read, verdicts


def _has_decimal_commas(values: Sequence[str]) -> bool:
    """Whether the commas in a table's numbers can only be decimal ones."""
    commas = [value for value in values if "," in value]
    return (
        all(_DECIMAL_COMMA.fullmatch(value) for value in commas)
        and not all(_THREE_DIGITS.fullmatch(value) for value in commas)
        and not any("." in value for value in values)
    )


def _rounding(values: Sequence[PrintedNumber]) -> float:
    """Half a unit of the last decimal that the table shows: a spreadsheet leaves zeros at the end away."""
    decimals = max((v.decimals for v in values if v.decimals is not None), default=0)
    full = decimals > FULL_DECIMALS or any(v.in_full for v in values)
    return 0.0 if full else half_digit(decimals)
