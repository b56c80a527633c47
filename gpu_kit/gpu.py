"""Reads the GPU and its memory with nvidia-smi: no library is imported before the wheels are installed."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from common.errors import UserError

_FIELDS = ("name", "driver_version", "memory.total", "memory.used", "clocks.max.sm", "power.limit")
_EVERY_MS = 200


@dataclass(frozen=True)
class VisitedGpu:
    """The first GPU; memory in GiB."""

    name: str
    driver: str
    total_gib: float
    used_gib: float
    max_sm_mhz: str
    power_limit_w: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def seen_gpu() -> VisitedGpu:
    """The machine's GPU; `UserError` without one."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"no GPU: nvidia-smi does not answer ({error}); --cpu rehearses without one") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise UserError(f"no GPU: nvidia-smi says {said[0]}; --cpu rehearses without one")
    name, driver, total, used, clock, power = (part.strip() for part in lines[0].split(","))
    return VisitedGpu(name, driver, float(total) / 1024, float(used) / 1024, clock, power)


class PeakMemory:
    """The most memory in use on the GPU while a block runs, in GiB, read five times a second; None if unreadable."""

    gib: float | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Read the memory until the block ends."""
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", f"--loop-ms={_EVERY_MS}"]
        try:
            process = subprocess.Popen(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            yield
            return
        reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        reader.start()
        try:
            yield
        finally:
            process.terminate()
            process.wait()
            reader.join(5)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip().isdigit():
                self.gib = max(self.gib or 0.0, round(int(line) / 1024, 3))
