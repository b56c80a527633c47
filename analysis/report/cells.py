"""Defines the report's tables and their cells: a number as it is shown, in full, and its place in the files."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from analysis.verdict.arm_verdict import ratio_text

DASH = "—"
MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Cell:
    """A number as shown and in full, and its place: row `row` (from 0) of tables/<table>.parquet, in `column`.

    `value` is "" where there is no number, `table` is "" for a text.
    """

    text: str
    value: str = ""
    table: str = ""
    row: int = -1
    column: str = ""

    def at(self, table: str, row: int, column: str) -> Cell:
        """The same, with its place; a cell without a number has none."""
        return replace(self, table=table, row=row, column=column) if self.value else self


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

    `heads` are those of the cells, without the row label's (`corner`); `groups` stand above them: a name and how
    many columns it spans. `words` are the columns of cells that hold words, not numbers.
    """

    name: str
    caption: str
    corner: str
    heads: tuple[str, ...]
    rows: tuple[TableRow, ...]
    groups: tuple[tuple[str, int], ...] = ()
    words: frozenset[int] = frozenset()
    sorts: bool = False
    """Whether its rows may stand in any order, so that a reader may sort and filter them."""
    note: str = ""
    factors: str = ""
    """The factor combination that it is of, for people."""
    versus: str = ""
    """Which arms it compares."""

    def starts_group(self, column: int) -> bool:
        """Whether that column of cells is the first under its group's name."""
        starts = [sum(span for _, span in self.groups[:i]) for i in range(len(self.groups))]
        return column in starts

    @property
    def cells(self) -> Iterator[Cell]:
        return (cell for row in self.rows for cell in row.cells)


def decimals(step_s: float) -> int:
    """Decimals that show a step of that many seconds to about five digits."""
    return 2 if step_s >= 100 else 3 if step_s >= 10 else 4


def fixed(value: float, digits: int) -> str:
    """A number with that many decimals, with a real minus sign, and none before a zero that rounding made."""
    text = f"{value:,.{digits}f}"
    return text.replace("-", MINUS) if float(text.replace(",", "")) else text.removeprefix("-")


def in_full(value: float) -> str:
    """Every digit of a number."""
    return repr(int(value)) if isinstance(value, int) else repr(float(value))


def number(value: float | None, digits: int) -> Cell:
    """A number with a fixed count of decimals; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return Cell(DASH)
    return Cell(fixed(value, digits), in_full(value))


def seconds(value: float, digits: int, rounding_s: float = math.nan) -> Cell:
    """Seconds; `rounding_s` is how far the source's own printed digits leave them open, shown to one digit at least."""
    cell = number(value, digits)
    if cell.value and rounding_s > 0:
        digits = max(digits, -math.floor(math.log10(rounding_s)))
        return replace(cell, text=f"{fixed(value, digits)} ± {fixed(rounding_s, digits)}")
    return cell


def count(value: float | None) -> Cell:
    """A whole number."""
    return Cell(DASH) if value is None or math.isnan(value) else Cell(f"{int(value):,}", repr(int(value)))


def percent(value: float | None) -> Cell:
    """A share."""
    return Cell(DASH) if value is None or math.isnan(value) else Cell(f"{fixed(100 * value, 1)} %", in_full(value))


def times(value: float | None) -> Cell:
    """A ratio."""
    return Cell(DASH) if value is None or math.isnan(value) else Cell(ratio_text(value), in_full(value))


def significant(value: float | None) -> Cell:
    """A number of unknown size, to four digits."""
    if value is None or not math.isfinite(value):
        return Cell(DASH)
    if value and 1e-3 <= abs(value) < 1e7:
        return number(value, max(0, 3 - math.floor(math.log10(abs(value)))))
    return Cell(f"{value:.4g}".replace("-", MINUS), in_full(value))
