"""Gives each number of the report a stable address: its table, its row's key and its column."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.report.cells import Cell
from analysis.runs import short_names
from common.dotted import as_text

# The columns that tell a row from the others of its table; report.json has these tables.
KEYS: Mapping[str, tuple[str, ...]] = {
    "estimates": ("factors", "arm", "estimate"),
    "comparison": ("factors", "arm"),
    "phases": ("factors", "arm", "path"),
    "sums": ("factors", "arm"),
    "phase_speedups": ("factors", "arm", "path"),
    "waterfall": ("factors", "arm", "part"),
    "stragglers": ("factors", "arm"),
    "gate": ("factors", "arm", "quantity"),
    "rewards": ("factors", "arm", "reward"),
    "noise": ("factors", "source"),
    "cost": ("factors", "arm"),
    "suggestions": ("factors", "arm", "quantity", "source"),
    "runs": ("run_id",),
}
_OTHER = re.compile(r"[^\w.=,/+-]+")
_LONGEST = 60


def address_part(text: str) -> str:
    """A text as one part of an address; where characters are replaced or cut, a hash tells it from others."""
    plain = _OTHER.sub("-", text).strip("-")[:_LONGEST]
    return plain if plain == text else f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def row_addresses(name: str, frame: pd.DataFrame) -> list[str]:
    """Each row's address, `estimates:vllm:raw`: from its key alone, so that it stays when other rows come or go."""
    seen: Counter[str] = Counter()
    found = []
    for row in frame[list(KEYS[name])].to_dict("records"):
        texts = [_factors(str(value)) if key == "factors" else str(value) for key, value in row.items()]
        address = ":".join([name, *(address_part(text) for text in texts if text)])
        seen[address] += 1
        found.append(address if seen[address] == 1 else f"{address}:{seen[address]}")
    return found


def rows_with_addresses(name: str, frame: pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows for report.json: every column in full, None for a number that is not there, and `address`."""
    columns = {str(column): [_plain(value) for value in frame[column].tolist()] for column in frame.columns}
    return [
        {"address": address, **{column: values[i] for column, values in columns.items()}}
        for i, address in enumerate(row_addresses(name, frame))
    ]


class Addresses:
    """The ids of the page's numbers: an id goes to the first cell that shows its number, and to no other."""

    def __init__(self, tables: Mapping[str, pd.DataFrame]) -> None:
        self._tables = tables
        self._rows: dict[str, list[str]] = {}
        self._given: set[str] = set()

    def once(self, cell: Cell) -> str:
        """The cell's id; "" for a cell without a place, and where the number has its id already."""
        if cell.table not in KEYS:
            return ""
        if cell.table not in self._rows:
            self._rows[cell.table] = row_addresses(cell.table, self._tables[cell.table])
        address = f"{self._rows[cell.table][cell.row]}:{cell.column}"
        if address in self._given:
            return ""
        self._given.add(address)
        return address


def _factors(key: str) -> str:
    """A factor combination's key as `temperature=0.7,num_generations=4`."""
    factors: dict[str, Any] = json.loads(key) if key else {}
    names = short_names(list(factors))
    return ",".join(f"{names[path]}={as_text(value)}" for path, value in factors.items())


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    return None if value is pd.NA or (isinstance(value, float) and not math.isfinite(value)) else value
