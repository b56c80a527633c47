"""Places a replay's engines on a node's processes as trainers do: one after another, `tensor_parallel` processes each.

node/ranks.py starts a process for each GPU. Each engine is a world of its own: it sees its own GPUs alone and knows
nothing of the others, which it meets only here, between and at the end of steps.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from common.errors import UserError
from node.hardware import free_port

T = TypeVar("T")
_LOOK_S = 0.5
"""So often a waiting process looks up, to hear signals: torch waits deaf to them."""
_PATIENCE_S = 7200.0


@dataclass(frozen=True)
class ReplayRank:
    """A process among those of the replay: `rank` of `ranks`, of which `tensor_parallel` make one engine."""

    rank: int
    ranks: int
    tensor_parallel: int

    @classmethod
    def told(cls, environment: Mapping[str, str], tensor_parallel: int) -> ReplayRank:
        """By torchrun's variables; `UserError` where the processes are no whole engines."""
        rank, ranks = int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1"))
        if ranks % tensor_parallel:
            raise UserError(f"{ranks} processes are no whole engines of {tensor_parallel} (options.tensor_parallel)")
        return cls(rank, ranks, tensor_parallel)

    @property
    def replica(self) -> int:
        """The number of its engine."""
        return self.rank // self.tensor_parallel

    @property
    def replicas(self) -> int:
        """How many engines there are."""
        return self.ranks // self.tensor_parallel

    @property
    def shard(self) -> int:
        """Its number among its engine's processes."""
        return self.rank % self.tensor_parallel

    @property
    def leads(self) -> bool:
        """Whether it is the first of its engine's processes, which tells what the engine did."""
        return self.shard == 0

    def settings(self, whole: Mapping[str, Any]) -> dict[str, Any]:
        """A replay's settings as its engine has them: a seed of its own, and its share of the prompts."""
        return {**whole, "prompts": whole["prompts"] // self.replicas, "seed": whole["seed"] + self.replica}

    def shares(self, of: Sequence[T]) -> list[list[T]]:
        """The part of a step that each engine does: whole groups of completions, in their order."""
        each = len(of) // self.replicas
        return [list(of[number * each : (number + 1) * each]) for number in range(self.replicas)]

    def of_engines(self, told: Sequence[T]) -> list[T]:
        """What each engine's first process tells, of what all processes tell."""
        return list(told[:: self.tensor_parallel])


def own_world(place: ReplayRank, meeting: Meeting, environment: MutableMapping[str, str], *, gpus: bool) -> None:
    """Leave in the environment what the engine of this process may see: its own processes and, of `gpus`, its own.

    To be called before CUDA is.
    """
    if place.ranks == 1:
        return
    ports = meeting.all(free_port())
    first = place.rank - place.shard
    here = {"RANK": place.shard, "LOCAL_RANK": place.shard, "WORLD_SIZE": place.tensor_parallel}
    here |= {"LOCAL_WORLD_SIZE": place.tensor_parallel, "MASTER_PORT": ports[first]}
    environment.update({name: str(value) for name, value in here.items()} | {"MASTER_ADDR": "127.0.0.1"})
    if gpus:
        told = environment.get("CUDA_VISIBLE_DEVICES")
        seen = told.split(",") if told else [str(number) for number in range(place.ranks)]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(seen[first : first + place.tensor_parallel])


class Meeting:
    """Where all processes tell each other something, and wait for the last; alone there is nobody to wait for."""

    def __init__(self, place: ReplayRank, environment: Mapping[str, str]) -> None:
        self._place, self._turn, self._store = place, 0, None
        if place.ranks > 1:
            from torch.distributed import TCPStore

            host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
            self._store = TCPStore(host, port, place.ranks, place.rank == 0, timeout=timedelta(seconds=300))

    def all(self, mine: T) -> list[T]:
        """What each process tells, in the order of their ranks; it is written as JSON."""
        if self._store is None:
            return [mine]
        self._turn += 1
        keys = [f"{self._turn}/{rank}" for rank in range(self._place.ranks)]
        self._store.set(keys[self._place.rank], json.dumps(mine))
        self._await(keys)
        return [json.loads(self._store.get(key)) for key in keys]

    def _await(self, keys: list[str]) -> None:
        store: Any = self._store
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                store.wait(keys, timedelta(seconds=_LOOK_S))
                return
            except RuntimeError:  # torch's DistStoreError: not all are there yet, or nobody listens
                if time.monotonic() > until or not _listens(store):
                    raise


def _listens(store: Any) -> bool:
    try:
        store.num_keys()
    except RuntimeError:
        return False
    return True
