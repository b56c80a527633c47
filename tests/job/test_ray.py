"""Several nodes: what a task knows of its place and of the others, and what it ends; their Ray is in tests/slurm."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from workflow.job import ray as subject
from workflow.job import rendezvous
from workflow.job.place import Place, expand_hosts
from workflow.job.processes import end_processes, start_in_session
from workflow.job.ray import RayHead
from workflow.job.rendezvous import RendezvousError

from .run_bench import task_setup

pytestmark = pytest.mark.promise("a-job-over-two")

SLURM = {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "nowhere[1-2]", "SLURM_CPUS_PER_TASK": "3"}


def gone(processes):
    _, alive = psutil.wait_procs(processes, timeout=60)
    return not [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


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


def test_only_the_processes_of_a_life_are_ended(tmp_path):
    """This process adopts what sheds its parents, its session and its environment, and knows whose it is not."""
    # One write for the whole line: two of these share a file.
    sleep = "import os, time; os.write(1, b'%d\\n' % os.getpid()); time.sleep(600)"
    strays = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {sleep!r}], env={{}}, start_new_session=True)
deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + {sleep!r}
subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True)
"""
    more = {"cwd": tmp_path, "env": os.environ}
    foreign = subprocess.Popen([sys.executable, "-c", sleep], stdout=subprocess.DEVNULL, start_new_session=True)
    other = start_in_session([sys.executable, "-c", sleep], log=tmp_path / "other", **more)
    left = start_in_session([sys.executable, "-c", strays], log=tmp_path / "left", **more)
    try:
        left.wait(60)
        while len(found := (tmp_path / "left").read_text().split()) < 2:
            time.sleep(0.05)
        processes = [psutil.Process(int(pid)) for pid in found]
        end_processes(left, grace_s=0.5)
        assert gone(processes)
        assert other.poll() is None and foreign.poll() is None
        end_processes(other, grace_s=60)
        assert other.wait(5) == -signal.SIGTERM and foreign.poll() is None
    finally:
        for process in (foreign, other, left):
            process.kill()
            process.wait()
