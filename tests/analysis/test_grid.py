"""The grid of a tidy table is pandas' pivot."""

import numpy as np
import pandas as pd
import pytest

from analysis.wide import grids
from common.errors import UserError


@pytest.mark.parametrize("category", [True, False])
def test_as_pandas_pivots(category):
    rng = np.random.default_rng(1)
    tidy = pd.DataFrame([(s, n, rng.random()) for s in (3, 1, 2) for n in "bac"], columns=["step", "name", "value"])
    tidy = tidy.drop(index=[4]).assign(name=lambda t: t["name"].astype("category") if category else t["name"])
    pivoted = tidy.pivot(index="step", columns="name", values="value")
    (found,) = grids(tidy, "value")
    pd.testing.assert_frame_equal(found, pivoted.set_axis(list(map(str, pivoted.columns)), axis=1))
    assert found.isna().sum().sum() == 1


def test_a_name_twice_in_a_step_is_refused():
    with pytest.raises(UserError, match="twice"):
        grids(pd.DataFrame({"step": [1, 1], "name": ["a", "a"]}))


def test_no_rows():
    columns = {"step": pd.Series(dtype="int32"), "name": pd.Series(dtype=str), "value": pd.Series(dtype=float)}
    assert grids(pd.DataFrame(columns), "value")[0].shape == (0, 0)
