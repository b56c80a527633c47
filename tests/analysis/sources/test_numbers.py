"""The numbers of many steps in little memory."""

import math

from hypothesis import strategies as st

from trainers.logs.record import packed

ROWS = st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=5)


def test_not_a_number_is_what_it_is():
    assert packed({"a": math.nan, "b": 1.0}) == packed({"a": math.nan, "b": 1.0})
    assert packed({"a": math.nan}) != packed({"a": 1.0}) and packed({"a": math.nan}) != packed({"b": math.nan})
