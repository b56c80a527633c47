"""What Ray starts on a node has the run-time environment of the stack: workers, and the shells that they start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from workflow.cluster.training import trainer_environment

from ..patience import ended, run
from ..preload import preloaded_library
from .test_ray import ROOT, TASK

pytestmark = pytest.mark.full("Ray's workers and preloaded libraries")

DRIVER = """
import json, os, subprocess, sys
import ray
ray.init(log_to_driver=False)
@ray.remote(num_cpus=1)
def shell(preload):
    os.environ["LD_PRELOAD"] = preload  # as SGLang does ahead of its schedulers
    return os.environ.get("LD_LIBRARY_PATH"), subprocess.run(["/bin/sh", "-c", "/bin/sh -c true"]).returncode
print(json.dumps(ray.get(shell.remote(sys.argv[1]))))
"""


def test_a_preloaded_library_loads_in_shells_of_rays_workers(tmp_path: Path) -> None:
    preload, runtime = preloaded_library(tmp_path)
    told = {"paths": {"LD_LIBRARY_PATH": [str(runtime.parent)]}, "caches": {}, "cache": "s-0", "needs": []}
    order = {
        "python": str(tmp_path / "env/bin/python"),
        "cwd": str(ROOT),
        "cpus": 2,
        "env": {},
        "spec": {"workload": {}},
    }
    place = {"SLURM_NNODES": "1", "SLURM_JOB_NODELIST": "nowhere1", "SLURM_CPUS_PER_TASK": "2", "SLURM_PROCID": "0"}
    outside = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"} | place
    for verdict, expected in (({}, [None, 127]), ({"run": told}, [str(runtime.parent), 0])):
        (tmp_path / "verify.json").write_text(json.dumps(verdict))
        env = trainer_environment(order, outside) | {"CUDA_VISIBLE_DEVICES": ""}
        with tempfile.TemporaryDirectory(prefix="rb", dir="/tmp") as base:
            folder = Path(base, "life")
            folder.mkdir()
            task = subprocess.Popen(
                [sys.executable, "-c", TASK, json.dumps({"folder": str(folder)})],
                env=env | {"TMPDIR": base},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            try:
                assert task.stdout is not None and task.stdin is not None
                said = [json.loads(task.stdout.readline()) for _ in range(3)]
                assert "ready" in said[2], said
                done = run([sys.executable, "-c", DRIVER, str(preload)], 180, env=env | said[2]["ready"])
                assert done.returncode == 0, done.stderr
                assert json.loads(done.stdout.splitlines()[-1]) == expected
            finally:
                ended(task, 120, "end\n")
