"""Reads a task's place in its Slurm job: its nodes, its rank, and the CPUs and GPUs that it may use."""

from __future__ import annotations

import itertools
import os
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_NO_GPU = {"", "-1", "NoDevFiles"}


@dataclass(frozen=True, slots=True)
class Place:
    """One task's place in its Slurm job, and what it may use there."""

    rank: int
    hosts: tuple[str, ...]
    """The nodes in the order of their ranks, by Slurm's names."""
    cpus: int
    gpus: int
    memory_bytes: int | None = None

    @property
    def nodes(self) -> int:
        return len(self.hosts)

    @property
    def host(self) -> str:
        return self.hosts[self.rank]

    def name(self, rank: int) -> str:
        """How a rank is called in messages."""
        return f"rank {rank} ({self.hosts[rank]})"

    @classmethod
    def from_environment(cls, env: Mapping[str, str], cpus: int | None = None) -> Place:
        """As Slurm's variables tell it; outside Slurm, the only task on this machine, with so many CPUs (None: all)."""
        rank = int(env.get("SLURM_PROCID", "0"))
        nodes = int(env.get("SLURM_STEP_NUM_NODES") or env.get("SLURM_NNODES") or "1")
        hosts = expand_hosts(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or "")
        if len(hosts) != nodes:
            hosts = ["unknown host"] * nodes
            hosts[rank] = env.get("SLURMD_NODENAME") or socket.gethostname()
        told = env.get("SLURM_CPUS_PER_TASK") or env.get("SLURM_CPUS_ON_NODE")
        cpus = int(told) if told else cpus or len(os.sched_getaffinity(0))
        visible = visible_gpus(env)
        if visible is None:
            visible = int(env.get("SLURM_GPUS_ON_NODE") or "0")
        return cls(rank, tuple(hosts), cpus, visible, _memory(env, cpus))


def expand_hosts(text: str) -> list[str]:
    """The names in Slurm's short form: `gpu[1-2,07],login` means gpu1, gpu2, gpu07, login."""
    return [name for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text) for name in _expand_host(part)]


def _expand_host(part: str) -> Iterator[str]:
    pieces = re.split(r"\[([^\]]*)\]", part)  # outside, inside, outside, ...
    choices = [[piece] if index % 2 == 0 else _expand_numbers(piece) for index, piece in enumerate(pieces)]
    return map("".join, itertools.product(*choices))


def _expand_numbers(text: str) -> list[str]:
    numbers = []
    for run in text.split(","):
        first, _, last = run.partition("-")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1)]
    return numbers


def visible_gpus(env: Mapping[str, str]) -> int | None:
    """How many GPUs CUDA_VISIBLE_DEVICES leaves; None where it is not set."""
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return None
    return 0 if visible.strip() in _NO_GPU else len(visible.split(","))


def _memory(env: Mapping[str, str], cpus: int) -> int | None:
    """What Slurm granted on this node; it counts in MiB, and 0 means all there is."""
    granted = int(env.get("SLURM_MEM_PER_NODE") or "0") or int(env.get("SLURM_MEM_PER_CPU") or "0") * cpus
    return granted * 2**20 or None
