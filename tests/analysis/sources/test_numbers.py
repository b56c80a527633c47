"""The numbers of many steps in little memory, and documents of any length."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.logs import log_files
from trainers.logs.log_files import list_of
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


@pytest.mark.parametrize("chunk", [7, 50, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_is_read_element_by_element(tmp_path, monkeypatch, chunk, indent):
    monkeypatch.setattr(log_files, "CHUNK_CHARS", chunk)
    path = tmp_path / "state.json"
    elements = [{"a": [1, {"b": "]},["}], "c": 1e-6}, {}, 12345678901234567890, None, "ö" * 60, [[]]]
    for whole in (elements, [], elements[:1]):
        document = {"epoch": 1.0, "log_history": whole, "max_steps": 3, "also": [1, 2]}
        path.write_text(json.dumps(document, indent=indent, ensure_ascii=False), encoding="utf-8")
        assert list(list_of(path, "log_history")) == whole
    assert list_of(path, "no_such") is None and list_of(path, "max_steps") is None
    text = path.read_text(encoding="utf-8")
    path.write_text(text[: text.index("1e-06")], encoding="utf-8")
    with pytest.raises(ValueError):
        list(list_of(path, "log_history"))
