"""Divides a node's processes among a replay's engines as trainers do: `tensor_parallel` processes each, in order.

node/ranks.py starts one process per GPU. Each engine is a world of its own and sees only its own GPUs. The processes
of all engines exchange data only through a `Meeting`, between steps and at their end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from node.hardware import free_port

T = TypeVar("T")
_POLL_S = 0.5
"""Waiting processes poll at this interval, to handle signals: torch's wait blocks them."""
_TIMEOUT_S = 7200.0


@dataclass(frozen=True)
class ReplayRank:
    """A process of the replay: `rank` of `ranks`, of which `tensor_parallel` form one engine."""

    rank: int
    ranks: int
    tensor_parallel: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], tensor_parallel: int) -> ReplayRank:
        """By torchrun's variables."""
        return cls(int(environment.get("RANK", "0")), int(environment.get("WORLD_SIZE", "1")), tensor_parallel)

    @property
    def replica(self) -> int:
        """The index of its engine."""
        return self.rank // self.tensor_parallel

    @property
    def replicas(self) -> int:
        """The number of engines."""
        return self.ranks // self.tensor_parallel

    @property
    def shard(self) -> int:
        """Its index within its engine. Process 0 reports for the engine."""
        return self.rank % self.tensor_parallel

    def settings(self, all_engines: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of its engine: its own seed and its share of the prompts."""
        prompts, seed = all_engines["prompts"] // self.replicas, all_engines["seed"] + self.replica
        return {**all_engines, "prompts": prompts, "seed": seed}

    def shares(self, of: Sequence[T]) -> list[list[T]]:
        """Each engine's part of a step: whole groups of completions in order."""
        each = len(of) // self.replicas
        return [list(of[number * each : (number + 1) * each]) for number in range(self.replicas)]

    def of_engines(self, by_rank: Sequence[T]) -> list[T]:
        """The values of each engine's first process."""
        return list(by_rank[:: self.tensor_parallel])


def isolate_engine(place: ReplayRank, meeting: Meeting, environment: MutableMapping[str, str], *, gpus: bool) -> None:
    """Restrict the environment to the engine of this process: its processes and, with `gpus`, its GPUs.

    Call it before CUDA is initialised.
    """
    if place.ranks == 1:
        return
    ports = meeting.gather(free_port())
    first = place.rank - place.shard
    here = {"RANK": place.shard, "LOCAL_RANK": place.shard, "WORLD_SIZE": place.tensor_parallel}
    here |= {"LOCAL_WORLD_SIZE": place.tensor_parallel, "MASTER_PORT": ports[first]}
    environment.update({name: str(value) for name, value in here.items()} | {"MASTER_ADDR": "127.0.0.1"})
    if gpus:
        given = environment.get("CUDA_VISIBLE_DEVICES")
        visible = given.split(",") if given else [str(number) for number in range(place.ranks)]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(visible[first : first + place.tensor_parallel])


class Meeting:
    """Gathers values from all processes and waits for the last of them; a single process does not wait."""

    def __init__(self, place: ReplayRank, environment: Mapping[str, str]) -> None:
        self._place, self._turn, self._store = place, 0, None
        if place.ranks > 1:
            from torch.distributed import TCPStore

            host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
            self._store = TCPStore(host, port, place.ranks, place.rank == 0, timeout=timedelta(seconds=300))

    def gather(self, mine: T) -> list[T]:
        """Each process's value by rank; values travel as JSON."""
        if self._store is None:
            return [mine]
        self._turn += 1
        keys = [f"{self._turn}/{rank}" for rank in range(self._place.ranks)]
        self._store.set(keys[self._place.rank], json.dumps(mine))
        self._await(keys)
        return [json.loads(self._store.get(key)) for key in keys]

    def leave(self) -> None:
        """Ends the meeting. Process 0 keeps the values: it waits until the others have read theirs."""
        if self._store is not None:
            keys = [f"left/{rank}" for rank in range(self._place.ranks)]
            self._store.set(keys[self._place.rank], "")
            if self._place.rank == 0:
                self._await(keys)

    def _await(self, keys: list[str]) -> None:
        store: Any = self._store
        until = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                store.wait(keys, timedelta(seconds=_POLL_S))
                return
            except RuntimeError:  # torch's DistStoreError: a key is missing, or the store is gone
                if time.monotonic() > until:
                    raise
                store.num_keys()  # raises if the store is gone
