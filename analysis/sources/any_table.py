"""Reads a table with any columns: JSON lines, or a CSV or parquet file with one row for each step.

Which column counts the steps and which has their seconds is found by name and then tested: a counter rises, seconds are
positive, phases add up to their step, a clock only rises. What was taken for what is said; where two columns may be the
step's seconds, neither is taken.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from common.dotted import flatten
from common.errors import UserError
from common.messages import did_you_mean, join_first
from common.verdicts import Verdict
from trainers.logs.record import STEPS_LOGGED, TIMERS, Imported, StepRecord, TablePhase, as_number
from trainers.logs.restarts import steps_in_sequence

FORMAT = "table"
COLUMNS_TAKEN = "columns-taken"
"""The code of the verdict that says which column was taken for what."""
FLAG = "--step-seconds"
DELIMITERS = ",;\t"
# A test holds if it holds in this share of the rows: a step may be cut off, or not a number.
ENOUGH = 0.95
# Phases that add up to less of a column say nothing about it.
LEAST_COVERED = 0.8
# More rows tell nothing new about sums.
MOST_ROWS = 2000
# Clocks are read a moment apart.
TOLERANCE_SHARE, TOLERANCE_S = 2e-3, 2e-3
# So many rising seconds in a row are no chance.
CLOCK_ROWS = 8
_COUNTER = re.compile(r"(?:^|.*[/._ -])_?(?:global_?)?(?:step|steps|iter|iters|iteration|update)$", re.IGNORECASE)
_SECONDS = re.compile(
    r"(?:^|.*[/._ -])(?:s|secs?|seconds?|ms|millis|milliseconds|duration|elapsed|latency|runtime|wall|wall_?clock)$"
    r"|.*(?:time|seconds|duration|elapsed|latency|runtime|wall_?clock)(?:[/._ -].*|$)",
    re.IGNORECASE,
)
_NO_SECONDS = re.compile(
    r"per_?s|/s$|per_sec|throughput|tokens|samples|timesteps?$|time_?steps?$|lr|rate", re.IGNORECASE
)
_MILLISECONDS = re.compile(r"(?:^|.*[/._ -])(?:ms|millis|milliseconds)$|.*_ms$", re.IGNORECASE)
_UNIT = re.compile(r"(?:^|[/._ -])(?:s|secs?|seconds?|ms|millis|milliseconds)$", re.IGNORECASE)
_WHOLE = re.compile(
    r"(?:^|.*[/._ -])(?:total|step|iteration|iter|whole|e2e|end_to_end)"
    r"(?:[/._ -]?(?:time|s|secs?|seconds|duration|ms))?$",
    re.IGNORECASE,
)
_ELAPSED = re.compile(r"elapsed|runtime|since|wall|clock|timestamp", re.IGNORECASE)
Columns = Mapping[str, Sequence[float]]


def is_rows(lines: Sequence[str]) -> bool:
    """Whether the first lines of a file are JSON objects with numbers, but for few."""
    rows = [row for line in lines if (row := _object(line)) is not None]
    numbers = [sum(as_number(value) is not None for value in flatten(row).values()) for row in rows]
    return bool(rows) and len(rows) >= 0.8 * len(lines) and sum(count >= 2 for count in numbers) >= 0.8 * len(rows)


def read_table(path: Path, step_seconds: str | None = None) -> Imported:
    """The steps of a file with a row for each step; see `table_of`."""
    return table_of(((path, line, row) for line, row in _rows(path)), path, step_seconds)


def table_of(
    rows: Iterable[tuple[Path, int, Mapping[str, Any] | None]],
    path: Path,
    step_seconds: str | None = None,
    counter: str = "",
    clock: str = "",
) -> Imported:
    """The steps of rows, with the whole step and its phases as the timers of a tree of their own.

    A row is its file, its line and its values by column, None if it cannot be read; each file is a life of the run.
    `step_seconds` names the column with the step's seconds. Where they are known, `counter` is the column that counts
    the steps, and `clock` the one that says when a row was written. `UserError` where no column or more than one may
    have the step's seconds.
    """
    places, columns, verdicts = _columns(rows, path)
    counter = counter or _counter(columns)
    steps = [int(value) for value in columns[counter]] if counter else list(range(1, len(places) + 1))
    seconds = {name: _in_seconds(name, values) for name, values in columns.items() if name != counter}
    times = _times(path, seconds, step_seconds, clock)
    root, parts, is_clock = times.root, times.parts, times.is_clock
    timed = {name: seconds[name] for name in (root, *parts)}
    timed |= {name: [value / 1000.0 for value in seconds[name]] for name in times.milliseconds}
    windows = [1] * len(places)
    if is_clock:
        # The first time on a clock is not the length of a step; a later one counts all steps since the row before.
        windows[1:] = [max(1, after - before) for before, after in pairwise(steps)]
        timed[root] = [s / window for s, window in zip(_differences(seconds[root]), windows, strict=True)]
    elif any(step == 0 and not math.isnan(value) for step, value in zip(steps, timed[root], strict=True)):
        steps = [step + 1 for step in steps]
    records = []
    for at, ((file, line), step, window) in enumerate(zip(places, steps, windows, strict=True)):
        if step < 1 or (is_clock and at == 0):
            continue
        scalars = {name: values[at] for name, values in columns.items() if name not in (*timed, counter)}
        scalars |= {TIMERS + name: values[at] for name, values in timed.items()}
        scalars = {name: value for name, value in scalars.items() if not math.isnan(value)}
        if window > 1:
            scalars[STEPS_LOGGED] = float(window)
        records.append(StepRecord(step, {}, scalars, {}, None, file, line, time=columns[clock][at] if clock else None))
    if is_clock and not records:
        raise UserError(
            f"{path} has no step seconds but the time at which rows were written ({root}), and 1 row: a step's seconds "
            "are the difference of two"
        )
    read = steps_in_sequence(records, path, {b.step for a, b in pairwise(records) if a.file != b.file})
    text = f"{path}: {_taken(counter, times)}"
    read.verdicts = [Verdict("note", COLUMNS_TAKEN, text), *verdicts, *read.verdicts]
    tree = {root: TablePhase("", "", 1, path)} | {name: TablePhase(root, "", 1, path) for name in parts}
    return Imported(read, FORMAT, tree=tree)


def _object(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line) if line.startswith("{") else None
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
    """The line of each row and its values by column; None for a row that cannot be read."""
    if path.suffix.lower() == ".parquet":
        # Not at the top: whatever checks a configuration's sources loads this module.
        import pyarrow.parquet

        try:
            table = pyarrow.parquet.read_table(path)
        except pyarrow.ArrowException as error:
            raise UserError(f"{path} is no parquet file ({error}); copy it again") from None
        yield from enumerate(table.to_pylist(), start=1)
        return
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        if path.suffix.lower() in (".csv", ".tsv"):
            first = file.readline()
            file.seek(0)
            reader = csv.DictReader(file, delimiter=max(DELIMITERS, key=first.count))
            yield from ((reader.line_num, row) for row in reader)
            return
        for number, line in enumerate(file, start=1):
            if line.strip():
                row = _object(line.strip())
                yield number, None if row is None else flatten(row)


def _columns(
    rows: Iterable[tuple[Path, int, Mapping[str, Any] | None]], path: Path
) -> tuple[list[tuple[Path, int]], dict[str, list[float]], list[Verdict]]:
    """The rows' files and lines, and the columns of numbers, NaN where a row has none."""
    places: list[tuple[Path, int]] = []
    columns: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    unread = []
    try:
        for file, line, row in rows:
            if row is None:
                unread.append(line)
                continue
            for name, raw in row.items():
                value = _number(raw)
                if name and value is not None:
                    if name not in columns:
                        columns[name] = [math.nan] * len(places)
                    columns[name].append(value)
                    counts[name] = counts.get(name, 0) + 1
            places.append((file, line))
            for values in columns.values():
                values.extend([math.nan] * (len(places) - len(values)))
    except csv.Error as error:
        raise UserError(f"{path} cannot be read as CSV ({error}); correct it, or save it as CSV UTF-8") from None
    numbers = {name: values for name, values in columns.items() if counts[name] >= len(places) / 2}
    verdicts = []
    if unread:
        text = f"{path}: {len(unread)} lines are no JSON objects and were skipped (line {join_first(unread)})"
        verdicts.append(Verdict("warning", "corrupt-line", text))
    if numbers.pop(STEPS_LOGGED, None) is not None:
        text = f"{path}: column {STEPS_LOGGED} is left out: our tables have that name for the steps of a row. Rename it"
        verdicts.append(Verdict("warning", "name-taken", text))
    return places, numbers, verdicts


def _number(raw: object) -> float | None:
    value = as_number(raw)
    if value is None and isinstance(raw, str):
        try:
            return float(raw)
        except ValueError:
            return None
    return value


def _counter(columns: Columns) -> str:
    """The column that counts the steps, `""` without one: whole numbers that rise."""
    fitting = []
    for name, values in columns.items():
        if not _COUNTER.match(name) or not all(value >= 0 and value.is_integer() for value in values):
            continue
        rises = sum(b > a for a, b in pairwise(values))
        if rises >= ENOUGH * (len(values) - 1):
            fitting.append(name)
    # `step` before `train/global_step` before `iteration`.
    return min(fitting, key=lambda name: (name.lower() != "step", "step" not in name.lower(), len(name)), default="")


def _in_seconds(name: str, values: Sequence[float]) -> list[float]:
    return [value / 1000.0 for value in values] if _MILLISECONDS.match(name) else list(values)


@dataclass(frozen=True, slots=True)
class _Times:
    """The column with the step's seconds, and those with its phases."""

    root: str
    parts: tuple[str, ...] = ()
    is_clock: bool = False
    milliseconds: tuple[str, ...] = ()
    """Those of them that add up to the step, or to which the phases add up, only as milliseconds."""


def _times(path: Path, columns: Columns, given: str | None, clock: str) -> _Times:
    """What the step's seconds are; `clock` is the column that is known to be one."""
    if given is not None and given not in columns:
        hint = did_you_mean(given, list(columns))
        raise UserError(f"{path} has no column {given} with numbers{hint}; it has {join_first(list(columns), 12)}")
    named = [name for name in columns if name != clock and _SECONDS.match(name) and not _NO_SECONDS.search(name)]
    clocks = [name for name in named if _is_clock(name, columns[name])]
    durations = [name for name in named if name not in clocks and _holds(v > 0 for v in columns[name])]
    if given is not None and (given == clock or _is_clock(given, columns[given])):
        return _Times(given, is_clock=True)
    if given is None and not durations and (clocks or clock):
        return _Times(next(iter(clocks), clock), is_clock=True)
    every = max(1, len(columns[durations[0]]) // MOST_ROWS) if durations else 1
    sample = {name: columns[name][::every] for name in {*durations, *filter(None, [given])}}
    fits = {root: _fits(root, durations, sample) for root in ([given] if given is not None else durations)}
    if given is None:
        summed = [times for some in fits.values() for share, times in some if share >= LEAST_COVERED]
        plain = [times for times in summed if not times.milliseconds]
        whole = [name for name in durations if _WHOLE.match(name)]
        by_sum = (summed, [times for times in summed if times.root in whole], plain)
        chosen = next((some[0] for some in by_sum if len(some) == 1), None)
        if chosen is not None and len(durations) > 1:
            return chosen
        given = next((some[0] for some in (durations, whole) if len(some) == 1), None)
        if given is None:
            raise UserError(_undecided(path, named, durations, columns))
    return max(fits[given], key=lambda fit: fit[0], default=(0.0, _Times(given)))[1]


def _fits(root: str, durations: Sequence[str], columns: Columns) -> list[tuple[float, _Times]]:
    """The ways in which the other columns are phases of a whole, each with the median share of it that they cover.

    One of two units that no name says is milliseconds if the columns add up only so.
    """
    others = tuple(name for name in durations if name != root)
    rows = zip(columns[root], *(columns[name] for name in others), strict=True)
    sums = [(total, math.fsum(filter(math.isfinite, parts))) for total, *parts in rows if total > 0]
    found = []
    for milliseconds, factor in (((), 1.0), (others, 1e-3), ((root,), 1e3)):
        off_s = TOLERANCE_S * max(1.0, factor)
        if not _holds(factor * parts <= total * (1 + TOLERANCE_SHARE) + off_s for total, parts in sums):
            continue
        share = median(factor * parts / total for total, parts in sums)
        if not milliseconds or (share >= LEAST_COVERED and not any(_UNIT.search(name) for name in milliseconds)):
            found.append((share, _Times(root, others, milliseconds=milliseconds)))
    return found


def _is_clock(name: str, values: Sequence[float]) -> bool:
    rises = all(b > a for a, b in pairwise(values)) and len(values) > 1
    return rises and (len(values) >= CLOCK_ROWS or bool(_ELAPSED.search(name)))


def _holds(tests: Iterator[bool]) -> bool:
    found = list(tests)
    return bool(found) and sum(found) >= ENOUGH * len(found)


def _differences(values: Sequence[float]) -> list[float]:
    return [math.nan, *(b - a for a, b in pairwise(values))]


def _undecided(path: Path, named: Sequence[str], durations: Sequence[str], columns: Columns) -> str:
    if not columns:
        return (
            f"{path} has no column of numbers; give a table with a row for each step, and numbers with a decimal point"
        )
    if named and not durations:
        shown = join_first(list(named), 6)
        return f"{path}: {shown} is not above 0 in nearly all rows; give a table whose seconds are, or {FLAG} COLUMN"
    if not durations:
        return (
            f"{path}: no column is named like seconds; its numbers are in {join_first(list(columns), 12)}. Name the "
            f"column with the step's seconds: {FLAG} COLUMN (in a configuration import.step_seconds)"
        )
    means = [(name, [v for v in columns[name] if not math.isnan(v)]) for name in durations]
    by_name = [f"{name} (mean {math.fsum(values) / len(values):.3g} s)" for name, values in means]
    return (
        f"{path}: no column is the step's seconds for certain: {join_first(by_name, 6)}. Name it: {FLAG} "
        f"{durations[0]} (in a configuration import.step_seconds)"
    )


def _taken(counter: str, times: _Times) -> str:
    counts = f"{counter} counts the steps" if counter else "no column counts the steps, so rows count as steps from 1"
    if times.is_clock:
        return f"{counts}; {times.root} is a clock, and the step's seconds are its differences"
    parts, units = list(times.parts), list(times.milliseconds)
    phases = f", {join_first(parts, 6)} {'its phase' if len(parts) == 1 else 'its phases'}" if parts else ""
    scaled = f"; {join_first(units, 6)} in milliseconds: only so they add up" if units else ""
    return f"{counts}; {times.root} is the step's seconds{phases}{scaled}"
