"""A cluster that lies, falters and loses hold of its jobs, where it takes more than a scenario to see (scenarios.toml).

What Slurm's commands say is falsified by scripts in front of the true ones, what the file system and the clock say by a
preloaded library (faults.c).
"""

import os
import pickle
import shutil
import subprocess
import sys
import time

import pytest
import yaml

from ..job.run_bench import ROOT
from ..runs.make_runs import MadeRun, write
from .runs import lose_the_node

SLOW = {"STAND_IN_STEP_S": "0.5"}


@pytest.mark.promise("a-life-on-a", "invariant-2")
def test_a_life_on_a_node_that_slurm_gave_up_ends_when_the_next_one_begins(run):
    # The given-up life trains on for as long as the next one takes to begin.
    one = run(steps=60, env=SLOW | {"STAND_IN_SAVE": "2", "STAND_IN_WAIT": "50"})
    head = one.start(3)
    node = lose_the_node(one)
    one.release()
    one.wait(lambda: len(one.attempts()) == 2)
    assert one.attempts()[0]["kind"] == "superseded"
    begun, ended = ((one.run / name).stat().st_mtime for name in ("life.json", "attempts/1/exit.json"))
    assert 0 < ended - begun < 60
    one.finish(head)
    assert one.read("attempts", "2", "attempt.json")["slurm"]["nodes"] != node
    assert one.submitted() == 1


class _Evil:
    """A pickle that runs a program when it is loaded."""

    def __init__(self, file):
        self._file = file

    def __reduce__(self):
        return os.system, (f"touch {self._file}",)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write another user's file")
def test_a_folder_that_another_user_has_put_in_place_of_the_experiments_is_not_obeyed(run, tmp_path):
    """As in a group-writable folder of results, while the job waits in the queue."""
    one = run(steps=40, env=SLOW)
    head = one.start(2)
    experiment = one.run.parents[1]
    one.cluster.run("scontrol", "requeue", one.job_id())
    one.wait(lambda: any(job["state"] == "PENDING" for job in one.jobs()))
    mine = experiment.rename(f"{experiment}-mine")
    shutil.copytree(mine, experiment, ignore=shutil.ignore_patterns(".submission_file*"))  # submitit renames it
    for file in experiment.rglob("*_submitted.pkl"):
        file.write_bytes(pickle.dumps(_Evil(tmp_path / "ran")))
    for path in (experiment, *experiment.rglob("*")):
        os.chown(path, 65534, -1)
    output = experiment / "runs" / one.run_id / "submitit" / "1"
    one.release()
    one.wait(lambda: any("belongs to" in file.read_text() for file in output.glob("*.out")))
    one.wait(lambda: not one.jobs())
    said = one.ended(head)
    assert head.returncode == 1 and "belongs to" in said and "Traceback" not in said
    assert not (tmp_path / "ran").exists() and {attempt for attempt, _ in one.journal()} <= {1}


# Files that cannot be read ----------------------------------------------------------------------------------------


@pytest.mark.promise("status-and-check-wait")
@pytest.mark.parametrize("words", [["status", "--experiment", "mine"], ["check", str(ROOT / "config.yaml")]])
@pytest.mark.parametrize("kind", ["116 ", "5 !"])
def test_commands_that_look_wait_for_files_that_cannot_be_read(faults, tmp_path, words, kind):
    name = yaml.safe_load((ROOT / "config.yaml").read_text())["experiment"] if words[0] == "check" else "mine"
    made = MadeRun(tmp_path / "results" / name, "vllm-s0").job(cluster="local").attempt(steps=4)
    write(made.paths.experiment / "plan.json", {"runs": ["vllm-s0"], "fingerprints": {"vllm-s0": made.fingerprint}})
    (tmp_path / "faults").write_text("".join(f"{kind}{part}\n" for part in ("/plan.json", "runs/vllm-s0/order.json")))
    env = {**os.environ, "LD_PRELOAD": str(faults), "RB_FAULT_FILE": str(tmp_path / "faults"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "workflow.cli", *words]
    with (tmp_path / "said").open("w") as said:
        looks = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=said, stderr=said)
        while looks.poll() is None and "trying again" not in (tmp_path / "said").read_text():
            time.sleep(0.1)
        (tmp_path / "faults").unlink()
        looks.wait()
    told = (tmp_path / "said").read_text()
    assert looks.returncode == 0 and told.count("trying again for 30 s") == 1, told
    assert " vllm-s0 " in f" {told.partition('trying again')[2]}".replace("\n", " ")
