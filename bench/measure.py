"""How long does a command take, and how much memory at its peak?"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


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
            return self.what, f"{self.measured:.1f} {self.unit}", "", "", plain
        verdict = "ok" if self.within else "OVER"
        return self.what, f"{self.measured:.1f} {self.unit}", f"{self.bound:g} {self.unit}", verdict, plain


def cost_of(command: Sequence[str], cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> Cost:
    """Run a command to its end and measure it; its output is shown only if it fails."""
    began = time.perf_counter()
    with subprocess.Popen(
        list(command),
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{output[-4000:]}")
    cpu_s = usage.ru_utime + usage.ru_stime
    return Cost(time.perf_counter() - began, usage.ru_maxrss * 1024 / 1e6, cpu_s)
