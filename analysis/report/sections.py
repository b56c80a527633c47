"""Which parts of the report are one table and its figures?"""

from __future__ import annotations

from dataclasses import dataclass

from analysis.report.cells import Table
from analysis.report.content import Content


@dataclass(frozen=True)
class Section:
    """A heading, a table (perhaps without rows), and the names of the figures under it."""

    id: str
    title: str
    table: Table
    figures: tuple[str, ...] = ()


def sections(content: Content) -> list[Section]:
    """Those that have anything to show, in the page's order."""
    drawn = {figure.name for figure in content.figures}
    nothing = Table("", "", "", (), ())
    found = [
        Section("gate", "Do the arms train the same?", nothing, ("reward", "reward-distribution")),
    ]
    return [s for s in found if s.table.rows or drawn & set(s.figures)]
