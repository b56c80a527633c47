"""Finds the addresses by which a job's nodes reach one another."""

from __future__ import annotations

import socket
from pathlib import Path

from workflow.cluster.place import Place


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
