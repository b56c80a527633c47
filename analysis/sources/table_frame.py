"""Reads a table into a data frame whose index has the lines: CSV and its like, JSON, JSON lines, or parquet."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pandas as pd

from common.dotted import LONGEST_NAME, flatten, is_bounded
from common.errors import UserError
from common.messages import join_first
from common.shown import shown
from common.verdicts import Verdict, count_of
from trainers.logs.log_files import half_digit

FORMAT = "table"
COUNTERS = ("step", "global_step", "train/global_step", "training/global_step", "iteration", "iter")
"""The columns that count the steps (docs/import.md); the first that a table has does."""
PHASE_COLUMNS = {"step", "phase", "seconds"}
"""The columns of a table with a row for each phase (phase_table.py)."""
# Columns that distinguish several runs in one table.
_RUNS = ("run", "arm", "engine")
HEAD_ROWS = 20
_DELIMITERS = ",;\t|"
# So many of a file's first lines must be rows.
_ENOUGH = 0.8
_MOST_COLUMNS, _MOST_VALUES, _MOST_BYTES, _ROWS_AT_ONCE = 5_000, 20_000_000, 1 << 30, 10_000
# So many zeros at the end of a column's numbers are no chance.
_CERTAIN_ZEROS = 4
# A number with more decimals than this is not rounded: a program printed it in full.
FULL_DECIMALS = 9
# So many numbers of a column show its digits.
_SEEN = 1_000
# So many lines show how long a program's numbers are, and so many bytes have them.
_LEAST_LINES, _TAIL_BYTES = 5, 1 << 16


def plain_name(name: str) -> str:
    """A column's name in lower case without brackets and spaces: `step_time_ms` of `Step Time (ms)`."""
    return re.sub(r"[^a-z0-9/]+", "_", name.lower()).strip("_")


def names_of(cells: pd.DataFrame) -> list[str]:
    return [str(name) for name in cells.columns]


def frame_of(path: Path) -> tuple[pd.DataFrame, list[Verdict]]:
    """A file's cells as they are written, by line and column, and the finding on lines that cannot be read.

    The names of columns can be `shown`; those inside objects are joined by slashes.
    """
    unread: list[int] = []
    if path.suffix.lower() == ".parquet":
        frame = _parquet(path)
    else:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            is_json = next((line for line in file if line.strip()), "").lstrip()[:1] in ("{", "[")
            file.seek(0)
            frame = framed(_objects(file, unread), path) if is_json else _delimited(file, path, unread)
    frame.columns = pd.Index([shown(name) for name in names_of(frame)])
    text = f"{path}: {count_of(len(unread), 'line')} cannot be read and skipped (line {join_first(unread)})"
    return frame, [Verdict("warning", "corrupt-line", text)] if unread else []


def framed(rows: Iterator[tuple[Any, Mapping[str, Any]]], path: Path) -> pd.DataFrame:
    """The frame of rows with their places; texts and numbers alone."""
    parts, columns, count = [], set[str](), 0
    while some := list(islice(rows, _ROWS_AT_ONCE)):
        cells = [{_seen(n): _seen(v) for n, v in row.items() if isinstance(v, int | float | str)} for _, row in some]
        columns, count = columns.union(*cells), count + len(some)
        _require_bounded(path, len(columns), count)
        parts.append(pd.DataFrame(cells, [place for place, _ in some]))
    frame = pd.concat(parts) if parts else pd.DataFrame()
    return frame if frame.index.is_unique else frame.set_axis(range(1, len(frame) + 1))


def _seen(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isprintable() else shown(value)
    return value if isinstance(value, float) or abs(value) < 2**63 else math.inf


def _require_bounded(path: Path, columns: int, rows: int) -> None:
    if columns > _MOST_COLUMNS or columns * rows > _MOST_VALUES:
        raise UserError(
            f"{path} has {columns:,} columns in {count_of(rows, 'row')}; at most {_MOST_COLUMNS:,} columns and "
            f"{_MOST_VALUES:,} values are read. Give those of one run"
        )


def _parquet(path: Path) -> pd.DataFrame:
    """A parquet file, which may be a thousandth of what it holds: its footer says how much that is."""
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            about = file.metadata
            groups = [about.row_group(at) for at in range(about.num_row_groups)]
            _require_bounded(path, about.num_columns, max(1, about.num_rows))
            values = sum(one.column(at).num_values for one in groups for at in range(one.num_columns))
            if values > _MOST_VALUES or sum(one.total_byte_size for one in groups) > _MOST_BYTES:
                raise UserError(f"{path} holds {values:,} values, or 1 GiB; give the columns of the comparison alone")
            frame: pd.DataFrame = file.read().to_pandas()
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(f"{path} is no parquet file ({' '.join(str(error).split())}); copy it again") from None
    return frame.reset_index(drop=True).rename(index=lambda row: row + 1)


def _header(file: TextIO) -> tuple[int, str, list[str]]:
    """The lines above a table's rows, its delimiter and the names of its columns; comments may be above these."""
    above, line = 1, file.readline()
    while line and (not line.strip() or line.startswith(("#", "sep="))):
        above, line = above + 1, file.readline()
    delimiter = max(_DELIMITERS, key=line.count)
    return above, delimiter, [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]


def _delimited(file: TextIO, path: Path, unread: list[int]) -> pd.DataFrame:
    """The rows of a CSV; a last one that may end within its number is `unread`."""
    try:
        above, delimiter, names = _header(file)
        _require_bounded(path, len(names), 1)
        if all(re.fullmatch(r"[-+.\deE]*\d|", name) for name in names):
            raise UserError(f"{path} does not name its columns in its first line; add a line such as step,step_time")
        if twice := next((name for name in names if name and names.count(name) > 1), ""):
            raise UserError(f"{path} has two columns {shown(twice)}; rename one")
        phases = {*map(str.lower, names)} >= PHASE_COLUMNS
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pd.errors.DtypeWarning)
            # Cells that have no name are not dropped without a word: one more is read, of more this warns.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                file, sep=delimiter, header=None, names=range(len(names) + 1), index_col=False, skipinitialspace=True,
                skip_blank_lines=False, dtype=str if phases else None, na_values=[""], keep_default_na=not phases,
            )  # fmt: skip
        frame.index += above + 1
        if (more := frame.index[frame[len(names)].notna()]).size:
            raise ValueError(f"line {more[0]} has more cells than names")
    except (csv.Error, ValueError, pd.errors.ParserWarning) as error:
        raise UserError(
            f"{path} is no table of the columns that it names ({' '.join(str(error).split())}): write numbers with a "
            "decimal point and without commas (27.5, 1234.5)"
        ) from None
    _require_bounded(path, len(names), len(frame))
    if _ends_within_a_number(file, delimiter):
        unread.append(frame.index[-1])
        frame = frame.iloc[:-1]
    kept = [at for at, name in enumerate(names) if name and len(name) <= LONGEST_NAME]
    return frame[kept].set_axis([names[at] for at in kept], axis=1).dropna(how="all")


def _ends_within_a_number(file: TextIO, delimiter: str) -> bool:
    """Whether a file's last line has no end, as also spreadsheets leave it, and its last cell is the shortest."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
    *lines, last = file.read().splitlines(keepends=True)
    lengths = [len(line.rpartition(delimiter)[2].strip()) for line in lines[1:]]
    is_ended = last.endswith(("\n", "\r"))
    return not is_ended and len(lengths) >= _LEAST_LINES and len(last.rpartition(delimiter)[2]) < min(lengths)


def _objects(file: TextIO, unread: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of JSON lines, or of a JSON document over several lines."""
    if not objects_in(file.readline()):
        file.seek(0)
        if found := objects_in(file.read()):
            yield from enumerate((flatten(row, separator="/") for row in found), start=1)
            return
    file.seek(0)
    for line, text in enumerate(file, start=1):
        found = objects_in(text)
        yield from ((line, flatten(row, separator="/")) for row in found)
        if not found and text.strip():
            unread.append(line)


def objects_in(text: str) -> list[Mapping[str, Any]]:
    """The objects of a text of JSON (one, a list, or one with a list for each column); none if it is not complete."""
    try:
        found = json.loads(text) if text.lstrip()[:1] in ("{", "[") else []
    except (ValueError, RecursionError):
        return []
    if not is_bounded(found):
        return []
    columns = [*found.values()] if isinstance(found, dict) else []
    if all(isinstance(one, list) for one in columns) and len({len(one) for one in columns}) == 1:
        return [dict(zip(found, row, strict=True)) for row in zip(*columns, strict=True)]
    return [row for row in (found if isinstance(found, list) else [found]) if isinstance(row, dict)]


def is_table(lines: Sequence[str]) -> bool:
    """Whether a file's first lines are objects of numbers, but for few, or name a step's counter above their cells."""
    rows = [flatten(row) for line in lines for row in objects_in(line)]
    if rows:
        # A program's message has its time and a number.
        numbers = [_counts(row) or sum(isinstance(cell, int | float) for cell in row.values()) > 2 for row in rows]
        return sum(numbers) >= _ENOUGH * max(len(rows), len(lines))
    try:
        _, delimiter, names = _header(StringIO("\n".join(lines)))
    except csv.Error:
        return False
    return len(names) > 1 and _counts(names) and all(delimiter in line for line in lines[1:])


def _counts(names: Iterable[str]) -> bool:
    """Whether a column counts the steps, or names their phases."""
    plain = {*map(plain_name, names)}
    return plain >= PHASE_COLUMNS or not plain.isdisjoint(COUNTERS)


def is_document(path: Path) -> bool:
    """Whether a file is a JSON document with several rows of numbers."""
    rows = objects_in(path.read_text(encoding="utf-8-sig", errors="replace"))
    return len(rows) > 1 and is_table([json.dumps(row) for row in rows[:HEAD_ROWS]])


def numbers_of(cells: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, tuple[Any, str]], set[str]]:
    """The columns with numbers, NaN for other cells; the place and the first text of each column that has one.

    The last are the columns of dates or durations: their numbers are seconds.
    """
    found, texts, times = {}, {}, set()
    for name in names_of(cells):
        column = cells[name]
        numbers = _plain_numbers(column)
        if numbers.isna().all():
            numbers = _seconds_of(column)
            times.add(name)
        rest = column[numbers.isna()]
        rest = rest[rest.map(lambda cell: isinstance(cell, str) and cell.strip() != "")]
        if len(rest):
            texts[name] = (rest.index[0], shown(rest.iloc[0]))
        if numbers.notna().any():
            found[name] = numbers
    return pd.DataFrame(found, cells.index), texts, times


def _plain_numbers(column: pd.Series) -> pd.Series:
    if pd.api.types.is_numeric_dtype(column):
        return column.astype(float)
    # A list in a cell is no number, and a date none of its own.
    plain = column.astype(object).where(column.map(lambda cell: isinstance(cell, int | float | str | Decimal)))
    return pd.to_numeric(plain, errors="coerce").astype(float)


def half_of_last_digit(column: pd.Series, zeros: int = 0) -> float:
    """Half a unit of the last digit that any number of a column has: a table does not keep the zeros of decimals.

    0 where no number has digits, or they are written in full. Up to so many zeros at the end of all whole numbers are
    no digits: whole seconds that are written in milliseconds.
    """
    numbers = column[np.isfinite(column) & (column != 0)]
    places = [int(Decimal(repr(x)).normalize().as_tuple().exponent) for x in numbers.unique()[:_SEEN].tolist()]
    last = min([*places, zeros])
    if not places or -last > FULL_DECIMALS:
        return 0.0
    return half_digit(-last if last * len(numbers) >= _CERTAIN_ZEROS else max(0, -last))


def _seconds_of(column: pd.Series) -> pd.Series:
    """The seconds of durations, or of dates since 1970."""
    if pd.api.types.is_timedelta64_dtype(column):
        return pd.Series([one.total_seconds() for one in column], column.index)
    if not pd.api.types.is_datetime64_any_dtype(column):
        column = pd.to_datetime(column, errors="coerce", format="ISO8601", utc=True)
    micros = pd.Series(column.to_numpy("datetime64[us]").astype("int64"), column.index)
    return (micros / 1e6).where(column.notna())


def of_one_run(cells: pd.DataFrame, names: Collection[str], path: Path) -> tuple[pd.DataFrame, dict[str, str]]:
    """The rows of the run that is known by one of these names, and the values that select it, by column.

    `UserError` where no name selects one of several runs.
    """
    labels = {name: cells[name].fillna("").map(str).map(shown) for name in names_of(cells) if name.lower() in _RUNS}
    rows = pd.Series(True, cells.index)
    for texts in labels.values():
        if len(chosen := {*texts[rows]} & {*names}) == 1:
            rows &= texts.isin(chosen)
    for name, texts in labels.items():
        found = list(dict.fromkeys(texts[rows]))
        if len(found) > 1:
            known = f", and this run is known as {', '.join(dict.fromkeys(names))}" if any(names) else ""
            raise UserError(
                f"{path} holds several runs: column {name} has {join_first(found, 6)}{known}. Name the arm as the "
                f"table does (compare {found[0]}={path}), or split the table: one file for each value of {name}"
            )
    selected = {name.lower(): texts[rows].iloc[0] for name, texts in labels.items() if rows.any()}
    return cells[rows].drop(columns=list(labels)), selected
