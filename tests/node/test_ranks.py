"""A node's processes have torchrun's variables; one that fails ends the others and is named."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from node.ranks import SHARE, cpu_share, first_cause

from .. import patience

pytestmark = pytest.mark.promise("a-trainer-of-several")

ROOT = Path(__file__).resolve().parents[2]
BEGIN = """
import json, os, signal, sys, time
from pathlib import Path
folder, rank = Path(sys.argv[-1]), int(os.environ["RANK"])
def stopped(number, frame):
    os._exit(75)  # at once: a second signal would meet an interpreter that ends
signal.signal(signal.SIGTERM, stopped)
names = "RANK LOCAL_RANK GROUP_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT GLOO_SOCKET_IFNAME".split()
(folder / f"up-{rank}").write_text(json.dumps({name: os.environ.get(name) for name in names}))
while len(list(folder.glob("up-*"))) < 2:
    time.sleep(0.01)
"""


def start(folder, script, *options):
    command = [sys.executable, "-m", "node.ranks", "--nodes=1", "--node=0", "--each=2", "--at=127.0.0.1:29400"]
    command += [*options, f"--report={folder / 'report.json'}", "-c", BEGIN + script, str(folder)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)


def test_processes_have_torchruns_variables_and_all_succeed(tmp_path):
    job = start(tmp_path, "")
    patience.ended(job, 60)
    assert job.returncode == 0 and not (tmp_path / "report.json").exists()
    seen = [json.loads((tmp_path / f"up-{rank}").read_text()) for rank in range(2)]
    for rank, env in enumerate(seen):
        assert (env["RANK"], env["LOCAL_RANK"], env["GROUP_RANK"]) == (str(rank), str(rank), "0")
        assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) == ("2", "2")
        assert (env["MASTER_ADDR"], env["MASTER_PORT"], env["GLOO_SOCKET_IFNAME"]) == ("127.0.0.1", "29400", "lo")


def test_a_killed_process_ends_the_others_and_is_named(tmp_path):
    job = start(tmp_path, "if rank == 1:\n    os.kill(os.getpid(), 9)\ntime.sleep(600)")
    _, stderr = patience.ended(job, 60)
    report = json.loads((tmp_path / "report.json").read_text())
    assert job.returncode == 128 + 9
    assert (report["rank"], report["code"]) == (1, -9)
    assert report["what"].startswith("rank 1 of 2 on ") and report["what"].endswith(" was killed by SIGKILL")
    assert f"{report['what']}; the other processes are ended" in stderr


@pytest.mark.full("libraries of a stack")
def test_a_user_error_ends_a_process_that_ignores_signals(tmp_path):
    """It waits for the other in a library that no signal interrupts: it is killed."""
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    job = start(tmp_path, f"if rank == 0:\n    sys.exit(2)\n{deaf}time.sleep(600)\n(folder / 'outlived').touch()")
    patience.ended(job, 60)
    assert job.returncode == 2 and not (tmp_path / "outlived").exists()
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["rank"], report["code"]) == (0, 2)


def test_a_stop_reaches_all_processes_and_is_not_a_failure(tmp_path):
    job = start(tmp_path, "time.sleep(600)")
    patience.until(lambda: len(list(tmp_path.glob("up-*"))) == 2, job.pid)
    job.send_signal(signal.SIGTERM)
    _, stderr = patience.ended(job, 60)
    assert job.returncode == 75 and not (tmp_path / "report.json").exists() and stderr == ""


def test_the_first_cause_of_several_exits():
    assert first_cause({0: 1, 1: -9, 2: 2}) == 1
    assert first_cause({0: 1, 1: 75, 2: 2}) == 2
    assert first_cause({0: 75, 3: 1, 2: 1}) == 2


@pytest.mark.parametrize(
    ("variables", "share"),
    [
        ({}, (0, 1, 1)),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, (1, 1, 2)),
        # Three processes beside a server of two GPUs: a fifth of the CPUs for each, two fifths for the server.
        ({SHARE: "0,3,5", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "3"}, (2, 1, 5)),
        ({SHARE: "3,2,5"}, (3, 2, 5)),
    ],
)
def test_a_process_has_its_share_of_a_nodes_cpus(monkeypatch, variables, share):
    for name in (SHARE, "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cpu_share() == share
