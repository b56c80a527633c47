"""How is a table printed? In aligned columns of plain text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def table_lines(header: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = ()) -> list[str]:
    """A table's lines; the columns named in `right` hold numbers, and one without any content is left out."""
    columns = [column for column in zip(header, *rows, strict=True) if any(column[1:])]
    padded = []
    for column in columns:
        width = max(map(len, column))
        padded.append([cell.rjust(width) if column[0] in right else cell.ljust(width) for cell in column])
    return ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]
