"""Merges what the processes of a training report about a step: seconds, counts and stop requests.

A phase's seconds are the mean over the processes: means of parts add up to the mean of their parent, so the tree stays
consistent. The slowest process and its distance to the fastest are reported as scalars.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TypeVar

from common.contracts import Sample

Item = TypeVar("Item")
SLOWEST, BETWEEN, WHO = "slowest_rank_s", "between_ranks_s", "slowest_rank"
WAIT = "wait"
"""The phase in which a process waits for the slowest engine; the fastest process waits longest."""
SHORTENED = "shortened_responses"
"""The scalar with the responses of a step that the engine's cache cut short."""
_SUMS = frozenset({"other_cpu_s", SHORTENED})
"""Scalars that are summed; the others are equal in all processes, except for clock differences, and are averaged."""


@dataclass(frozen=True)
class RankStep:
    """What one process reports about a step."""

    phases: Mapping[str, float]
    scalars: Mapping[str, float]
    prompts: list[int] = field(default_factory=list)
    """Tokens of each prompt."""
    responses: list[int] = field(default_factory=list)
    """Tokens of each completion."""
    stop: bool = False
    """Whether it was asked to stop."""
    samples: list[Sample] = field(default_factory=list)


def gather_ranks(mine: Item, processes: int) -> list[Item]:
    """The items of all processes, by rank; every process must call this."""
    if processes == 1:
        return [mine]
    from accelerate.utils import gather_object

    return list(gather_object([mine]))


def rank0_value(value: int, processes: int) -> int:
    """Rank 0's value in every process: the file system may show other nodes something else."""
    if processes == 1:
        return value
    from accelerate.utils import broadcast_object_list

    return int(broadcast_object_list([value])[0])


def merge_ranks(steps: Sequence[RankStep]) -> RankStep:
    """One step from the steps of all processes."""
    if len(steps) == 1:
        return steps[0]
    seconds = {path: [s.phases.get(path, 0.0) for s in steps] for path in _names(s.phases for s in steps)}
    values = {name: [s.scalars[name] for s in steps if name in s.scalars] for name in _names(s.scalars for s in steps)}
    scalars = {name: sum(found) if name in _SUMS else fmean(found) for name, found in values.items()}
    return RankStep(
        phases={path: fmean(found) for path, found in seconds.items()},
        scalars=scalars | _rank_spread(seconds),
        prompts=[length for s in steps for length in s.prompts],
        responses=[length for s in steps for length in s.responses],
        stop=any(s.stop for s in steps),
        samples=[sample for s in steps for sample in s.samples],
    )


def _rank_spread(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """For each phase the slowest process's seconds and its distance to the fastest; and the slowest rank.

    The slowest rank comes from the leaf phase with the largest distance: in other phases a process may only wait.
    """
    spread = {path: max(values) - min(values) for path, values in seconds.items()}
    scalars = {f"{SLOWEST}/{path}": max(values) for path, values in seconds.items()}
    scalars |= {f"{BETWEEN}/{path}": distance for path, distance in spread.items()}
    if leaves := leaf_phases(seconds):
        widest = seconds[max(leaves, key=spread.__getitem__)]
        scalars[WHO] = float(widest.index(max(widest)))
    return scalars


def leaf_phases(paths: Collection[str]) -> list[str]:
    """The phases without phases inside, except waits."""
    parents = {path.rpartition("/")[0] for path in paths}
    return [path for path in paths if path not in parents and path.rpartition("/")[2] != WAIT]


def _names(mappings: Iterable[Mapping[str, float]]) -> list[str]:
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))
