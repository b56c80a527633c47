"""Several nodes become one Ray cluster, which ends as a whole and disturbs nobody else's.

Ray is real. The nodes are tasks of this process.
"""

import json
import multiprocessing
import os
import shutil
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
from workflow.job.place import Place, expand_hosts, source_ip
from workflow.job.processes import end_processes, start_in_session
from workflow.job.ray import RayHead, RayWorker
from workflow.job.rendezvous import RendezvousError

from ..patience import run
from .run_bench import task_setup

pytestmark = pytest.mark.promise("a-job-over-two")

STRUCK = pytest.mark.full("Ray clusters that are struck")
HOSTS = ("nowhere1", "nowhere2")
SLURM = {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "nowhere[1-2]", "SLURM_CPUS_PER_TASK": "3"}

# The driver: what it sees of the cluster, with a task that needs a GPU on each node.
DRIVER = """
import json, os, time
import ray
ray.init(log_to_driver=False)
@ray.remote(num_gpus=2)
def where():
    return ray.get_runtime_context().get_node_id()
@ray.remote(num_cpus=1)
class Stays:
    def pid(self):
        return os.getpid()
nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
actor = Stays.options(lifetime="detached").remote()
seen = ray.cluster_resources()
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
ran = ray.get([where.options(scheduling_strategy=On(node, soft=False)).remote() for node in nodes])
print(json.dumps({
    "nodes": nodes, "ran": ran, "cpus": seen["CPU"], "gpus": seen["GPU"], "actor": ray.get(actor.pid.remote()),
}))
"""


class Node:
    """One node's task, and its Ray; another Ray's address in the shell is not believed."""

    def __init__(self, folder, rank, base):
        environ = {"CUDA_VISIBLE_DEVICES": "4,5", "RAY_ADDRESS": "192.0.2.77:6379", "TMPDIR": str(base)}
        setup = task_setup(folder, HOSTS, rank, **environ)
        place = replace(setup.place, cpus=3, gpus=2, memory_bytes=256 * 2**20)
        self.task = (RayWorker if rank else RayHead)(replace(setup, place=place))

    def ray(self):
        """All that it has started, by its first process."""
        parent = psutil.Process(self.task._process.pid)
        return [parent, *parent.children(recursive=True)]

    def raylet(self):
        return next(process for process in self.ray() if words_of(process)[:1] == ["raylet"])

    def words(self):
        """What its processes were told, and the files that they have open."""
        found = [word.partition("=")[2] or word for process in self.ray() for word in words_of(process)]
        return found + [file.path for process in self.ray() for file in process.open_files()]

    def temporary(self):
        words = [word for process in self.ray() for word in words_of(process)]
        [found] = {Path(word.partition("=")[2]).parent for word in words if word.startswith("--temp-dir=")}
        return found

    def died(self):
        """What it says once something has died; nothing once the life is over."""
        while (died := self.task.poll()) is None and not getattr(self.task, "over", False):
            time.sleep(0.1)
        return died


def words_of(process):
    """A process's name and command; nothing of one that has ended, as Ray's workers do at any time."""
    try:
        return [process.name(), *process.cmdline()]
    except psutil.Error:
        return []


@pytest.fixture
def base():
    """Where the tasks have their temporary folders: a test's own, since every Ray that starts clears up after the dead.

    Its name is short, as sockets want it.
    """
    with tempfile.TemporaryDirectory(prefix="rbt", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def cluster(base):
    """Makes two nodes one cluster."""
    made = []

    def start(folder):
        folder.mkdir()
        made.extend(nodes := [Node(folder, rank, base) for rank in (0, 1)])
        nodes[0].task.start()
        nodes[1].task.join()
        nodes[0].task.wait_for_nodes()
        return nodes

    yield start
    for node in made:
        node.task.close()


def drive(environment):
    ran = run([sys.executable, "-c", DRIVER], 120, env={**os.environ, **environment})
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def gone(processes):
    _, alive = psutil.wait_procs(processes, timeout=60)
    return not [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


@STRUCK
def test_two_clusters_on_one_machine_keep_to_themselves_and_end_as_wholes(tmp_path, cluster):
    one, other = cluster(tmp_path / "a"), cluster(tmp_path / "b")
    assert one[0].task.address != other[0].task.address
    for head, worker in (one, other):
        addresses = {node.task.environment()["RAY_ADDRESS"] for node in (head, worker)}
        assert addresses == {head.task.address}
        assert not head.task.address.startswith("127.") or source_ip("198.51.100.1") is None
        assert head.temporary() != worker.temporary()
        assert {node.temporary().stat().st_mode & 0o777 for node in (head, worker)} == {0o700}
        token = Path(head.task.environment()["RAY_AUTH_TOKEN_PATH"])
        assert token.stat().st_mode & 0o777 == 0o600
    seen, others = (drive(head.task.environment()) for head, _ in (one, other))
    for found in (seen, others):
        assert len(found["nodes"]) == 2 and sorted(found["ran"]) == sorted(found["nodes"])
        assert (found["cpus"], found["gpus"]) == (6, 4)
    assert not set(seen["nodes"]) & set(others["nodes"])
    assert not [word for node in (*one, *other) for word in node.words() if word.startswith("/tmp/ray")]

    # One ends as it should: the worker follows its head; the other cluster does not notice.
    of_one, of_other = ([*head.ray(), *worker.ray()] for head, worker in (one, other))
    stay = [*(node.raylet() for node in other), psutil.Process(others["actor"])]
    actor = psutil.Process(seen["actor"])
    # Workers are no less urgent than the processes of trainers without Ray.
    assert actor in of_one and actor.nice() == one[0].raylet().nice() == psutil.Process().nice()
    folders = [node.temporary() for node in one]
    one[0].task.close()
    assert one[1].died() is None and one[1].task.over
    one[1].task.close()
    assert gone(of_one) and not any(folder.exists() for folder in folders)
    assert all(process.is_running() for process in stay)
    assert not (tmp_path / "a" / "life" / "secret").exists()

    # In the other a worker's raylet is killed: both sides say so, and not that it is silent; nothing is left either.
    folders = [node.temporary() for node in other]
    other[1].raylet().kill()
    said = other[1].died()
    assert said.startswith("Ray ended on rank 1 (nowhere2) (exit 1; see ") and other[0].died() == said
    for node in other:
        node.task.close()
    assert gone(of_other) and not any(folder.exists() for folder in folders)
    assert "raylet" in (tmp_path / "b" / "1.log").read_text()


@STRUCK
def test_a_dead_head_ends_all(tmp_path, cluster):
    head, worker = cluster(tmp_path / "0")
    everything, folders = [*head.ray(), *worker.ray()], [head.temporary(), worker.temporary()]
    head.raylet().kill()
    assert head.died().startswith("Ray ended on rank 0 (nowhere1) (exit 1; see ")
    head.task.close()
    assert worker.died() is None and worker.task.over
    worker.task.close()
    assert gone(everything) and not any(folder.exists() for folder in folders)


@STRUCK
def test_a_killed_task_takes_its_ray_with_it(tmp_path, base):
    """It cleans nothing up: Ray's agents stay for another minute, or until Slurm ends the step."""
    told, tell = multiprocessing.Pipe(duplex=False)

    def live():
        node = Node(tmp_path, 0, base)
        node.task.start()
        tell.send(node.temporary())
        signal.pause()

    task = multiprocessing.get_context("fork").Process(target=live)
    task.start()
    folder = told.recv()
    everything = psutil.Process(task.pid).children(recursive=True)
    task.kill()
    task.join()
    agents = [process for process in everything if "".join(words_of(process)[:1]).startswith("ray::")]
    assert gone([process for process in everything if process not in agents])
    for process in agents:
        process.kill()
    assert folder.exists()
    shutil.rmtree(folder)


def test_what_keeps_ray_from_starting_is_told(tmp_path):
    setup = replace(task_setup(tmp_path, HOSTS, 0), python=tmp_path / "none")
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


def test_rays_folder_is_under_the_jobs_own_if_sockets_can_have_such_a_path(tmp_path, base):
    temporary = subject.private_folder({"SLURM_TMPDIR": "/missing", "TMPDIR": str(base)})
    assert temporary.parent == base and temporary.stat().st_mode & 0o777 == 0o700
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
