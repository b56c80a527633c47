"""Several nodes: what a task knows of its place and of the others, and who died first, whoever tells it.

The nodes are tasks in this process; their trainers are small programs. Their Ray is in tests/slurm/test_nodes.py.
"""

import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from workflow.job import ray as subject
from workflow.job import rendezvous
from workflow.job.place import Place, expand_hosts
from workflow.job.ray import RayHead
from workflow.job.rendezvous import RendezvousError
from workflow.job.torchrun import RanksHead, RanksWorker

from .run_bench import task_setup

pytestmark = pytest.mark.promise("a-job-over-two", "a-trainer-of-several")

SLURM = {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "nowhere[1-2]", "SLURM_CPUS_PER_TASK": "3"}


def test_what_keeps_ray_from_starting_is_told(tmp_path):
    setup = replace(task_setup(tmp_path, ("nowhere1", "nowhere2"), 0), python=tmp_path / "none")
    for why in ("No such file", "File exists"):  # no such Python; a folder that belongs to another life
        with RayHead(setup) as head, pytest.raises(RendezvousError, match=why) as caught:
            head.start()
        assert str(caught.value).startswith("Ray could not be started on rank 0 (nowhere1): ")
        assert json.loads((setup.folder / "head.json").read_text())["error"] == str(caught.value)
        (setup.folder / "secret").touch()


def test_time_in_which_one_did_not_listen_oneself_is_no_silence(tmp_path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(rendezvous.time, "monotonic", lambda: now)
    (tmp_path / "rank-1.json").write_text(json.dumps({"state": "joined", "beat": 1}))
    setup = replace(task_setup(tmp_path, ("a", "b"), 0), folder=tmp_path, stale_s=30)
    other = rendezvous.PeerStatus(setup, 1)
    assert other.problem() is None
    now += 3600  # the job was suspended
    assert other.problem() is None
    for _ in range(25):
        now += 1
        assert other.problem() is None
    now += 1
    assert other.problem() == "rank 1 (b) has not written its status for 30 s"
    (tmp_path / "rank-1.json").write_text(json.dumps({"state": "joined", "beat": 2}))
    now += 1
    assert other.problem() is None
    # A file that is being replaced may be unreadable for a moment.
    (tmp_path / "rank-1.json").write_text("")
    now += 1
    assert other.problem() is None
    assert other.read()["beat"] == 2


def test_the_place_in_the_job_is_as_slurm_tells_it():
    place = Place.from_environment({**SLURM, "SLURM_PROCID": "1", "CUDA_VISIBLE_DEVICES": "0,3,7"})
    assert (place.rank, place.nodes, place.host, place.cpus, place.gpus) == (1, 2, "nowhere2", 3, 3)
    assert place.memory_bytes is None
    place = Place.from_environment(
        {"SLURM_CPUS_ON_NODE": "16", "SLURM_GPUS_ON_NODE": "8", "SLURM_MEM_PER_CPU": "100", "SLURMD_NODENAME": "n1"}
    )
    assert (place.hosts, place.cpus, place.gpus, place.memory_bytes) == (("n1",), 16, 8, 1600 * 2**20)
    place = Place.from_environment({"CUDA_VISIBLE_DEVICES": ""})
    assert (place.rank, place.nodes, place.gpus) == (0, 1, 0)
    assert place.cpus == len(os.sched_getaffinity(0))
    nameless = Place.from_environment({"SLURM_NNODES": "3", "SLURM_PROCID": "1", "SLURMD_NODENAME": "b"})
    assert nameless.hosts == ("unknown host", "b", "unknown host")


@pytest.mark.parametrize(
    ("short", "names"),
    [
        ("", []),
        ("gpu1", ["gpu1"]),
        ("gpu[1-3,07-08],login", ["gpu1", "gpu2", "gpu3", "gpu07", "gpu08", "login"]),
        ("r[1-2]n[098-100]-ib", [f"r{rack}n{node}-ib" for rack in "12" for node in ("098", "099", "100")]),
    ],
)
def test_slurms_short_form_of_host_names(short, names):
    assert expand_hosts(short) == names


def test_rays_folder_is_under_the_jobs_own_if_sockets_can_have_such_a_path(tmp_path):
    with tempfile.TemporaryDirectory(prefix="rbt", dir="/tmp") as base:
        temporary = subject.private_folder({"SLURM_TMPDIR": "/missing", "TMPDIR": base})
        assert temporary.parent == Path(base) and temporary.stat().st_mode & 0o777 == 0o700
    deep = tmp_path / ("d" * subject.LONGEST_TEMPORARY)
    deep.mkdir()
    temporary = subject.private_folder({"TMPDIR": str(deep)})
    assert temporary.parent == Path("/tmp")
    temporary.rmdir()


# A process for each GPU ----------------------------------------------------------------------------------------------


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
