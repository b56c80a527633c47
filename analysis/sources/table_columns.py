"""Collects the numbers of a table's rows, by column."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.sources.parquet_rows import MOST_COLUMNS, MOST_VALUES
from analysis.sources.table_texts import is_counter, is_summary, value_of
from common.errors import UserError
from common.messages import join_first
from common.shown import shown
from common.verdicts import Verdict, count_of
from trainers.logs.record import STEPS_LOGGED

# Columns that may distinguish several runs in one table, the most specific first.
SELECTING = ("run", "arm", "engine")
_KINDS = {"split", "phase", "mode", "type", "event", "stage", "kind"}
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


def require_bounded(path: Path, columns: int, rows: int = 1) -> None:
    """`UserError` for more columns or values than any table has."""
    if columns > MOST_COLUMNS or columns * rows > MOST_VALUES:
        raise UserError(
            f"{path} has {columns:,} columns in {count_of(rows, 'row')}; at most {MOST_COLUMNS:,} columns and "
            f"{MOST_VALUES:,} values are read. Give those of one run"
        )


def _up_to(rows: int, column: list[Any], missing: object) -> list[Any]:
    """A column with what stands for no value in the rows that lack one."""
    column.extend([missing] * (rows - len(column)))
    return column


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
                _up_to(len(found.places), found.values.setdefault(name, []), math.nan).append(value)
            elif name and name.lower() in _KINDS.union(SELECTING) and isinstance(raw, str):
                _up_to(len(found.places), found.kinds.setdefault(name, []), "").append(shown(raw))
            elif name and raw and isinstance(raw, str):
                found.unread.setdefault(name, shown(raw))
        found.places.append((file, line))
        require_bounded(path, len(found.values), len(found.places))
    for values in found.values.values():
        _up_to(len(found.places), values, math.nan)
    for texts in found.kinds.values():
        _up_to(len(found.places), texts, "")
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
