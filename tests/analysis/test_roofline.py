"""The decode floor: by hand, and never above what any replica could do."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.roofline.floors import ROOF, decode_floor_s, work_from_lengths


def roof(weight_read_s, position_read_s, replicas=1, concurrency=math.inf, group=math.inf):
    return pd.DataFrame([[weight_read_s, position_read_s, replicas, concurrency, group]], columns=ROOF)


def floor_s(of, lengths, prompt=0):
    work = work_from_lengths(np.zeros(len(lengths), dtype=np.intp), np.array(lengths, dtype=np.float64), 1)
    return float(decode_floor_s(of, work, np.array([prompt], dtype=np.float64))[0])


@pytest.mark.parametrize(("replicas", "expected"), [(1, 800 * 8e-3 + 64 * 5050 * 2e-6), (4, 1.6 + 16 * 5050 * 2e-6)])
def test_an_even_split_binds_where_many_short_responses_queue(replicas, expected):
    """64 responses of 101 tokens, 8 at once: 6400 / 8 = 800 iterations on one replica, 200 on each of four."""
    assert floor_s(roof(8e-3, 2e-6, replicas, 8), [101] * 64) == pytest.approx(expected)


def test_one_replica_decodes_the_longest_and_reads_the_keys_of_all():
    """1001 and 3 x 501 tokens, no cap: 1000 iterations; 1000 * 1001 / 2 + 3 * 500 * 501 / 2 positions."""
    lengths = [1001, 501, 501, 501]
    assert floor_s(roof(8e-3, 2e-6), lengths) == pytest.approx(8 + 1.7525)
    # Every token reads its prompt of 100, which the two of a group may share.
    expected = 8 + 1.7525 + 100 * 2500 / 2 * 2e-6
    assert floor_s(roof(8e-3, 2e-6, group=2), lengths, 100) == pytest.approx(expected)


@pytest.mark.parametrize("wrong", [0, -1, math.nan, math.inf])
def test_a_length_that_cannot_be_gives_no_floor(wrong):
    with np.errstate(invalid="ignore"):
        assert math.isnan(floor_s(roof(8e-3, 2e-6), [100, wrong]))


def simulated_s(weight_read_s, position_read_s, concurrency, replicas, prompts):
    """A step of replicas that decode their responses in order, `concurrency` at once, with no time lost anywhere."""
    slowest = 0.0
    for waiting in replicas:
        queue, running, seconds = list(waiting), [], 0.0
        while queue or running:
            while queue and len(running) < concurrency:
                if (left := queue.pop(0) - 1) > 0:
                    running.append([left, prompts])
            if not running:
                continue
            for one in running:
                one[1] += 1  # the position of the token that is being read
            seconds += weight_read_s + sum(position for _, position in running) * position_read_s
            running = [[left - 1, position] for left, position in running if left > 1]
        slowest = max(slowest, seconds)
    return slowest


@given(
    st.floats(1e-5, 1e-2),
    st.floats(1e-10, 1e-6),
    st.integers(1, 4),
    st.sampled_from([1, 2, 3, 8, math.inf]),
    st.lists(st.integers(1, 120), min_size=1, max_size=12),
    st.integers(0, 50),
    st.data(),
)
@settings(max_examples=150)
def test_no_assignment_of_responses_to_replicas_beats_the_floor(
    read_s, position_s, replicas, at_once, values, prompt, data
):
    dealt = [[] for _ in range(replicas)]
    for value in values:
        dealt[data.draw(st.integers(0, replicas - 1))].append(value)
    floor = floor_s(roof(read_s, position_s, replicas, at_once, group=1), values, prompt)
    assert floor <= simulated_s(read_s, position_s, at_once, dealt, prompt) * (1 + 1e-9)
