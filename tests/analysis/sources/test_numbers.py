"""The numbers of many steps in little memory."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.logs.record import packed

ROWS = st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False), max_size=5)


@pytest.mark.full("many damaged files")
@given(ROWS, ROWS)
def test_packed_numbers_are_the_same_mapping(one, other):
    numbers = packed(one)
    assert numbers == one and dict(numbers) == one and list(numbers) == list(one) and len(numbers) == len(one)
    assert list(numbers.items()) == list(one.items()) and list(numbers.values()) == list(one.values())
    assert {**numbers} == one and repr(numbers) == repr(one) and packed(numbers) is numbers
    assert (numbers == packed(other)) == (one == other) and all(name in numbers for name in one)
    assert [numbers.get(name) for name in other] == [one.get(name) for name in other]
    numbers.as_dict()["more"] = 1.0
    assert numbers == one


def test_not_a_number_is_what_it_is():
    assert packed({"a": math.nan, "b": 1.0}) == packed({"a": math.nan, "b": 1.0})
    assert packed({"a": math.nan}) != packed({"a": 1.0}) and packed({"a": math.nan}) != packed({"b": math.nan})
