"""Does the smoke test for GPUs get as far as one? Its settings, and the CPUs that `make gpu-smoke` gives it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import yaml

from workflow.config.plan import load_plan

ROOT = Path(__file__).resolve().parents[3]
RESERVED = """
import json, sys
from omegaconf import OmegaConf
from node.exit_codes import UserError
from trainers.verl.driver.composed import check, compose
from trainers.verl.driver.train import require_cpus
args = json.load(sys.stdin)
config = compose(args["version"], args["overrides"])
check(args["version"], config)
fitting = None
for cpus in range(40, 0, -1):
    try:
        require_cpus(OmegaConf.create(config), cpus)
    except UserError:
        break
    fitting = cpus
print("\\n" + json.dumps(fitting))
"""


def test_it_fits_a_small_machine(verl_python: Callable[[str], Path]) -> None:
    plan = load_plan(yaml.safe_load((ROOT / "experiments" / "gpu-smoke.yaml").read_text(encoding="utf-8")))
    for run in plan.runs.values():
        done = subprocess.run(
            [str(verl_python("0.9.1")), "-W", "ignore", "-c", RESERVED],
            input=json.dumps(run.spec["trainer_args"]),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1]) == 5
