"""Jobs on several nodes: one Ray cluster of the job's own, whose loss ends the life and not the run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from .cluster import Cluster
from .runs import SlurmRun

TRAINER = Path(__file__).with_name("ray_trainer.py")
OPTIONS = ("--nodes", "2", "--mem-mb", "4000")


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path) -> Iterator[SlurmRun]:
    one = SlurmRun(cluster, tmp_path, steps=4, options=OPTIONS)
    one.spec["ray"] = True
    python = tmp_path / "stack" / "env" / "bin" / "python"
    # The stack's Python is asked for Ray, too, and runs the trainer in place of any other module.
    python.write_text(
        f'#!/bin/sh\ncase "$*" in\n*" stand_in "*) exec {sys.executable} {TRAINER} "$@";;\n'
        f'*) exec {sys.executable} "$@";;\nesac\n'
    )
    yield one
    cluster.run("scancel", "--user=root")
    one.end()


def rays(folder: Path) -> list[psutil.Process]:
    """The Ray processes on this machine that belong to a run's folder."""
    found = []
    for process in psutil.process_iter(["name"]):
        try:
            if process.info["name"] in ("raylet", "gcs_server") and str(folder) in " ".join(process.environ().values()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_two_nodes_are_one_ray_cluster_and_nothing_of_it_is_left(run: SlurmRun) -> None:
    """And another's Ray on the same node is let alone."""
    foreign = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)", "raylet"])
    try:
        run.finish(run.start(), timeout_s=120)
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()
    seen = run.read("attempts", "1", "ray.json")
    assert (seen["nodes"], seen["gpus"]) == (2, 16)
    assert run.read("attempts", "1", "attempt.json")["slurm"]["nodes"] == "gpu[1-2]"
    run.wait(lambda: not rays(run.folder))
    run.assert_trained_once()


def test_a_lost_node_ends_the_life_and_the_next_one_finishes(run: SlurmRun) -> None:
    run.spec["env"] = {"RAY_TRAINER": "lose_a_node"}
    head = run.start()
    run.wait(lambda: run.attempts() and run.attempts()[0], timeout_s=120)
    end = run.attempts()[0]
    assert end["kind"] == "node lost" and "rank 1 (gpu2)" in end["detail"]
    run.release()
    said = run.finish(head, timeout_s=120)
    assert "attempt 1 node lost after step 0" in said
    assert run.read("attempts", "2", "ray.json")["nodes"] == 2
    run.assert_trained_once()
    run.wait(lambda: not rays(run.folder))


def test_a_time_limit_stops_the_trainer_and_its_ray(run: SlurmRun) -> None:
    run.spec["workload"]["steps"] = 20
    run.spec["env"] = {"STAND_IN_STEP_S": "0.5", "STAND_IN_SAVE": "100"}
    head = run.start()
    run.wait_for_step(2, timeout_s=120)
    run.cluster.run("scancel", "--signal=USR2", run.job_id())
    run.wait(lambda: run.attempts()[0])
    run.release()
    run.finish(head, timeout_s=120)
    run.assert_trained_once()
    assert os.environ.get("RAY_ADDRESS") is None
