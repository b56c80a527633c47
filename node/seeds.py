"""Chooses the seed of each engine, so that runs, processes and attempts never draw the same random numbers."""

from __future__ import annotations

_RUNS_APART = 1_327_217_885
"""2^31 divided by the golden ratio: seeds of consecutive runs are spread evenly over all numbers (of a hundred runs any
two are 10.7 million apart, of a thousand 0.97 million)."""
_STEPS_APART = 1024
"""The processes of a run have consecutive seeds: engines add the number of their process themselves."""
_NUMBERS = 2**31


def engine_seed(run: int, resumed_from: int, process: int = 0) -> int:
    """The seed of an engine's process, from the run's seed and the step that the attempt resumes from (0: none).

    All drivers use it, so with every engine a resumed run draws no random numbers again. An engine that shares the
    generators of the trainer's process goes on where the checkpoint's are.
    """
    return (run * _RUNS_APART + resumed_from * _STEPS_APART + process) % _NUMBERS
