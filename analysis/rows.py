"""A table's rows, one object each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd


def rows_of(frame: pd.DataFrame) -> Iterator[Any]:
    """The rows with their columns as attributes; what a column holds is its maker's promise, not the type's."""
    return iter(frame.itertuples())
