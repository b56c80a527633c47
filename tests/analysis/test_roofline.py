"""The decode floor: by hand for the article's step, and never above what any replica could do."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from analysis.roofline.decode import Roof, decode_floor_s, roof_of, work_from_lengths, work_from_scalars
from common.gpus import gpu_of
from common.model_facts import facts_of, model_facts

PHI = model_facts("microsoft/Phi-4-reasoning-plus")
H100 = gpu_of("NVIDIA H100 80GB HBM3")
assert PHI is not None and H100 is not None


def one(value):
    return np.array([value], dtype=np.float64)


def scalars(completions, mean, longest, prompt):
    return work_from_scalars(one(completions), one(mean), one(longest), one(prompt))


def lengths(values, prompt):
    return work_from_lengths(np.zeros(len(values), dtype=np.intp), np.array(values, dtype=np.float64), one(prompt))


def test_an_even_split_binds_where_many_short_responses_queue():
    """64 responses of 101 tokens, 8 at once: 6400 / 8 = 800 iterations on one replica, 200 on each of four."""
    assert PHI is not None and H100 is not None
    roof = roof_of(H100, PHI, 2, tensor_parallel=2, replicas=1, concurrency=8, group=1)
    work = lengths([101] * 64, prompt=0)
    # 64 responses, each of 100 * 101 / 2 positions.
    position_s = 64 * 5050 * roof.position_read_s
    assert decode_floor_s(roof, work)[0] == pytest.approx(800 * roof.weight_read_s + position_s)
    four = decode_floor_s(replace(roof, replicas=4), work)[0]
    assert four == pytest.approx(200 * roof.weight_read_s + position_s / 4)


def test_one_replica_decodes_the_longest_and_reads_the_keys_of_all():
    """1001 and 3 x 501 tokens, no cap: 1000 iterations; 1000 * 1001 / 2 + 3 * 500 * 501 / 2 positions."""
    work = lengths([1001, 501, 501, 501], prompt=0)
    assert decode_floor_s(Roof(8e-3, 2e-6, 1e-9, 1e-15, replicas=1, group=1), work)[0] == pytest.approx(8 + 1.7525)
    # Where arithmetic binds, the reads are hidden behind it.
    compute_s = 2500 * 1e-2 + 876_250 * 1e-6
    assert decode_floor_s(Roof(8e-3, 2e-6, 1e-2, 1e-6, replicas=1, group=1), work)[0] == pytest.approx(compute_s)


def test_more_gpus_than_key_heads_read_copies():
    assert PHI is not None and H100 is not None
    ten, twenty = (roof_of(H100, PHI, 2, tensor_parallel=t, replicas=1) for t in (10, 20))
    assert twenty.position_read_s == ten.position_read_s and twenty.weight_read_s == ten.weight_read_s / 2


def test_what_is_not_counted_has_no_roof():
    config = {
        "architectures": ["MixtralForCausalLM"],
        **{"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32},
        **{"intermediate_size": 14336, "vocab_size": 32000, "max_position_embeddings": 32768},
    }
    experts = facts_of(config, "here")
    assert experts is not None and H100 is not None
    with pytest.raises(ValueError, match="MixtralForCausalLM"):
        roof_of(H100, experts, 2, tensor_parallel=1, replicas=1)


@pytest.mark.parametrize(
    ("completions", "mean", "longest"),
    [(16, 200, 100), (16, 0.5, 100), (16, 50, math.nan), (16, 50, math.inf), (4, 10, 100), (16, 5, 0)],
)
def test_scalars_that_cannot_be_give_no_floor(completions, mean, longest):
    """A mean above the longest, less than a token, no longest, and four whose sum is less than their longest."""
    roof = Roof(1e-3, 1e-9, 1e-6, 1e-12, replicas=1)
    floor = decode_floor_s(roof, scalars(completions, mean, longest, 10))
    assert np.isnan(floor[0])


def test_the_least_work_that_scalars_allow_by_hand():
    """3 of 50 in the mean, 100 at most: 99 iterations, and 24 of each other one: (99² + 2 x 24² + 147) / 2 = 5550."""
    work = scalars(3, 50, 100, 10)
    assert (work.longest[0], work.total[0], work.own_positions[0]) == (99, 147, 5550)
    # One response is its own mean and its own longest.
    alone = scalars(1, 100, 100, 10)
    assert (alone.longest[0], alone.total[0], alone.own_positions[0]) == (99, 99, 99 * 100 / 2)


def test_a_mean_that_was_cut_to_three_digits_is_possible():
    """699 of one token and one of 100 are 1.14143 in the mean, which is printed as 1.141: 98.7 iterations for 99."""
    roof = Roof(1e-3, 1e-9, 1e-6, 1e-12, replicas=1)
    assert decode_floor_s(roof, scalars(700, 1.141, 100, 10))[0] >= 0.099
    assert np.isnan(decode_floor_s(roof, scalars(700, 1.139, 100, 10))[0])


def test_the_longest_alone_is_a_floor_where_no_number_of_responses_is_known():
    roof = Roof(1e-3, 1e-9, 1e-6, 1e-12, replicas=2)
    alone = decode_floor_s(roof, scalars(math.nan, 50, 100, 10))[0]
    assert 0 < alone <= decode_floor_s(roof, scalars(16, 50, 100, 10))[0]


ROOFS = st.builds(
    Roof,
    weight_read_s=st.floats(1e-5, 1e-2),
    position_read_s=st.floats(1e-10, 1e-6),
    token_compute_s=st.floats(1e-8, 1e-3),
    position_compute_s=st.floats(1e-13, 1e-8),
    replicas=st.integers(1, 4),
    concurrency=st.sampled_from([1, 2, 3, 8, math.inf]),
    group=st.just(1),
)
LENGTHS = st.lists(st.integers(1, 120), min_size=1, max_size=12)


# 7 x (232 / 7 - 1) is a little more than 225.
@example(Roof(2**-7, 1e-6, 5e-4, 4e-9, replicas=1, concurrency=1, group=1), [1, 1, 1, 1, 1, 107, 120], 8)
@given(ROOFS, LENGTHS, st.integers(0, 50))
@settings(max_examples=150)
def test_the_floor_from_scalars_is_at_most_the_one_from_lengths(roof, values, prompt):
    from_lengths = decode_floor_s(roof, lengths(values, prompt))[0]
    known = scalars(len(values), float(np.mean(values)), max(values), prompt)
    assert decode_floor_s(roof, known)[0] <= from_lengths * (1 + 1e-9)


def simulated_s(roof, replicas, prompts):
    """A step of replicas that decode their responses in order, `concurrency` at once, with no time lost anywhere."""
    slowest = 0.0
    for waiting in replicas:
        queue, running, seconds = list(waiting), [], 0.0
        while queue or running:
            while queue and len(running) < roof.concurrency:
                if (left := queue.pop(0) - 1) > 0:
                    running.append([left, prompts])
            if not running:
                continue
            for one in running:
                one[1] += 1  # the position of the token that is being read
            positions = sum(position for _, position in running)
            read_s = roof.weight_read_s + positions * roof.position_read_s
            compute_s = len(running) * roof.token_compute_s + positions * roof.position_compute_s
            seconds += max(read_s, compute_s)
            running = [[left - 1, position] for left, position in running if left > 1]
        slowest = max(slowest, seconds)
    return slowest


@given(ROOFS, LENGTHS, st.integers(0, 50), st.data())
@settings(max_examples=150)
def test_no_assignment_of_responses_to_replicas_beats_the_floor(roof, values, prompt, data):
    dealt = [[] for _ in range(roof.replicas)]
    for value in values:
        dealt[data.draw(st.integers(0, roof.replicas - 1))].append(value)
    assert decode_floor_s(roof, lengths(values, prompt))[0] <= simulated_s(roof, dealt, prompt) * (1 + 1e-9)
