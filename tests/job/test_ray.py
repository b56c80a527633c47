"""Several nodes become one Ray cluster, which ends as a whole and disturbs nobody else's.

Ray is real. The nodes are processes on this machine, each as one task of a Slurm job is.
"""

import contextlib
import json
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
from workflow.job.ray import RayHead
from workflow.job.rendezvous import RendezvousError, TaskSetup

from ..patience import run

pytestmark = [pytest.mark.full("Ray clusters that are struck"), pytest.mark.promise("a-job-over-two")]

ROOT = Path(__file__).resolve().parents[2]
SLURM = {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "nowhere[1-2]", "SLURM_CPUS_PER_TASK": "3"}

# One task: says what happens as lines of JSON, ends when it is told to by a line of input.
TASK = """
import json, os, select, sys, time
from pathlib import Path
from workflow.job.place import Place
from workflow.job.rendezvous import RendezvousError, TaskSetup
from workflow.job.ray import RayHead, RayWorker
told = json.loads(sys.argv[1])
folder = Path(told.pop("folder"))
python = Path(told.pop("python", sys.executable))
place = Place.from_environment(os.environ)
setup = TaskSetup(
    place=place, folder=folder, python=python, environment=os.environ, cwd=folder.parent,
    log=folder.parent / f"ray-{folder.name}-{place.rank}.log", **told,
)
def say(**facts):
    print(json.dumps(facts), flush=True)
try:
    with RayHead(setup) if place.rank == 0 else RayWorker(setup) as ray:
        if isinstance(ray, RayHead):
            ray.start()
            say(up=ray.address)
            ray.wait_for_nodes()
        else:
            ray.join()
        say(ready=ray.environment())
        died = None
        while not select.select([sys.stdin], [], [], 0.2)[0] and died is None and not getattr(ray, "over", False):
            died = ray.poll()
        say(died=died, over=getattr(ray, "over", None))
except RendezvousError as error:
    say(error=str(error))
say(closed=True)
"""

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


class Task:
    """A running task of a job."""

    def __init__(self, folder, rank, told):
        env = {
            **os.environ,
            **SLURM,
            "SLURM_PROCID": str(rank),
            "CUDA_VISIBLE_DEVICES": "4,5",
            "SLURM_MEM_PER_NODE": "256",
        }
        env |= {"PYTHONPATH": str(ROOT), "RAY_ADDRESS": "192.0.2.77:6379", "TMPDIR": told.pop("base")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", TASK, json.dumps({"folder": str(folder), **told})],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def hear(self, what):
        """The next thing the task says, which must be this."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait()}"
        said = json.loads(line)
        assert what in said, said
        return said[what]

    def end(self):
        assert self.process.stdin is not None
        self.process.stdin.write("end\n")
        self.process.stdin.flush()

    def session(self):
        [child] = psutil.Process(self.process.pid).children()
        return child.pid

    def ray(self):
        """All that it has started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def files(self):
        """What its processes have open, or were told of."""
        found = []
        for process in self.ray():
            with contextlib.suppress(psutil.Error):
                words = [word.partition("=")[2] or word for word in process.cmdline()]
                found += [*words, *(file.path for file in process.open_files())]
        return found

    def raylet(self):
        [found] = [process for process in self.ray() if words_of(process)[:1] == ["raylet"]]
        return found

    def temporary(self):
        [found] = {
            Path(word.split("=")[1]).parent
            for process in self.ray()
            for word in words_of(process)
            if word.startswith("--temp-dir=")
        }
        return found


def words_of(process):
    """A process's name and command; nothing of one that has ended, as Ray's workers do at any time."""
    with contextlib.suppress(psutil.Error):
        return [process.name(), *process.cmdline()]
    return []


@pytest.fixture
def base():
    """Where the tasks have their temporary folders: a test's own, since every Ray that starts clears up after the dead.

    Its name is short, as sockets want it.
    """
    with tempfile.TemporaryDirectory(prefix="rbt", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def start(base):
    tasks = []

    def start_task(folder, rank, **told):
        tasks.append(Task(folder, rank, told | {"base": str(base)}))
        return tasks[-1]

    yield start_task
    for task in tasks:
        left = task.ray() if task.process.poll() is None else []
        task.process.kill()
        task.process.communicate()
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def drive(environment):
    ran = run([sys.executable, "-c", DRIVER], 120, env={**os.environ, **environment})
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout.splitlines()[-1])
    assert isinstance(seen, dict)
    return seen


def gone(processes):
    _, alive = psutil.wait_procs(processes, timeout=60)
    return not [process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def test_two_clusters_on_one_machine_keep_to_themselves_and_end_as_wholes(tmp_path, start):
    jobs = [[start(tmp_path / name, rank) for rank in (0, 1)] for name in "ab"]
    a, b = [[head.hear("up"), head.hear("ready"), worker.hear("ready")] for head, worker in jobs]
    assert a[0] != b[0]
    for (address, environment, workers), (head, worker) in zip((a, b), jobs, strict=True):
        assert environment["RAY_ADDRESS"] == workers["RAY_ADDRESS"] == address
        assert not address.startswith("127.") or source_ip("198.51.100.1") is None
        assert head.temporary() != worker.temporary()
        assert {head.temporary().stat().st_mode & 0o777, worker.temporary().stat().st_mode & 0o777} == {0o700}
        assert Path(environment["RAY_AUTH_TOKEN_PATH"]).stat().st_mode & 0o777 == 0o600
    seen = [drive(a[1]), drive(b[1])]
    for one in seen:
        assert len(one["nodes"]) == 2
        assert sorted(one["ran"]) == sorted(one["nodes"])
        assert (one["cpus"], one["gpus"]) == (6, 4)
    assert not set(seen[0]["nodes"]) & set(seen[1]["nodes"])
    assert not [file for task in (*jobs[0], *jobs[1]) for file in task.files() if file.startswith("/tmp/ray")]

    # One ends as it should: the worker follows its head; the other cluster does not notice.
    (head, worker), (other_head, other_worker) = jobs
    of_one = [*head.ray(), *worker.ray()]
    of_other = [*other_head.ray(), *other_worker.ray()]
    stay = [other_head.raylet(), other_worker.raylet(), psutil.Process(seen[1]["actor"])]  # its driver's workers do not
    assert psutil.Process(seen[0]["actor"]) in of_one
    # Workers are no less urgent than the processes of trainers without Ray.
    assert psutil.Process(seen[0]["actor"]).nice() == head.raylet().nice() == psutil.Process().nice()
    folders = [task.temporary() for task in (head, worker)]
    head.end()
    assert head.hear("died") is None
    assert worker.hear("over") is True
    assert head.hear("closed") and worker.hear("closed")
    assert gone(of_one)
    assert not any(folder.exists() for folder in folders)
    assert all(process.is_running() for process in stay)
    assert not (tmp_path / "a" / "secret").exists()

    # In the other a worker's raylet is killed: both sides say so, and not that it is silent; nothing is left either.
    folders = [task.temporary() for task in (other_head, other_worker)]
    other_worker.raylet().kill()
    said = other_worker.hear("died")
    assert said.startswith("Ray ended on rank 1 (nowhere2) (exit 1; see ")
    assert other_head.hear("died") == said
    assert other_head.hear("closed") and other_worker.hear("closed")
    assert gone(of_other)
    assert not any(folder.exists() for folder in folders)
    assert "raylet" in (tmp_path / "ray-b-1.log").read_text()


def test_a_dead_head_ends_all_and_a_killed_task_takes_its_ray_with_it(tmp_path, base, start):
    head, worker = (start(tmp_path / "0", rank) for rank in (0, 1))
    assert head.hear("up") and head.hear("ready") and worker.hear("ready")
    everything, folders = [*head.ray(), *worker.ray()], [head.temporary(), worker.temporary()]
    head.raylet().kill()
    assert head.hear("died").startswith("Ray ended on rank 0 (nowhere1) (exit 1; see ")
    assert worker.hear("over") is True
    assert head.hear("closed") and worker.hear("closed")
    assert gone(everything)
    assert not any(folder.exists() for folder in folders)

    # A task that is killed cleans nothing up: Ray's agents stay for another minute, or until Slurm ends the step.
    head = start(tmp_path / "1", 0)
    head.hear("up")
    everything, folder = head.ray(), head.temporary()
    head.process.kill()
    agents = [process for process in everything if "".join(words_of(process)[:1]).startswith("ray::")]
    assert gone([process for process in everything if process not in agents])
    for process in agents:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert folder.exists()
    shutil.rmtree(folder)


def setup_of(folder, rank, python, **more):
    """What a task of this process is told."""
    place = Place.from_environment({**SLURM, "SLURM_PROCID": str(rank)})
    inside = {"environment": {}, "cwd": folder.parent, "log": folder.parent / "log"}
    return TaskSetup(place=place, folder=folder, python=python, **inside, **more)


def test_what_keeps_ray_from_starting_is_told(tmp_path):
    setup = setup_of(tmp_path / "0", 0, tmp_path / "none")
    for why in ("No such file", "File exists"):  # no such Python; a folder that belongs to another life
        with RayHead(setup) as head, pytest.raises(RendezvousError, match=why) as caught:
            head.start()
        assert str(caught.value).startswith("Ray could not be started on rank 0 (nowhere1): ")
        assert json.loads((tmp_path / "0" / "head.json").read_text())["error"] == str(caught.value)
        (tmp_path / "0" / "secret").touch()


def test_time_in_which_one_did_not_listen_oneself_is_no_silence(tmp_path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(rendezvous.time, "monotonic", lambda: now)
    (tmp_path / "rank-1.json").write_text(json.dumps({"state": "joined", "beat": 1}))
    setup = replace(setup_of(tmp_path, 0, tmp_path / "none"), place=Place(0, ("a", "b"), 1, 0), stale_s=30)
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
