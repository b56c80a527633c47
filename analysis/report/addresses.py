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

from analysis.factors import short_names
from analysis.report.cells import Cell
from common.dotted import as_text

# The columns that identify a row of each table; report.json has these tables.
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
    """A text as one part of an address; a hash makes it unique where characters are replaced or cut."""
    plain = _OTHER.sub("-", text).strip("-")[:_LONGEST]
    return plain if plain == text else f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def row_addresses(name: str, frame: pd.DataFrame) -> list[str]:
    """Each row's address, such as `estimates:vllm:raw`: from its key alone, so other rows do not change it."""
    seen: Counter[str] = Counter()
    addresses = []
    for row in frame[list(KEYS[name])].to_dict("records"):
        texts = [_factors(str(value)) if key == "factors" else str(value) for key, value in row.items()]
        address = ":".join([name, *(address_part(text) for text in texts if text)])
        seen[address] += 1
        addresses.append(address if seen[address] == 1 else f"{address}:{seen[address]}")
    return addresses


def rows_with_addresses(name: str, frame: pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows for report.json: `address`, and every column in full, None for a missing number."""
    rows = frame.astype(object).to_dict("records")
    return [
        {"address": address, **{str(column): _plain(value) for column, value in row.items()}}
        for address, row in zip(row_addresses(name, frame), rows, strict=True)
    ]


class Addresses:
    """The ids of the page's numbers: only the first cell that shows a number has its id."""

    def __init__(self, tables: Mapping[str, pd.DataFrame]) -> None:
        self._rows = {name: row_addresses(name, tables[name]) for name in KEYS}
        self._given: set[str] = set()

    def once(self, cell: Cell) -> str:
        """The cell's id; "" for a cell without a place, and where another cell has the number's id."""
        if cell.table not in KEYS:
            return ""
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
