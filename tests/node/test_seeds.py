"""Engines of different runs, processes and attempts never draw the same random numbers."""

from node.seeds import engine_seed


def test_runs_attempts_and_processes_have_seeds_of_their_own():
    """Of a hundred runs with 64 engines each, resumed anywhere in nine thousand steps."""
    seeds = [
        engine_seed(run, step, process) for run in range(100) for step in range(0, 9000, 90) for process in range(64)
    ]
    assert len(set(seeds)) == len(seeds) == 640_000
    assert min(seeds) >= 0 and max(seeds) < 2**31, "numpy takes 32 bits, and an engine adds its process"


def test_the_neighbour_of_a_process_is_the_next_number():
    """As verl's and ms-swift's servers count their engines themselves."""
    assert [engine_seed(3, 20, process) - engine_seed(3, 20) for process in range(3)] == [0, 1, 2]


def test_the_largest_seed_of_a_run_is_a_seed():
    assert 0 <= engine_seed(2**32 - 1, 10**6, 1023) < 2**31
