"""A trainer's processes on several nodes: who died first is known, whoever tells it.

The nodes are tasks in this process; their trainers are small programs.
"""

import sys
import time

import pytest

from workflow.job import rendezvous
from workflow.job.torchrun import RanksHead, RanksWorker

from .run_bench import task_setup

pytestmark = pytest.mark.promise("a-trainer-of-several")


def setup_of(folder, rank):
    return task_setup(folder, ("gpu1", "gpu2"), rank, SLURMD_NODENAME=f"gpu{rank + 1}")


class Nodes:
    """Both tasks, of which the second runs a program."""

    def __init__(self, folder, program):
        self.head = RanksHead(setup_of(folder, 0), 1)
        self.worker = RanksWorker(setup_of(folder, 1), 1, lambda attempt: [sys.executable, "-c", program, str(attempt)])
        self.head.start(folder)
        self.worker.join()
        self.head.wait_for_nodes()

    def died(self):
        """What the second says, or that it is over."""
        while (died := self.worker.poll()) is None and not self.worker.over:
            time.sleep(0.05)
        return died


@pytest.fixture
def made():
    nodes = []
    yield nodes
    for one in nodes:
        one.head.close()
        one.worker.close()


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        ("import os; os.kill(os.getpid(), 9)", -9, "rank 1 of 2 on gpu2 was killed by SIGKILL (see "),
        ("import sys; sys.exit('error: no GPU here')", 1, "ended with exit code 1: no GPU here (see "),
        ("import sys; print('error: no', file=sys.stderr); sys.exit(2)", 2, "ended with exit code 2: no (see "),
    ],
)
def test_a_process_that_dies_elsewhere_is_named(made, tmp_path, program, code, words):
    made.append(nodes := Nodes(tmp_path, program))
    died = nodes.died()
    assert died is not None and words in died
    while (heard := nodes.head.poll()) is None:
        time.sleep(0.05)
    assert heard == died
    # Rank 0 lost its connection, and ended with 1.
    assert nodes.head.culprit(1) == (died, code)


def test_a_stopped_process_elsewhere_is_no_failure(made, tmp_path):
    made.append(nodes := Nodes(tmp_path, "import sys; sys.exit(75)"))
    nodes.worker._process.wait(60)
    assert nodes.worker.poll() is None and nodes.head.poll() is None
    nodes.head.close()
    assert nodes.died() is None and nodes.worker.over


def test_a_node_that_falls_silent_is_lost_and_one_that_goes_on_is_not(made, tmp_path, monkeypatch):
    made.append(nodes := Nodes(tmp_path, "import time; time.sleep(600)"))
    nodes.worker.poll()
    assert nodes.head.poll() is None
    clock, slept = time.monotonic, 0.0

    def sleep(seconds):
        nonlocal slept
        slept += 5

    monkeypatch.setattr(rendezvous.time, "monotonic", lambda: clock() + slept)
    monkeypatch.setattr(rendezvous.time, "sleep", sleep)
    assert nodes.head.culprit(1) == ("rank 1 (gpu2) has not written its status for 120 s", None), "nobody polls it"
