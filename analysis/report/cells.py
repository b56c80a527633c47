"""Defines the report's tables and cells (a number as shown and in full), and shows a file's rows so."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from analysis.factors import factors_of, short_names
from analysis.verdict.arm_verdict import ratio_text
from common.dotted import as_text

# Not at run time: a history's page has figures and needs no pandas.
if TYPE_CHECKING:
    import pandas as pd

    from analysis.report.content import Content
    from analysis.runs import Run

DASH = "—"
MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Cell:
    """A number as shown and in full; `value` is "" where there is no number."""

    text: str
    value: str = ""


@dataclass(frozen=True)
class TableRow:
    """One row of a table: `kind` is phase, residual, total or outside (the step)."""

    label: str
    path: str
    cells: tuple[Cell, ...]
    description: str = ""
    depth: int = 0
    kind: str = "phase"


@dataclass(frozen=True)
class Table:
    """A table as the page and the Markdown show it.

    `heads` are those of the cells, without the row label's (`corner`); `groups` are the heads above them: a name and
    the number of its columns.
    """

    name: str
    caption: str
    corner: str
    heads: tuple[str, ...]
    rows: tuple[TableRow, ...]
    groups: tuple[tuple[str, int], ...] = ()
    text_columns: frozenset[int] = frozenset()
    sorts: bool = False
    """Whether a reader may sort and filter its rows."""
    note: str = ""
    factors: str = ""
    """The factor combination of its numbers, for people."""
    versus: str = ""
    """The arms that it compares."""

    def starts_group(self, column: int) -> bool:
        """Whether that column of cells is the first under its group's name."""
        return column in (sum(span for _, span in self.groups[:i]) for i in range(len(self.groups)))


def decimals(step_s: float) -> int:
    """Decimals that show a step of that many seconds, and the parts that sum to it, to about five digits."""
    return 2 if step_s >= 100 else 3 if step_s >= 10 else 4 if step_s >= 0.1 else 6


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


def number(value: float | None, digits: int) -> Cell:
    """A number with a fixed count of decimals."""
    return _cell(value, lambda known: fixed(known, digits))


def seconds(value: float, digits: int, rounding_s: float = math.nan) -> Cell:
    """Seconds; `rounding_s` is the error of the source's own rounding, shown to one digit at least."""
    cell = number(value, digits)
    if cell.value and rounding_s > 0:
        digits = max(digits, -math.floor(math.log10(rounding_s)))
        return replace(cell, text=f"{fixed(value, digits)} ± {fixed(rounding_s, digits)}")
    return cell


def step_seconds(value: float) -> Cell:
    """Seconds of a step or of a part of it."""
    return seconds(value, 2 if value >= 100 else 3)


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
    """A number of unknown size, to four digits."""
    if value and math.isfinite(value) and 1e-3 <= abs(value) < 1e7:
        return number(value, max(0, 3 - math.floor(math.log10(abs(value)))))
    return _cell(value, lambda known: f"{known:.4g}".replace("-", MINUS))


@dataclass(frozen=True)
class Column:
    """One column of a table: the file's column, its head, and how a value is shown."""

    name: str
    head: str
    show: Callable[[Any], Cell]
    is_text: bool = False


def text_column(name: str, head: str, labels: dict[str, str] | None = None) -> Column:
    """A column of texts, each shown by its label; a value that is no text is blank."""
    return Column(name, head, lambda text: Cell((labels or {}).get(text, text) if isinstance(text, str) else ""), True)


def interval_columns(show: Callable[[Any], Cell]) -> tuple[Column, Column]:
    """The ends of a 95% interval."""
    return Column("low", "95% from", show), Column("high", "to", show)


def frame_table(
    content: Content,
    name: str,
    columns: Sequence[Column],
    caption: str,
    corner: str = "arm",
    note: str = "",
    shown: pd.DataFrame | None = None,
) -> Table:
    """A table with a row for each row of tables/<name>.parquet; a column that is empty in all rows is left out.

    Under the corner `arms` a row's label names the baseline too. `shown` has these rows as they are shown.
    """
    frame, factors = content.tables[name] if shown is None else shown, factor_names(content.runs)
    read: list[Any] = list(frame.itertuples())
    cells = [[column.show(getattr(r, column.name)) for column in columns] for r in read]
    filled = [i for i in range(len(columns)) if any(row[i].value or row[i].text.strip("—") for row in cells)]
    rows = []
    for r, made in zip(read, cells, strict=True):
        label = f"{r.arm} vs {content.plan.baseline}" if corner == "arms" else str(r.arm)
        rows.append(TableRow(label, str(r.arm), (*_factor_cells(r.factors, factors), *(made[i] for i in filled))))
    texts = [len(factors) + place for place, i in enumerate(filled) if columns[i].is_text]
    return Table(
        name=name,
        caption=caption,
        corner=corner,
        heads=(*factors.values(), *(columns[i].head for i in filled)),
        rows=tuple(rows),
        text_columns=frozenset((*range(len(factors)), *texts)),
        sorts=True,
        note=note,
    )


def factor_names(runs: Sequence[Run]) -> dict[str, str]:
    """The swept options: dotted path -> the shortest name that is unique."""
    return short_names(list(dict.fromkeys(path for run in runs for path in run.factors)))


def _factor_cells(key: str, names: dict[str, str]) -> tuple[Cell, ...]:
    """A factor combination's values, one cell for each swept option, so that a table sorts by each."""
    values, cells = factors_of(key), []
    for value in (values.get(path, "") for path in names):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        cells.append(Cell(str(value), in_full(value)) if is_number else Cell(as_text(value)))
    return tuple(cells)
