"""Runs a driver whose phase clock does not wait for the GPU: `-m gpu_kit.unsynchronized MODULE ATTEMPT`.

Beside a usual run it shows how many seconds would be attributed to another phase.
"""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import Callable

from node import phase_clock


def clock_after(wait: Callable[[], object], now: Callable[[], float] = time.perf_counter) -> Callable[[], float]:
    """The clock alone."""
    return now


if __name__ == "__main__":
    phase_clock.clock_after = clock_after
    module = sys.argv[1]
    sys.argv = [module, *sys.argv[2:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
