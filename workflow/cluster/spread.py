"""Starts a job's trainer on its nodes: with its own Ray cluster, or as a process per GPU with optional servers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from trainers import SERVERS, Spread
from workflow.cluster.paths import AttemptPaths
from workflow.cluster.ray import RayHead, RayWorker
from workflow.cluster.rendezvous import TaskSetup, WorkerTask
from workflow.cluster.server import ServerHead, ServerSetup, ServerWorker
from workflow.cluster.torchrun import RanksHead, RanksWorker
from workflow.cluster.training import server_environment, server_gpus_beside, trainer_command

Head = RayHead | RanksHead  # starts and watches a trainer that spreads, on the job's first node


@contextmanager
def started_nodes(order: Mapping[str, Any], setup: TaskSetup, attempt: AttemptPaths) -> Iterator[Head]:
    """Rank 0's part in an attempt, once all nodes of the job take part.

    A `RendezvousError` if they do not all join, a `NoServerError` if a server does not answer.
    """
    spread = Spread.from_spec(order)
    if spread is Spread.RAY:
        with RayHead(setup) as ray:
            ray.start()
            ray.wait_for_nodes()
            yield ray
        return
    each = _processes_per_node(order)
    with (
        ServerHead(setup, each, *_servers(order, setup)) if spread is Spread.SERVER else RanksHead(setup, each) as head
    ):
        head.start(attempt.folder)
        head.wait_for_nodes()
        yield head


def worker_task(order: dict[str, Any], setup: TaskSetup) -> WorkerTask:
    """The part of a node that is not the first."""
    spread = Spread.from_spec(order)
    if spread is Spread.RAY:
        return RayWorker(setup)
    nodes = setup.place.nodes - (spread is Spread.SERVER)
    if setup.place.rank == nodes:
        return ServerWorker(setup, *_servers(order, setup))
    each = _processes_per_node(order)
    return RanksWorker(setup, each, lambda attempt: trainer_command(order, AttemptPaths(attempt)), nodes)


def _processes_per_node(order: Mapping[str, Any]) -> int:
    """The trainer's processes on each node: one per GPU, and one on a CPU."""
    gpus = int(order["spec"]["workload"].get("gpus_per_node", 0))
    return max(1, gpus - server_gpus_beside(order))


def _servers(order: Mapping[str, Any], setup: TaskSetup) -> list[ServerSetup]:
    return [
        ServerSetup(
            order["spec"][name],
            server_environment(order, os.environ, name),
            setup.folder / f"{name}-{setup.place.nodes - 1}.log",
            name,
        )
        for name in SERVERS
        if name in order["spec"]
    ]
