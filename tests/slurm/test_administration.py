"""What administrators and other users do to a cluster while runs wait and train: none of it costs a run."""

import contextlib
import os
import subprocess
import sys
import time

import pytest

from ..job.run_bench import ROOT
from .runs import status

SLOW = {"STAND_IN_STEP_S": "0.5"}
OTHER_USER = "nobody"


@contextlib.contextmanager
def read_only(base, there):
    """A folder as one that was mounted anew, read-only: what is open stays so, nothing else is written.

    A mount in use cannot be made read-only, so one that nobody knows of is, and what is bound from it stays so.
    """
    unused = base.with_name("read-only")
    unused.mkdir()
    subprocess.run(["mount", "--bind", str(base), str(unused)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(unused)], check=True)
        subprocess.run(["mount", "--bind", str(unused), str(there)], check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", "-l", str(there)], check=True)
    finally:
        subprocess.run(["umount", "-l", str(unused)], check=True)


@pytest.mark.promise("results-that-turn-read")
@pytest.mark.parametrize("requeued", [False, True])
def test_results_that_turn_read_only_for_a_while_cost_no_run(run, tmp_path, requeued):
    base, there = tmp_path / "base", tmp_path / "there"
    for folder in (base, there):
        folder.mkdir()
    if subprocess.run(["mount", "--bind", str(base), str(there)], check=False).returncode:
        pytest.skip("needs the right to mount")
    try:
        one = run(folder=there, steps=10, env={"STAND_IN_WAIT": "2"})
        head = one.start(2)
        with read_only(base, there):
            if requeued:
                one.cluster.run("scontrol", "requeue", one.job_id())
                one.wait(lambda: not one.processes())
                one.release()
            time.sleep(10)
            assert head.poll() is None, one.said(head)
            assert "Traceback" not in status(one)
        one.go()
        said = one.finish(head)
        assert "Traceback" not in said and said.count("trying again for") <= 1
        assert len(one.attempts()) == 1 + requeued
    finally:
        one.end()
        subprocess.run(["umount", "-l", str(there)], check=True)


@pytest.mark.promise("with-hundreds-of-arrays")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can submit for another user")
def test_arrays_and_other_users_jobs_by_the_hundred_neither_slow_nor_mislead_a_look(run):
    one = run(steps=10, env=SLOW)
    array = ("sbatch", "-p", "cpu", "--array=0-399%20", "-n1", "--mem=1", f"-J{one.run_id}.array", "--wrap=sleep 600")
    theirs = ("sbatch", "-p", "cpu", "--hold", "-n1", f"--uid={OTHER_USER}", "--chdir=/", "--wrap=sleep 30")
    assert one.cluster.run(*array).returncode == 0
    try:
        for _ in range(200):
            answer = one.cluster.run(*theirs, "--output=/dev/null")
            assert answer.returncode == 0, answer.stderr
        head = one.start(3)
        code = (
            "import sys, time; from workflow.slurm import commands as slurm; began = time.process_time()\n"
            "jobs = slurm.queue()\n"
            "print(len(jobs), sum(job.name == sys.argv[1] for job in jobs.values()), time.process_time() - began)"
        )
        words = [sys.executable, "-c", code, one.read("order.json")["name"]]
        told = subprocess.run(words, env=one.head_env, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        one.finish(head)
    finally:
        one.cluster.run("scancel", "--user", OTHER_USER)
    count, ours, cpu_s = map(float, told.split())
    assert ours == 1 and count < 100 and cpu_s < 0.2
