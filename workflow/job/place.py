"""Reads a task's place in its Slurm job (nodes, rank, CPUs, GPUs), and finds the address of a node."""

from __future__ import annotations

import itertools
import os
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

NO_GPU = {"", "-1", "NoDevFiles"}
"""What CUDA_VISIBLE_DEVICES says where it leaves none."""
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """One task's place in its Slurm job, and its resources there."""

    rank: int
    hosts: tuple[str, ...]  # Slurm's names of the nodes, in the order of their ranks
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
        return f"rank {rank} ({self.hosts[rank]})"

    @classmethod
    def from_environment(cls, env: Mapping[str, str], cpus: int | None = None) -> Place:
        """The place from Slurm's variables; outside Slurm one task on this machine, with `cpus` CPUs (None: all)."""
        rank = int(env.get("SLURM_PROCID", "0"))
        nodes = int(env.get("SLURM_STEP_NUM_NODES") or env.get("SLURM_NNODES") or "1")
        hosts = expand_hosts(env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or "")
        if len(hosts) != nodes:
            hosts = ["unknown host"] * nodes
            hosts[rank] = env.get("SLURMD_NODENAME") or socket.gethostname()
        granted = env.get("SLURM_CPUS_PER_TASK") or env.get("SLURM_CPUS_ON_NODE")
        cpus = int(granted) if granted else cpus or len(os.sched_getaffinity(0))
        visible = visible_gpus(env)
        if visible is None:
            visible = int(env.get("SLURM_GPUS_ON_NODE") or "0")
        # Slurm counts memory in MiB, and 0 means all of the node's.
        memory = int(env.get("SLURM_MEM_PER_NODE") or "0") or int(env.get("SLURM_MEM_PER_CPU") or "0") * cpus
        return cls(rank, tuple(hosts), cpus, visible, memory * 2**20 or None)


def expand_hosts(text: str) -> list[str]:
    """The host names of Slurm's short form: `gpu[1-2,07],login` means gpu1, gpu2, gpu07, login."""
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
    return 0 if visible.strip() in NO_GPU else len(visible.split(","))


def nvidia_gpus() -> tuple[list[str], str]:
    """A line for each NVIDIA GPU of this machine, and the source; with a broken driver no GPU can be used."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return [], f"nvidia-smi -L did not answer within {_PATIENCE_S:.0f} s"
    except OSError:
        devices = sorted(map(str, Path("/dev").glob("nvidia[0-9]*")))
        return devices, f"no nvidia-smi, and {len(devices) or 'no'} /dev/nvidia*"
    lines = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    output = " ".join((listed.stderr or listed.stdout).split()) if listed.returncode else f"it lists {len(lines)}"
    return lines, f"nvidia-smi -L: {output}"


def own_ip(place: Place) -> str:
    """The address at which the job's other nodes reach this one: ours on the route to one of them."""
    others = [ip for rank, host in enumerate(place.hosts) if rank != place.rank and (ip := _resolve(host))]
    for target in (*others, "198.51.100.1"):  # the last is reserved for documentation: it selects the default route
        if ip := source_ip(target):
            return ip
    return "127.0.0.1"  # no network: all ranks must be on this machine, and the other ranks check that


def _resolve(host: str) -> str | None:
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return None
    addresses = [str(entry[4][0]) for entry in found]
    return next((ip for ip in addresses if not ip.startswith("127.")), None)


def source_ip(target: str) -> str | None:
    """Our address on the route to another one; sends nothing."""
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


def machine_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
