"""Measures a command's time and its peak memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Linux counts as a program's peak what the process that became it held before: a bench of half a gigabyte would be in
# every figure. So a small process starts the command, and tells what it took.
_STARTER = """
import json, os, sys
told = int(sys.argv[1])
os.set_inheritable(told, False)
_, status, usage = os.wait4(os.spawnvp(os.P_NOWAIT, sys.argv[2], sys.argv[2:]), 0)
cost = {"status": status, "cpu_s": usage.ru_utime + usage.ru_stime, "peak_kib": usage.ru_maxrss}
os.write(told, json.dumps(cost).encode())
"""


@dataclass(frozen=True)
class Cost:
    """What a command took."""

    seconds: float
    peak_mb: float
    """Peak resident memory of its largest process, in MB (1e6 bytes)."""
    cpu_s: float
    """CPU time of all its processes: what a busy machine changes less."""


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    what: str
    measured: float
    bound: float | None
    """None where nothing is promised: the line explains another one."""
    unit: str
    plain: float | None = None
    """The same work done the plain way, in the same unit."""

    @property
    def within(self) -> bool:
        return self.bound is None or self.measured <= self.bound

    def cells(self) -> tuple[str, ...]:
        plain = ""
        if self.plain:
            ratio = self.measured / self.plain
            plain = f"{self.plain:.1f} {self.unit} (ratio {ratio:{'.2f' if ratio >= 0.1 else '.1g'}})"
        if self.bound is None:
            return self.what, self._told, "", "", plain
        verdict = "ok" if self.within else "OVER"
        return self.what, self._told, f"{self.bound:g} {self.unit}", verdict, plain

    @property
    def _told(self) -> str:
        """What was measured; a count has no unit."""
        return f"{self.measured:.1f} {self.unit}" if self.unit else f"{self.measured:.0f}"


def cost_of(command: Sequence[str], cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> Cost:
    """Run a command to its end and measure it; its output is shown only if it fails."""
    began = time.perf_counter()
    reads, told = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", _STARTER, str(told), *command],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=(told,),
    ) as process:
        os.close(told)
        output = process.communicate()[0]
    seconds = time.perf_counter() - began
    with os.fdopen(reads) as pipe:
        cost = json.loads(pipe.read() or '{"status": 256}')
    if cost["status"] != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{output[-4000:]}")
    return Cost(seconds, cost["peak_kib"] * 1024 / 1e6, cost["cpu_s"])
