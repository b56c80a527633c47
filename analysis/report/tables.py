"""Defines the report's tables and cells (a number as shown and in full), and makes them from rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

from analysis.planned import factors_of, short_names
from analysis.quantiles import CONFIDENCE
from analysis.verdict.arm_verdict import ratio_text
from common.dotted import as_text

# Not at run time: the figures of a history use a name of this module.
if TYPE_CHECKING:
    import pandas as pd

DASH, MINUS = "—", "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Cell:
    """A number as shown and in full; `value` is "" where there is no number."""

    text: str
    value: str = ""


@dataclass(frozen=True)
class Column:
    """One column: the rows' key, its head (under that of its group), and how a value is shown."""

    name: str
    head: str
    show: Callable[[Any], Cell]
    group: str = ""
    is_text: bool = False

    @property
    def of_both(self) -> str:
        """What the baseline's column and the arm's have in common: an empty one beside the other says something."""
        return self.group if self.group and self.head in ("baseline", "arm") else f"{self.name} {self.head}"


@dataclass(frozen=True)
class TableRow:
    """One row of a table: `kind` is phase, residual, total or outside (the step)."""

    label: str
    cells: tuple[Cell, ...]
    depth: int = 0
    kind: str = "phase"


@dataclass(frozen=True)
class Table:
    """A table as the page and the Markdown show it; `corner` is the head of the row labels."""

    name: str
    caption: str
    corner: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    note: str = ""
    sorts: bool = True

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The heads above the columns, with the number of columns under each; empty where there are none."""
        found = [(name, len(list(same))) for name, same in groupby(self.columns, key=lambda column: column.group)]
        return found if any(name for name, _ in found) else []

    @cached_property
    def classes(self) -> list[str]:
        """The page's classes of each column's cells."""
        found, before = [], ""
        for one in self.columns:
            names = {"text": one.is_text, "first": one.group not in ("", before)}
            found.append(" ".join(name for name, holds in names.items() if holds))
            before = one.group
        return found


def shown_table(
    name: str,
    caption: str,
    corner: str,
    columns: Iterable[Column],
    records: Sequence[Mapping[str, Any]],
    note: str = "",
    sorts: bool = True,
) -> Table:
    """A table with a row for each record: its `label` (and `depth` and `kind`), a column for each swept factor of its
    `factors`, and the columns that are not empty in all of them. Of a baseline's and an arm's both are shown."""
    paths = list(dict.fromkeys(path for record in records for path in factors_of(record.get("factors", ""))))
    swept = [Column("factors", head, _factor(path), is_text=True) for path, head in short_names(paths).items()]
    every = [(column, [column.show(record.get(column.name)) for record in records]) for column in (*swept, *columns)]
    filled = {column.of_both for column, cells in every if any(cell.value or cell.text.strip(DASH) for cell in cells)}
    shown = [(column, cells) for column, cells in every if column.of_both in filled]
    rows = []
    for at, record in enumerate(records):
        look = {key: record[key] for key in ("depth", "kind") if key in record}
        rows.append(TableRow(str(record["label"]), tuple(cells[at] for _, cells in shown), **look))
    return Table(name, caption, corner, tuple(column for column, _ in shown), tuple(rows), note, sorts)


def _factor(path: str) -> Callable[[Any], Cell]:
    def show(key: Any) -> Cell:
        value = factors_of(key or "").get(path, "")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return Cell(str(value), in_full(value)) if is_number else Cell(as_text(value))

    return show


def records_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame."""
    rows: list[Any] = frame.to_dict("records")
    return rows


def decimals(step_s: float) -> int:
    """Decimals that show a step of that many seconds to three or four digits, and the parts that sum to it."""
    return 1 if step_s >= 100 else 2 if step_s >= 10 else 3 if step_s >= 0.1 else 5


def fixed(value: float, digits: int) -> str:
    """A number with that many decimals, with a real minus sign; a rounded zero has no sign."""
    text = f"{value:,.{digits}f}"
    return text.replace("-", MINUS) if float(text.replace(",", "")) else text.removeprefix("-")


def in_full(value: float) -> str:
    """Every digit of a number."""
    return repr(int(value)) if isinstance(value, int) else repr(float(value))


def _cell(value: float | None, text: Callable[[float], str]) -> Cell:
    """A number as `text` shows it; a dash where there is none."""
    return Cell(DASH) if value is None or not math.isfinite(value) else Cell(text(value), in_full(value))


def number(digits: int) -> Callable[[float | None], Cell]:
    """Shows numbers with a fixed count of decimals."""
    return lambda value: _cell(value, lambda known: fixed(known, digits))


def count(value: float | None) -> Cell:
    """A whole number."""
    return _cell(int(value) if value is not None and math.isfinite(value) else None, "{:,}".format)


def percent(value: float | None) -> Cell:
    """A share."""
    return _cell(value, lambda share: f"{fixed(100 * share, 1)} %")


def times(value: float | None) -> Cell:
    """A ratio."""
    return _cell(value, ratio_text)


def significant(value: float | None) -> Cell:
    """A number of unknown size, to three digits."""
    if value and math.isfinite(value) and 1e-3 <= abs(value) < 1e7:
        return number(max(0, 2 - math.floor(math.log10(abs(value)))))(value)
    return _cell(value, lambda known: f"{known:.3g}".replace("-", MINUS))


def text(value: Any) -> Cell:
    """A text; a value that is no text is blank."""
    return Cell(value if isinstance(value, str) else "")


def interval_columns(show: Callable[[Any], Cell], confidence: float = CONFIDENCE) -> tuple[Column, Column]:
    """The ends of an interval."""
    return Column("low", f"{confidence:.0%} from", show), Column("high", "to", show)
