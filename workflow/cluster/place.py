"""Reads a task's place in its Slurm job: nodes, rank, CPUs and GPUs; finds the addresses by which nodes meet."""

from __future__ import annotations

import itertools
import os
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

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


def own_ip(place: Place) -> str:
    """The address by which the job's other nodes reach this one."""
    named = _resolve(place.host)
    if named is not None and _is_ours(named):
        return named
    others = [ip for rank, host in enumerate(place.hosts) if rank != place.rank and (ip := _resolve(host))]
    for target in (*others, "198.51.100.1"):  # the last is nobody's: it asks for the default route
        if ip := source_ip(target):
            return ip
    return "127.0.0.1"  # no network at all, so all ranks must be on this machine; the others check that


def _resolve(host: str) -> str | None:
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return None
    addresses = [str(entry[4][0]) for entry in found]
    return next((ip for ip in addresses if not ip.startswith("127.")), None)


def _is_ours(ip: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((ip, 0))
        except OSError:
            return False
    return True


def source_ip(target: str) -> str | None:
    """Our address on the way to another one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def unreachable(ip: str, port: int) -> str | None:
    try:
        socket.create_connection((ip, port), timeout=5).close()
    except OSError as error:
        return str(error)
    return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def machine_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
