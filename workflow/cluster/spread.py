"""Starts a job's trainer on its nodes as it spreads: with a Ray of its own, or a process for each GPU and a server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trainers import SERVERS, Spread
from workflow.cluster.paths import AttemptPaths
from workflow.cluster.ray import RayHead, RaySetup, RayWorker
from workflow.cluster.rendezvous import TaskSetup
from workflow.cluster.server import ServerHead, ServerSetup, ServerWorker
from workflow.cluster.torchrun import RanksHead, RanksWorker
from workflow.cluster.training import server_environment, server_gpus_beside, trainer_command

Head = RayHead | RanksHead
"""What a trainer that spreads is started with and watched by on the job's first node."""
Worker = RayWorker | RanksWorker | ServerWorker
"""The part of any other node."""


@contextmanager
def started(order: Mapping[str, Any], setup: Mapping[str, Any], attempt: AttemptPaths) -> Iterator[Head]:
    """All nodes of the job, as rank 0 begins to train an attempt; `setup` is what a `TaskSetup` is made of.

    A `RendezvousError` when they do not come together, a `NoServerError` where a server does not answer.
    """
    if Spread.from_spec(order) is Spread.RAY:
        with RayHead(RaySetup(**setup)) as ray:
            ray.start()
            ray.wait_for_nodes()
            yield ray
        return
    task, each = TaskSetup(**setup), processes_here(order)
    beside_server = Spread.from_spec(order) is Spread.SERVER
    with ServerHead(task, each, *_servers(order, task)) if beside_server else RanksHead(task, each) as head:
        head.start(attempt.folder)
        head.wait_for_nodes()
        yield head


def worker(order: dict[str, Any], setup: Mapping[str, Any]) -> Worker:
    """The part of a node that is not the first."""
    spread = Spread.from_spec(order)
    if spread is Spread.RAY:
        return RayWorker(RaySetup(**setup))
    task = TaskSetup(**setup)
    nodes = task.place.nodes - (spread is Spread.SERVER)
    if task.place.rank == nodes:
        return ServerWorker(task, *_servers(order, task))
    return RanksWorker(
        task, processes_here(order), lambda attempt: trainer_command(order, AttemptPaths(attempt)), nodes
    )


def starter(order: Mapping[str, Any]) -> Spread:
    """What starts the trainer itself on a node: beside a server what starts it without one."""
    spread = Spread.from_spec(order)
    return Spread.TORCHRUN if spread is Spread.SERVER else spread


def processes_here(order: Mapping[str, Any]) -> int:
    """The trainer's processes on each node, where it has several: one for each GPU of its, on a CPU one."""
    gpus = int(order["spec"]["workload"].get("gpus_per_node", 0))
    return max(1, gpus - server_gpus_beside(order))


def _servers(order: Mapping[str, Any], task: TaskSetup) -> list[ServerSetup]:
    return [
        ServerSetup(
            order["spec"][name],
            server_environment(order, os.environ, name),
            task.folder / f"{name}-{task.place.nodes - 1}.log",
            name,
        )
        for name in SERVERS
        if name in order["spec"]
    ]
