"""The launcher on a real Slurm: whatever dies, a run is trained by one job at a time and nothing done is lost.

The trainer is a stand-in (tests/cluster/stand_in_trainer.py); Slurm, submitit, the job and the heads are real.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .cluster import Cluster
from .runs import SlurmRun

SLOW = {"STAND_IN_STEP_S": "0.5"}


@pytest.fixture
def run(cluster: Cluster, make_cluster: Callable[..., Cluster], tmp_path: Path) -> Iterator[Callable[..., SlurmRun]]:
    made: list[SlurmRun] = []

    def make(**kwargs: Any) -> SlurmRun:
        made.append(SlurmRun(kwargs.pop("on", cluster), tmp_path, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.cluster.run("scancel", "--user=root")
        one.end()


def test_a_run_is_trained_on_the_cluster(run: Callable[..., SlurmRun]) -> None:
    one = run()
    first = one.launch()
    assert first.returncode == 0, first.stderr
    job = one.read("attempts", "1", "attempt.json")
    assert job["slurm"]["nodes"] in ("gpu1", "gpu2")
    assert f"submitted as Slurm job {job['slurm']['job_id']}" in first.stderr
    assert "step 5/5" in first.stderr
    assert one.read("jobs", "1", "end.json")["kind"] == "finished"
    assert one.launch().stderr.count("already finished (attempt 1)") == 1
    one.assert_trained_once()


def test_preempted_with_a_grace_it_stops_after_its_step_and_goes_on(
    run: Callable[..., SlurmRun], make_cluster: Callable[..., Cluster]
) -> None:
    one = run(on=make_cluster(grace_s=30), steps=8, env=SLOW | {"STAND_IN_SAVE": "100"})
    head = one.start()
    one.wait_for_step(2)
    one.cluster.run("sbatch", "-p", "h100-urgent", "-N2", "--gres=gpu:h100:8", "--wrap=sleep 2")
    one.wait(lambda: one.attempts()[0])
    one.release()
    said = one.finish(head)
    assert "attempt 1 stopped after step" in said and "preempted" in said
    assert one.attempts()[0]["cause"] == "preempted"
    one.assert_trained_once()
    assert one.job_id() == one.read("attempts", "2", "attempt.json")["slurm"]["job_id"], "requeued, not submitted anew"


def test_at_the_time_limit_it_stops_is_requeued_and_finishes_over_several_lives(
    run: Callable[..., SlurmRun],
) -> None:
    # Slurm's limits are whole minutes, and it may warn up to a minute early: here it warns at once, or soon.
    one = run(steps=6, env=SLOW | {"STAND_IN_SAVE": "100"}, options=("--runtime", "1", "--stop-grace-s", "30"))
    head = one.start()
    one.wait(lambda: len(one.attempts()) >= 1 and one.attempts()[0], timeout_s=90)
    assert one.attempts()[0]["cause"] == "time limit"
    one.release()
    one.finish(head, timeout_s=120)
    one.assert_trained_once()


def test_a_killed_head_leaves_its_job_and_the_next_head_attaches(run: Callable[..., SlurmRun]) -> None:
    one = run(steps=12, env=SLOW)
    head = one.start()
    one.wait_for_step(2)
    head.kill()
    again = one.launch()
    assert again.returncode == 0, again.stderr
    assert f"attaching to Slurm job {one.job_id()}" in again.stderr
    assert {attempt for attempt, _ in one.journal()} == {1}
    one.assert_trained_once()
