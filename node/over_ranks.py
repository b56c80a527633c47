"""Brings together what the processes of a training tell of a step: their seconds, counts and wishes.

A phase's seconds are the mean over the processes. Means of parts add up to the mean of the whole, so that the tree
stays one; what the slowest process takes longer than the fastest stands beside it, and which it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

One = TypeVar("One")
SLOWEST, BETWEEN, WHO = "slowest_rank_s", "between_ranks_s", "slowest_rank"
WAIT = "wait"
"""The phase in which a process waits for the slowest engine: who is longest in it was the fastest."""
_SUMS = frozenset({"other_cpu_s"})
"""Scalars that are each process's own share; the others are the same for all, but for their clocks."""


@dataclass(frozen=True)
class RankStep:
    """What one process tells of a step."""

    phases: Mapping[str, float]
    scalars: Mapping[str, float]
    prompts: list[int] = field(default_factory=list)
    """Tokens of each prompt."""
    responses: list[int] = field(default_factory=list)
    """Tokens of each completion."""
    stop: bool = False
    """Whether it was asked to stop."""


def gather_ranks(mine: One, processes: int) -> list[One]:
    """What every process tells, in the order of their ranks; each of them has to ask."""
    if processes == 1:
        return [mine]
    from accelerate.utils import gather_object

    return list(gather_object([mine]))


def rank0_value(value: int, processes: int) -> int:
    """Rank 0's value, for every process: a file system may show others something else."""
    if processes == 1:
        return value
    from accelerate.utils import broadcast_object_list

    return int(broadcast_object_list([value])[0])


def merge_ranks(told: Sequence[RankStep]) -> RankStep:
    """A step of all processes as one; of one process it is what that tells."""
    if len(told) == 1:
        return told[0]
    phases = {path: _mean(one.phases.get(path, 0.0) for one in told) for path in _names(one.phases for one in told)}
    scalars = {
        name: sum(values) if name in _SUMS else _mean(values)
        for name in _names(one.scalars for one in told)
        for values in [[one.scalars[name] for one in told if name in one.scalars]]
    }
    return RankStep(
        phases=phases,
        scalars=scalars | _between(told),
        prompts=[length for one in told for length in one.prompts],
        responses=[length for one in told for length in one.responses],
        stop=any(one.stop for one in told),
    )


def _between(told: Sequence[RankStep]) -> dict[str, float]:
    """The slowest process's seconds of each phase, how far it is from the fastest, and which lags most in a phase.

    Who waits for others is not slow: only phases without parts are asked, and it is the one where they lie furthest
    apart.
    """
    seconds = {path: [one.phases.get(path, 0.0) for one in told] for path in _names(one.phases for one in told)}
    spread = {path: max(values) - min(values) for path, values in seconds.items()}
    found = {f"{SLOWEST}/{path}": max(values) for path, values in seconds.items()}
    found |= {f"{BETWEEN}/{path}": apart for path, apart in spread.items()}
    if leaves := leaf_phases(seconds):
        widest = seconds[max(leaves, key=spread.__getitem__)]
        found[WHO] = float(widest.index(max(widest)))
    return found


def leaf_phases(paths: Collection[str]) -> list[str]:
    """The phases of work that have no others inside them."""
    wholes = {path.rpartition("/")[0] for path in paths}
    return [path for path in paths if path not in wholes and path.rpartition("/")[2] != WAIT]


def _names(of: Iterable[Mapping[str, float]]) -> list[str]:
    return list(dict.fromkeys(name for one in of for name in one))


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
