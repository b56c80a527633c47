"""The ground under the tests that need Slurm: this is a real one, and it does what a site's does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .cluster import Cluster, ClusterError, processes

ROOT = Path(__file__).resolve().parents[2]
GPUS = "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"
WHOLE = ("-N2", "--gres=gpu:h100:8")


def wait_until(what: Callable[[], Any], timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.05)


def submit(cluster: Cluster, script: str, *options: str, partition: str = "h100") -> str:
    """The new job's number."""
    asked = ["sbatch", "--parsable", "-p", partition, "-o", "/dev/null", *options, "--wrap", script]
    answer = cluster.run(*asked)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def state(cluster: Cluster, job: str) -> str | None:
    return next((one["state"] for one in cluster.jobs() if one["id"] == job), None)


def running(cluster: Cluster, job: str) -> bool:
    return state(cluster, job) == "RUNNING"


def accounts(cluster: Cluster, job: str) -> list[str]:
    """The states of a job in accounting, one for every time that it was started."""
    answer = cluster.run("sacct", "-n", "-X", "-P", "-D", "-o", "State", "-j", job)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.split("\n")[:-1]


def test_two_nodes_of_eight_gpus_for_one_job(cluster: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "out"
    submit(cluster, f"srun bash -c '{GPUS}'", *WHOLE, f"--output={out}")
    wait_until(lambda: not cluster.jobs())
    assert sorted(out.read_text().splitlines()) == ["gpu1 0,1,2,3,4,5,6,7", "gpu2 0,1,2,3,4,5,6,7"]


def test_jobs_share_a_node_but_no_gpu(cluster: Cluster, tmp_path: Path) -> None:
    outs = [tmp_path / "0", tmp_path / "1"]
    for out in outs:
        submit(cluster, f"{GPUS}; sleep infinity", "-w", "gpu1", "--gres=gpu:1", f"--output={out}")
    wait_until(lambda: all(out.is_file() and out.read_text() for out in outs))
    assert sorted(out.read_text().strip() for out in outs) == ["gpu1 0", "gpu1 1"]


def test_the_cpu_partition_is_where_jobs_go_that_name_none(cluster: Cluster, tmp_path: Path) -> None:
    answer = cluster.run("srun", "--cpus-per-task=16", "bash", "-c", GPUS)
    assert answer.stdout.split() == ["cpu1"], answer.stderr


def test_a_preempted_job_is_requeued_and_released(cluster: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = "echo start ${SLURM_RESTART_COUNT:-0}; sleep infinity"
    job = submit(cluster, script, *WHOLE, f"--output={out}", "--open-mode=append")
    wait_until(lambda: out.is_file() and out.read_text())  # Slurm says RUNNING before the script runs
    urgent = submit(cluster, "true", *WHOLE, partition="h100-urgent")
    wait_until(lambda: state(cluster, urgent) is None)
    assert state(cluster, job) in ("PENDING", "COMPLETING")
    cluster.release(job)
    wait_until(lambda: running(cluster, job))
    wait_until(lambda: "start 1\n" in out.read_text())
    wait_until(lambda: accounts(cluster, job) == ["PREEMPTED", "RUNNING"])


def test_accounting_says_who_cancelled(cluster: Cluster) -> None:
    job = submit(cluster, "sleep infinity", *WHOLE)
    wait_until(lambda: running(cluster, job))
    cluster.run("scancel", job)
    wait_until(lambda: accounts(cluster, job) == [f"CANCELLED by {os.getuid()}"])


def test_slurmctld_back_from_a_restart_knows_its_jobs(cluster: Cluster) -> None:
    job = submit(cluster, "sleep infinity", *WHOLE)
    wait_until(lambda: running(cluster, job))
    cluster.stop_daemon("slurmctld")
    cluster.start_daemon("slurmctld")
    cluster.wait_until_ready()
    assert running(cluster, job)


def test_a_node_without_power_and_back(cluster: Cluster) -> None:
    job = submit(cluster, "sleep infinity", *WHOLE)
    wait_until(lambda: running(cluster, job) and processes(cluster.folder, cluster.name, "gpu1"))
    cluster.kill_node("gpu1")
    assert not processes(cluster.folder, cluster.name, "gpu1")
    assert not running(cluster, job)
    cluster.start_daemon("gpu1")
    cluster.wait_until_ready()
    cluster.release(job)
    wait_until(lambda: running(cluster, job))
    wait_until(lambda: accounts(cluster, job) == ["NODE_FAIL", "RUNNING"])


@pytest.mark.full("a scenario on a real Slurm")
def test_two_clusters_side_by_side(cluster: Cluster, make_cluster: Callable[..., Cluster]) -> None:
    job = submit(cluster, "sleep infinity", *WHOLE)
    other = make_cluster(accounting=False, preempt_mode="CANCEL")
    theirs = submit(other, "sleep infinity", *WHOLE)
    wait_until(lambda: running(cluster, job) and running(other, theirs))
    submit(other, "sleep infinity", *WHOLE, partition="h100-urgent")
    wait_until(lambda: state(other, theirs) is None)
    other.stop()
    assert not processes(other.folder, other.name)
    assert not other.folder.exists()
    assert [one["id"] for one in cluster.jobs()] == [job]
    assert running(cluster, job)


def test_nothing_is_left_when_the_owner_is_killed(cluster: Cluster) -> None:
    """`cluster` is asked for only so that this is skipped where no cluster can be."""
    script = """
import sys, time
from pathlib import Path
from tests.slurm.cluster import Cluster
with Cluster(Path(sys.argv[1]), accounting=False) as cluster:
    cluster.run("sbatch", "-o", "/dev/null", "--wrap=env -i sleep 600")
    while not cluster.jobs() or cluster.jobs()[0]["state"] != "RUNNING":
        time.sleep(0.05)
    print("up", flush=True)
    time.sleep(600)
"""
    folder = Path(tempfile.mkdtemp(prefix="rbs"))
    with subprocess.Popen([sys.executable, "-c", script, str(folder)], cwd=ROOT, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        assert processes(folder, Cluster(folder).name)
        owner.send_signal(signal.SIGKILL)
    wait_until(lambda: not folder.exists() and not processes(folder, Cluster(folder).name))


def test_a_cluster_that_cannot_start_says_why_and_leaves_nothing(make_cluster: Callable[..., Cluster]) -> None:
    with pytest.raises(ClusterError, match=r"(slurmctld|[cg]pu\d) ended with 1:(?s:.)*NoSuchKey"):
        make_cluster(accounting=False, extra=["NoSuchKey=1"])
