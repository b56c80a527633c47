"""Merging the steps of several processes: means, sums and the slowest rank."""

import pytest

from node.over_ranks import RankStep, merge_ranks


def step(generate, rewards, **more):
    """A step in which whoever has generated waits for the other while rewards are gathered."""
    phases = {"step": generate + rewards + 1.0, "step/generate": generate, "step/rewards": rewards}
    return RankStep(phases, {"other_cpu_s": 0.5, "between_steps_s": 2.0, **more}, [3, 4], [int(generate)])


def test_one_process_is_not_changed():
    alone = step(4.0, 1.0)
    assert merge_ranks([alone]) is alone


def test_means_form_a_tree_and_the_slowest_rank_is_reported():
    ranks = [step(4.0, 5.0), step(8.0, 1.0)]
    whole = merge_ranks(ranks)
    assert whole.phases == {"step": 10.0, "step/generate": 6.0, "step/rewards": 3.0}
    assert whole.scalars["other_cpu_s"] == 1.0, "each has CPUs of its own"
    assert whole.scalars["between_steps_s"] == 2.0
    assert whole.scalars["slowest_rank_s/step/generate"] == 8.0
    assert whole.scalars["between_ranks_s/step/generate"] == 4.0
    assert whole.scalars["between_ranks_s/step"] == 0.0
    assert whole.scalars["slowest_rank"] == 1
    # Who waits longest for the others was the fastest.
    waits = [
        RankStep({**one.phases, "step/wait": wait}, one.scalars) for one, wait in zip(ranks, (4.5, 0), strict=True)
    ]
    assert merge_ranks(waits).scalars["slowest_rank"] == 1
    assert whole.responses == [4, 8] and whole.prompts == [3, 4, 3, 4]


def test_a_missing_phase_counts_as_zero():
    first, second = step(4.0, 1.0), step(4.0, 1.0)
    with_sync = RankStep({**first.phases, "step/sync": 2.0}, first.scalars)
    assert merge_ranks([with_sync, second]).phases["step/sync"] == pytest.approx(1.0)


def test_a_stop_of_one_process_stops_all():
    first = step(1.0, 1.0)
    assert merge_ranks([first, RankStep(first.phases, first.scalars, stop=True)]).stop
    assert not merge_ranks([first, first]).stop
