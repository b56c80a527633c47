"""Reads the rows of a table: JSON lines, a JSON document, or a CSV or parquet file."""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path
from typing import Any

from analysis.sources.parquet_rows import parquet_rows
from analysis.sources.table_columns import Row, require_bounded
from analysis.sources.table_texts import (
    UNITS,
    has_decimal_commas,
    is_counter,
    is_time,
    number_of,
    plain_number,
    value_of,
)
from common.dotted import LONGEST_NAME, flatten, is_bounded
from common.errors import UserError
from common.shown import shown
from trainers.logs.restarts import split_commands

DELIMITERS = ",;\t|"
# So many lines show what a file is, if most of them say so.
HEAD_LINES = 20
ENOUGH = 0.8
# So many show with how many decimals a program writes its numbers.
LEAST_LINES = 5
PHASE_COLUMNS = {"step", "phase", "seconds"}
_PRINTED = re.compile(r"[-+]?(\d+)\.?(\d*)")


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
    require_bounded(path, len(names))
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
