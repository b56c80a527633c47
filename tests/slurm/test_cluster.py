"""The tests' own Slurm leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from ..patience import until
from .cluster import Cluster, processes

ROOT = Path(__file__).resolve().parents[2]


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
    until(lambda: not folder.exists() and not processes(folder, Cluster(folder).name), os.getpid(), 30)
