"""The CPU time of other processes, read from the kernel."""

import os
import subprocess
import sys

from node.hardware import OtherLoad, busy_s, peak_resident_gib, process_tree

STAT = """cpu  100 0 50 900 10 5 5 20 7 0
cpu0 60 1 20 400 5 2 3 10 3 0
cpu1 40 0 30 500 5 3 2 10 4 0
cpu10 999 0 0 0 0 0 0 0 0 0
intr 1 2 3
"""


def test_busy_seconds_are_work_and_steal_of_the_given_cpus():
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert busy_s(STAT, [0]) == (60 + 1 + 20 + 2 + 3 + 10) * tick
    assert busy_s(STAT, [0, 1]) == (96 + 85) * tick


def test_child_processes_are_not_other_load(tmp_path):
    """SGLang's scheduler is a process of its own; what that starts counts, too, and what has ended."""
    burn = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
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
    assert 90 < ended <= alive <= 99.45
    assert {os.getpid(), child.pid, grandchild} <= {*members} and not {child.pid, grandchild} & {*process_tree()}
    assert peak > peak_resident_gib() > 0
