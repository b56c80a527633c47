"""Measures how much of this process's CPUs others used: timings taken beside other work are not the engine's own."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

# Columns of /proc/stat: user, nice, system, irq, softirq, steal. Idle and iowait are no work; guest is in user.
_BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)


def busy_s(stat: str, cpus: Sequence[int]) -> float:
    """Seconds that the given CPUs have worked since boot, from the text of /proc/stat; steal counts as work."""
    ticks = 0
    for line in stat.splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cpus:
            ticks += sum(int(columns[column]) for column in _BUSY_COLUMNS)
    return ticks / os.sysconf("SC_CLK_TCK")


class OtherLoad:
    """Counts the CPU-seconds that other processes (or other machines on the same hardware) take.

    The kernel counts in ticks of 10 ms a CPU, so short spans are rough; sums over many steps are not.
    """

    def __init__(self, cpus: Sequence[int], stat: Path = Path("/proc/stat")) -> None:
        self._cpus = tuple(cpus)
        self._stat = stat
        self._began: tuple[float, float] | None = None

    def begin(self) -> None:
        """Start a span."""
        self._began = self._now()

    def taken_s(self) -> float | None:
        """CPU-seconds that others took since `begin`; None where the system does not tell."""
        began, ended = self._began, self._now()
        if began is None or ended is None:
            return None
        return max(0.0, (ended[0] - began[0]) - (ended[1] - began[1]))

    def _now(self) -> tuple[float, float] | None:
        try:
            text = self._stat.read_text(encoding="ascii")
        except OSError:
            return None
        return busy_s(text, self._cpus), time.process_time()
