"""The ground under the tests that need Slurm: this is a real one, and it does what a site's does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .cluster import Cluster

TRUTH = "echo $SLURM_RESTART_COUNT $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"


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


def test_two_nodes_of_eight_gpus_for_one_job(cluster: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "out"
    submit(cluster, f"srun bash -c '{TRUTH}'", "-N2", "--gres=gpu:h100:8", f"--output={out}")
    wait_until(lambda: not cluster.jobs())
    assert sorted(out.read_text().split("\n")) == ["", "gpu1 0,1,2,3,4,5,6,7", "gpu2 0,1,2,3,4,5,6,7"]


def test_jobs_share_a_node_but_no_gpu(cluster: Cluster, tmp_path: Path) -> None:
    outs = [tmp_path / "0", tmp_path / "1"]
    for out in outs:
        submit(cluster, f"{TRUTH}; sleep 60", "-w", "gpu1", "--gres=gpu:1", f"--output={out}")
    wait_until(lambda: all(out.is_file() and out.read_text() for out in outs))
    assert sorted(out.read_text().strip() for out in outs) == ["gpu1 0", "gpu1 1"]
