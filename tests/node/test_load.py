"""The CPU time of other processes, read from the kernel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from node.hardware import OtherLoad, busy_s, peak_resident_gib, process_tree

STAT = """cpu  100 0 50 900 10 5 5 20 7 0
cpu0 60 1 20 400 5 2 3 10 3 0
cpu1 40 0 30 500 5 3 2 10 4 0
cpu10 999 0 0 0 0 0 0 0 0 0
intr 1 2 3
"""


def test_busy_seconds_are_work_and_steal_of_the_given_cpus() -> None:
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert busy_s(STAT, [0]) == (60 + 1 + 20 + 2 + 3 + 10) * tick
    assert busy_s(STAT, [0, 1]) == (96 + 85) * tick


def test_a_process_on_the_same_cpu_is_measured() -> None:
    """It is no child of ours: their work is our own. How much it gets of a CPU that many share, the kernel says."""
    cpu = min(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, [{cpu}]); print(os.getpid(), flush=True)\nwhile True: pass"
    load = OtherLoad([cpu])
    with subprocess.Popen(["sh", "-c", '"$0" -c "$1" &', sys.executable, spin], stdout=subprocess.PIPE) as shell:
        assert shell.stdout
        neighbour = int(shell.stdout.readline())
        try:
            shell.wait()
            assert neighbour not in process_tree()
            began = time.monotonic(), time.process_time()
            load.begin()
            before = used_s(neighbour)
            while used_s(neighbour) - before < 0.5:
                time.sleep(0.05)
            used = used_s(neighbour) - before
            taken = load.taken_s()
            elapsed, ours = time.monotonic() - began[0], time.process_time() - began[1]
        finally:
            os.kill(neighbour, signal.SIGKILL)
    assert taken is not None
    # The kernel counts a CPU's work in ticks, and a process's exactly; ours may be another CPU's.
    assert 0.8 * used - ours < taken < 1.1 * elapsed + 0.05


def used_s(pid: int) -> float:
    return sum(psutil.Process(pid).cpu_times()[:2])


def test_child_processes_are_not_other_load(tmp_path: Path) -> None:
    """SGLang's scheduler is a process of its own; what that starts counts, too, and what has ended."""
    burn = "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    program = (
        f"{burn}\nimport subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])\n"
        "alive = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "print(alive.pid, flush=True); input(); alive.communicate()"
    )
    stat = tmp_path / "stat"
    stat.write_text(STAT)
    load = OtherLoad([0], stat=stat)
    load.begin()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin and child.stdout
        grandchild = int(child.stdout.readline())
        # The kernel's busy seconds, 100 more than before: those of the processes above are not others'.
        stat.write_text(STAT.replace("cpu0 60", f"cpu0 {60 + 100 * os.sysconf('SC_CLK_TCK')}"))
        alive, members, peak = load.taken_s(), process_tree(), peak_resident_gib()
        child.communicate("\n")
    ended = load.taken_s()
    assert alive is not None and ended is not None
    assert 90 < ended <= alive <= 99.05
    assert {os.getpid(), child.pid, grandchild} <= {*members} and not {child.pid, grandchild} & {*process_tree()}
    assert peak > peak_resident_gib() > 0
