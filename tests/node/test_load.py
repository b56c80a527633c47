"""What others took from the CPUs: read from the kernel, shown with a real neighbour."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from node.hardware import OtherLoad, busy_s

STAT = """cpu  100 0 50 900 10 5 5 20 7 0
cpu0 60 1 20 400 5 2 3 10 3 0
cpu1 40 0 30 500 5 3 2 10 4 0
cpu10 999 0 0 0 0 0 0 0 0 0
intr 1 2 3
"""


def test_busy_seconds_are_work_and_stolen_time_of_the_given_cpus() -> None:
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert busy_s(STAT, [0]) == (60 + 1 + 20 + 2 + 3 + 10) * tick
    assert busy_s(STAT, [0, 1]) == (96 + 85) * tick


def test_a_neighbour_on_the_same_cpu_is_seen_and_ones_own_work_is_not() -> None:
    cpu = min(os.sched_getaffinity(0))
    pin = f"import os, time; os.sched_setaffinity(0, [{cpu}]); end = time.monotonic() + 20"
    spin = f"{pin}\nwhile time.monotonic() < end: pass"
    load = OtherLoad([cpu])
    neighbour = subprocess.Popen([sys.executable, "-c", spin])
    try:
        time.sleep(0.3)
        load.begin()
        began = time.monotonic()
        time.sleep(1.0)
        taken, slept = load.taken_s(), time.monotonic() - began
    finally:
        neighbour.kill()
        neighbour.wait()
    assert taken is not None
    assert 0.6 * slept < taken < 1.2 * slept  # on a busy machine a sleep lasts longer


def test_a_system_that_does_not_tell_is_no_number(tmp_path: Path) -> None:
    load = OtherLoad([0], stat=tmp_path / "nothing")
    load.begin()
    assert load.taken_s() is None
