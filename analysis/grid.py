"""A run's tidy rows as a grid of steps and names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd


@dataclass(frozen=True)
class Grid:
    """Where each row of a tidy table stands: its step's and its name's place, both in order.

    pandas' `pivot` does the same for one column; a report reads thousands of runs and several columns of each.
    """

    steps: pd.Index
    names: tuple[str, ...]
    row: npt.NDArray[np.int64]
    column: npt.NDArray[np.int64]

    def values(self, tidy: pd.Series) -> pd.DataFrame:
        """A column of the tidy table by step and name; NaN where there is no row."""
        filled = np.full((len(self.steps), len(self.names)), np.nan)
        filled[self.row, self.column] = tidy.to_numpy(dtype=float, na_value=np.nan)
        return pd.DataFrame(filled, index=self.steps, columns=list(self.names))


def grid_of(tidy: pd.DataFrame) -> Grid:
    """The grid of a tidy table's `step` and `name`; `ValueError` where a name comes twice in a step."""
    steps, row = np.unique(tidy["step"].to_numpy(), return_inverse=True)
    names = tidy["name"].astype("category").cat
    codes, column = np.unique(names.codes.to_numpy(), return_inverse=True)
    places = row * max(1, len(codes)) + column
    if len(places) and np.bincount(places).max() > 1:
        raise ValueError("a name comes twice in a step")
    named = tuple(str(name) for name in names.categories[codes])
    return Grid(pd.Index(steps, name="step"), named, row, column)
