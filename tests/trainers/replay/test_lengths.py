"""Lengths of a replay: drawn about a mean, read from a run, refused where they cannot be."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import UserError
from trainers.replay.lengths import check_lengths, draw_lengths, idle_share, step_lengths


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
    source = {"source": steps_table(tmp_path / "steps.parquet", rows)}
    assert step_lengths(source, tmp_path, 2, 4, 16) == [[3, 9, 4, 1], [3, 9, 4, 2]]
    for (steps, count, longest), said in {
        (3, 4, 16): "has the lengths of 2 steps, and workload.steps is 3",
        (2, 8, 16): "step 1 has 4 completions, and workload.batch_size is 8",
        (2, 4, 8): "a completion of 9 tokens; a replay makes 1 to workload.max_response_length = 8",
    }.items():
        with pytest.raises(UserError, match=said):
            step_lengths(source, tmp_path, steps, count, longest)


def test_a_run_without_single_lengths_is_told_to_give_numbers(tmp_path):
    rows = [(1, "scalar", "response_length/mean", 10.5), (1, "scalar", "response_length/max", 31.0)]
    with pytest.raises(UserError, match="has no step with the length of each completion; give its mean"):
        step_lengths({"source": steps_table(tmp_path / "steps.parquet", rows)}, tmp_path, 1, 16, 64)


def test_zero_lengths_and_foreign_files_are_refused(tmp_path):
    source = {"source": steps_table(tmp_path / "steps.parquet", [(1, "sample", "response_length", 0.0)])}
    with pytest.raises(UserError, match="a completion of 0 tokens"):
        step_lengths(source, tmp_path, 1, 1, 8)
    (tmp_path / "no.parquet").write_text("step 1\n")
    with pytest.raises(UserError, match="is no run's steps"):
        step_lengths({"source": "no.parquet"}, tmp_path, 1, 1, 8)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "must give the lengths of the completions"),
        ({"shortest": 3}, "mean must be a number of tokens"),
        ({"mean": 300}, "1 <= shortest <= mean <= longest <= workload.max_response_length"),
    ],
)
def test_what_cannot_be_asked_for(asked, said):
    with pytest.raises(UserError, match=said):
        check_lengths(asked, 64)
    assert check_lengths({"mean": 5}, 64) == {"mean": 5.0, "shortest": 1, "longest": 64}


def test_places_stand_empty_while_the_longest_is_written():
    assert idle_share([4, 4, 4, 4], 4) == 0
    assert idle_share([2, 4, 4, 6], 4) == pytest.approx(1 - 16 / 24)
    # Two places: 6 and 2, then 4 where the 2 was, then 4 where either is free after 6.
    assert idle_share([6, 2, 4, 4], 2) == pytest.approx(1 - 16 / 20)
