"""Lengths of a replay: drawn about a mean, read from a run, refused where they cannot be."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import UserError
from trainers.replay.lengths import draw_lengths, idle_share, step_lengths


@settings(max_examples=200)
@given(st.data())
def test_drawn_lengths_have_the_mean_and_both_ends(data):
    count = data.draw(st.integers(1, 64))
    shortest = data.draw(st.integers(1, 50))
    longest = data.draw(st.integers(shortest, 400))
    mean = data.draw(st.floats(shortest, longest))
    found = draw_lengths(mean, shortest, longest, count, "step 1")
    assert len(found) == count and shortest <= min(found) and max(found) <= longest
    # A single completion, or ends without room between, cannot have every mean.
    if count > 1 and longest > shortest:
        assert sum(found) == round(mean * count)
    assert found == draw_lengths(mean, shortest, longest, count, "step 1")


def steps_table(path, rows):
    columns = {name: [row[at] for row in rows] for at, name in enumerate(("step", "kind", "name", "value"))}
    pq.write_table(pa.table(columns), path)
    return path.name


def test_single_lengths_of_a_run_are_taken_as_they_are(tmp_path):
    rows = [(step, "sample", "response_length", float(value)) for step in (1, 2) for value in (3, 9, 4, step)]
    means = [(1, "scalar", "response_length/mean", 10.5), (1, "scalar", "response_length/max", 31.0)]
    for name, content in (("whole", rows), ("means", means), ("none", [(1, "sample", "response_length", 0.0)])):
        steps_table(tmp_path / f"{name}.parquet", content)
    (tmp_path / "foreign.parquet").write_text("step 1\n")
    assert step_lengths({"source": "whole.parquet"}, tmp_path, 2, 4, 16) == [[3, 9, 4, 1], [3, 9, 4, 2]]
    for (name, steps, count, longest), said in {
        ("whole", 3, 4, 16): "has the lengths of 2 steps, and workload.steps is 3",
        ("whole", 2, 8, 16): "step 1 has 4 completions, and workload.batch_size is 8",
        ("whole", 2, 4, 8): "a completion of 9 tokens; a replay makes 1 to workload.max_response_length = 8",
        ("none", 1, 1, 8): "a completion of 0 tokens",
        ("means", 1, 16, 64): "has no step with the length of each completion; give its mean",
        ("foreign", 1, 1, 8): "is no run's steps",
    }.items():
        with pytest.raises(UserError, match=said):
            step_lengths({"source": f"{name}.parquet"}, tmp_path, steps, count, longest)


def test_places_stand_empty_while_the_longest_is_written():
    assert idle_share([4, 4, 4, 4], 4) == 0
    assert idle_share([2, 4, 4, 6], 4) == pytest.approx(1 - 16 / 24)
    # Two places: 6 and 2, then 4 where the 2 was, then 4 where either is free after 6.
    assert idle_share([6, 2, 4, 4], 2) == pytest.approx(1 - 16 / 20)
