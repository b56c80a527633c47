"""Reads the rows of a table: JSON lines, a JSON document, or a CSV or parquet file."""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path
from typing import Any

from analysis.sources.parquet_rows import MOST_COLUMNS, parquet_rows
from analysis.sources.table_texts import (
    UNITS,
    has_decimal_commas,
    is_counter,
    is_summary,
    is_time,
    number_of,
    plain_number,
    value_of,
)
from common.dotted import LONGEST_NAME, flatten, is_bounded
from common.errors import UserError
from common.messages import join_first
from common.shown import shown
from common.verdicts import Verdict
from trainers.logs.record import STEPS_LOGGED
from trainers.logs.restarts import split_commands

DELIMITERS = ",;\t|"
# So many lines show what a file is, if most of them say so.
HEAD_LINES = 20
ENOUGH = 0.8
# So many show with how many decimals a program writes its numbers.
LEAST_LINES = 5
PHASE_COLUMNS = {"step", "phase", "seconds"}
# Columns that may distinguish several runs in one table, the most specific first.
SELECTING = ("run", "arm", "engine")
_KINDS = {"split", "phase", "mode", "type", "event", "stage", "kind"}
_PRINTED = re.compile(r"[-+]?(\d+)\.?(\d*)")
# `Step 3`, `3/20`: the number of a step, as a text.
_STEP_TEXT = re.compile(
    r"(?:(?:global[ _])?(?:step|iter|iteration|update)[ _#:-]*)?(\d+)(?: *(?:/|of) *\d+)?", re.IGNORECASE
)
Row = tuple[Path, int, Mapping[str, Any] | None]
"""A row's file, its line and its values by column; None if it cannot be read."""


@dataclass
class TableColumns:
    """The columns of numbers of a table, NaN where a row has none, with its rows' files and lines."""

    places: list[tuple[Path, int]] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=dict)
    seconds: set[str] = field(default_factory=set)
    """Columns of texts that are times, `27.3s` or `2025-11-11T10:00:00Z`: their numbers are seconds."""
    kinds: dict[str, list[str]] = field(default_factory=dict)
    """Columns of texts that say what a row is of, such as `split`."""
    unread: dict[str, str] = field(default_factory=dict)
    """The first text that is no number, of each column."""
    verdicts: list[Verdict] = field(default_factory=list)

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order."""
        self.places = [self.places[row] for row in rows]
        self.values = {name: [column[row] for row in rows] for name, column in self.values.items()}
        self.kinds = {name: [column[row] for row in rows] for name, column in self.kinds.items()}

    def join_rows(self, counter: str) -> None:
        """Join neighbours of one step with no other column in common (logged in parts) or all (printed twice)."""
        steps, first, heads = self.values[counter], 0, [0]
        others = [column for name, column in self.values.items() if name != counter]
        for row in range(1, len(steps)):
            parts = [column for column in others if not math.isnan(column[row])] if steps[row] == steps[first] else []
            if parts and all(math.isnan(column[first]) for column in parts):
                for column in parts:
                    column[first] = column[row]
            elif not parts or any(column[row] != column[first] for column in parts):
                first = row
                heads.append(row)
        if len(heads) < len(steps):
            self.keep(heads)

    def only_kind(self, counter: str) -> tuple[str, str] | None:
        """Keep the rows of one kind where a step has several: the kind that most rows are of, and each step once.

        Returns the column and its value; None where none tells the rows apart.
        """
        steps = self.values[counter]
        for name, kinds in self.kinds.items() if len({*steps}) < len(steps) else ():
            (kind, count), *others = Counter(kinds).most_common(2)
            rows = [row for row, one in enumerate(kinds) if one == kind]
            if name.lower() in _KINDS and others and others[0][1] < count == len({steps[row] for row in rows}):
                self.keep(rows)
                return name, kind
        return None


def columns_of(rows: Iterable[Row], path: Path) -> TableColumns:
    """The numbers of rows, by column."""
    found, unread, sums = TableColumns(), [], []
    for file, line, row in rows:
        if row is None:
            unread.append(line)
            continue
        if is_summary(next(iter(row.values()), None)):
            sums.append(len(found.places))
        for name, raw in row.items():
            value, is_text_of_time = value_of(raw)
            if value is None and isinstance(raw, str) and (label := _STEP_TEXT.fullmatch(raw)) and is_counter(name):
                value = float(label[1])
            if is_text_of_time:
                found.seconds.add(name)
            if name and value is not None:
                if name not in found.values:
                    found.values[name] = [math.nan] * len(found.places)
                found.values[name].append(value)
            elif name and name.lower() in _KINDS.union(SELECTING) and isinstance(raw, str):
                found.kinds.setdefault(name, [""] * len(found.places)).append(shown(raw))
            elif name and raw and isinstance(raw, str):
                found.unread.setdefault(name, shown(raw))
        found.places.append((file, line))
        for texts in found.kinds.values():
            texts.extend([""] * (len(found.places) - len(texts)))
        for values in found.values.values():
            values.extend([math.nan] * (len(found.places) - len(values)))
    if 0 < 2 * len(sums) < len(found.places):
        text = f"{path}: rows of sums or means ({join_first([found.places[row][1] for row in sums])}) were skipped"
        found.verdicts.append(Verdict("note", "no-step-line", text))
        found.keep(sorted({*range(len(found.places))} - {*sums}))
    if unread:
        text = f"{path}: {len(unread)} lines cannot be read and were skipped (line {join_first(unread)})"
        found.verdicts.append(Verdict("warning", "corrupt-line", text))
    if found.values.pop(STEPS_LOGGED, None) is not None:
        found.verdicts.append(name_taken(path))
    return found


def name_taken(path: Path) -> Verdict:
    """The finding on a user's numbers whose name has a meaning in our tables; they are left out."""
    text = f"{path}: {STEPS_LOGGED} is left out: our tables have that name for the steps of a row. Rename it"
    return Verdict("warning", "name-taken", text)


def rows_of(path: Path) -> Iterator[Row]:
    """The rows of a file, whose columns have names that can be `shown`."""
    for file, line, row in _rows_of(path):
        if row is not None and not all(name.isprintable() and len(name) <= LONGEST_NAME for name in row):
            row = {shown(name): value for name, value in row.items() if len(name) <= LONGEST_NAME}
        yield file, line, row


def _rows_of(path: Path) -> Iterator[Row]:
    if path.suffix.lower() == ".parquet":
        yield from ((path, line, flatten(row)) for line, row in enumerate(parquet_rows(path), start=1))
        return
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        head = list(islice(file, HEAD_LINES))
        lines = chain(head, file)
        try:
            if is_named_table(path) or is_phase_header("".join(head[:1])) or is_delimited(head):
                rows = _delimited(lines, path, partial(has_decimal_commas, path))
                yield from rows if _is_ended(path) else _without_cut_number(rows)
            else:
                yield from _objects(lines, path)
        except csv.Error as error:
            raise UserError(f"{path} cannot be read as CSV ({error}); correct it, or save it as CSV UTF-8") from None


def _is_ended(path: Path) -> bool:
    """Whether a file's last line has an end: none is written before the whole line is."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        return file.read() in b"\r\n"


def _without_cut_number(rows: Iterable[Row]) -> Iterator[Row]:
    """The rows of a file whose last line has no end: that row cannot be read if it may end within its last number.

    Spreadsheets end no last line. A number that is cut off has fewer decimals, or digits, than all others.
    """
    shortest, seen = (math.inf, math.inf), 0
    for (file, line, row), after in pairwise(chain(rows, [None])):  # type: ignore[misc]
        found = _PRINTED.fullmatch([*row.values()][-1] or "") if row else None
        if found is not None:
            length = (len(found[2]), 0 if found[2] else len(found[1]))
            if after is None and seen >= LEAST_LINES and length < shortest:
                row = None
            shortest, seen = min(shortest, length), seen + 1
        yield file, line, row


def is_named_table(path: Path) -> bool:
    """Whether a file's name says that it is a table."""
    return path.suffix.lower() in (".csv", ".tsv")


def is_delimited(head: Sequence[str]) -> bool:
    """Whether a file's first lines are the names of columns, with a step or a time among them, and rows of numbers."""
    try:
        rows = [row for _, _, row in _delimited(head, Path("head"))]
    except (UserError, csv.Error):
        return False
    names = [name for name in rows[0] or () if is_counter(name) or is_time(name)] if rows else []
    return any(
        sum(row is not None and number_of(row[name] or "")[0] is not None for row in rows) >= ENOUGH * len(rows)
        for name in names
    )


def names_phases(names: Iterable[str]) -> bool:
    """Whether a table's columns show that it has a row for each phase of a step (long_table.py)."""
    return {name.strip().lower() for name in names} >= PHASE_COLUMNS


def is_phase_header(line: str) -> bool:
    """Whether a line names the columns of such a table."""
    return any(names_phases(line.removeprefix("\ufeff").replace('"', "").split(delimiter)) for delimiter in DELIMITERS)


def _delimited(
    lines: Iterable[str], path: Path, has_decimal_commas: Callable[[str], bool] = lambda delimiter: delimiter == ";"
) -> Iterator[Row]:
    """The rows below the line that names the columns; comments, and Excel's `sep=;`, may be above it."""
    lines, above = iter(lines), 0
    first = ""
    while not first.strip() or first.startswith(("#", "sep=")):
        if (first := next(lines, "")) == "":
            return
        above += 1
    delimiter = max(DELIMITERS, key=first.count)
    decimal_commas = has_decimal_commas(delimiter)
    names, *_ = csv.reader([first], delimiter=delimiter, skipinitialspace=True)
    names = [name.strip() for name in names]
    if len(names) > MOST_COLUMNS:
        raise UserError(f"{path} has {len(names):,} columns; at most {MOST_COLUMNS:,} are read. Give those of one run")
    second = next(lines, "")
    below = next(csv.reader([second], delimiter=delimiter, skipinitialspace=True), [])
    if (merged := _with_second_row(names, [cell.strip() for cell in below])) is not None:
        names, above = merged, above + 1
    else:
        lines = chain([second] if second else [], lines)
    if all(number_of(name)[0] is not None for name in names if name):
        raise UserError(
            f"{path} does not name its columns in its first line ({first.strip()[:80]!r}); add a line of names"
        )
    reader = csv.DictReader(lines, _distinct(names), delimiter=delimiter, skipinitialspace=True)
    for row in reader:
        if [*row.values()] == names and not any(map(is_counter, names)):
            at = above + reader.line_num
            raise UserError(f"{path} names its columns again on line {at}: {split_commands(path, at - 1)}")
        # More cells than names: probably decimal commas where commas separate the columns.
        more = any(row.pop(None, ()))
        yield (
            path,
            above + reader.line_num,
            None if more else {n: plain_number(text, decimal_commas) for n, text in row.items()},
        )


def _distinct(names: Sequence[str]) -> list[str]:
    """The names of columns, the second of one name as `(2) name`: in an export of two runs of one name."""
    counts: Counter[str] = Counter()
    found = []
    for name in names:
        counts[name] += 1
        found.append(f"({counts[name]}) {name}" if name and counts[name] > 1 else name)
    return found


def _with_second_row(names: list[str], below: list[str]) -> list[str] | None:
    """The names of columns whose first row has a title or groups, or whose second row has units; None for others."""
    units = [cell.strip("[]() ") for cell in below]
    if len(below) != len(names) or any(number_of(cell)[0] is not None for cell in below):
        return None
    if not UNITS.keys().isdisjoint(units):
        return [f"{name} ({unit})" if unit in UNITS else name for name, unit in zip(names, units, strict=True)]
    if not any(is_counter(cell) or is_time(cell) for cell in below):
        return None
    if names[0] and not any(names[1:]):
        return below
    # A spreadsheet leaves the cells empty over which it merged one.
    groups: Iterator[str] = accumulate(names, lambda above, name: name or above)
    return [f"{group}/{name}" if group and name else name or group for group, name in zip(groups, below, strict=True)]


def _objects(lines: Iterable[str], path: Path) -> Iterator[Row]:
    """The rows of JSON lines, or of a JSON document: a list of objects, or an object with a list for each column."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        rows = objects_in(line)
        if number == 1 and len(rows) < 2:
            alone = path.stat().st_size <= len(line.encode("utf-8-sig"))
            if (alone or not rows) and len(whole := _document_rows(path)) > 1:
                yield from ((path, place, flatten(row)) for place, row in enumerate(whole, start=1))
                return
        yield from ((path, number, flatten(row)) for row in rows)
        if not rows:
            yield path, number, None


def objects_in(text: str) -> list[Mapping[str, Any]]:
    """The objects of a text of JSON; none if it is not complete."""
    try:
        found = json.loads(text) if text.lstrip()[:1] in ("{", "[") else []
    except (ValueError, RecursionError):
        return []
    if not is_bounded(found):
        return []
    if isinstance(found, dict) and found:
        lists = [value for value in found.values() if isinstance(value, list)]
        if len(lists) == len(found) and len({len(one) for one in lists}) == 1:
            found = [dict(zip(found, row, strict=True)) for row in zip(*lists, strict=True)]
    return [row for row in (found if isinstance(found, list) else [found]) if isinstance(row, dict)]


def _document_rows(path: Path) -> list[Mapping[str, Any]]:
    """The rows of a JSON document: its own, its only list of objects, or pandas' columns or rows by their index."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    rows = objects_in(text)
    values = [*rows[0].values()] if len(rows) == 1 else []
    lists = [some for some in values if isinstance(some, list) and len(some) > 1 and isinstance(some[0], Mapping)]
    if len(lists) == 1:
        return [row for row in lists[0] if isinstance(row, Mapping)]
    if values and all(isinstance(some, Mapping) and some.keys() == values[0].keys() for some in values):
        if all(key.isdigit() for key in rows[0]):
            return values
        if all(key.isdigit() for key in values[0]):
            return [{name: some[key] for name, some in rows[0].items()} for key in values[0]]
    return rows


def is_rows(lines: Sequence[str]) -> bool:
    """Whether the first lines of a file are JSON objects with numbers, but for few."""
    rows = [flatten(row) for line in lines for row in objects_in(line)]
    return len(rows) >= ENOUGH * len(lines) > 0 and sum(map(_has_numbers, rows)) >= ENOUGH * len(rows)


def _has_numbers(row: Mapping[str, Any]) -> bool:
    """Whether an object has numbers, and not a time beside one alone, as a program's message has."""
    numbers = [name for name, value in row.items() if value_of(value)[0] is not None]
    times = [name for name in numbers if value_of(row[name])[1]]
    return len(numbers) >= 2 and (len(numbers) - len(times) >= 2 or any(map(is_counter, numbers)))


def is_document(path: Path) -> bool:
    """Whether a file is a JSON document with several rows of numbers."""
    rows = _document_rows(path)
    return len(rows) > 1 and is_rows([json.dumps(row) for row in rows[:HEAD_LINES]])
