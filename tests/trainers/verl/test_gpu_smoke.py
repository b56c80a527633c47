"""Does the smoke test for GPUs get as far as one? Its settings, and the CPUs that `make gpu-smoke` gives it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.trainers.verl.runs import answer_of
from tests.warm import WarmPython
from workflow.config.plan import load_plan

pytestmark = pytest.mark.full("the smoke test on a CPU")

ROOT = Path(__file__).resolve().parents[3]
RESERVED = """
import json, sys
from omegaconf import OmegaConf
from node.exit_codes import UserError
from trainers.verl.driver.composed import check, compose
from trainers.verl.driver.in_ray import require_cpus
args = json.load(sys.stdin)
config = compose(args["version"], args["overrides"])
check(args["version"], config)
resolved = OmegaConf.create(config)
fitting = None
for cpus in range(40, 0, -1):
    try:
        require_cpus(resolved, cpus)
    except UserError:
        break
    fitting = cpus
print("\\n" + json.dumps(fitting))
"""


def test_it_fits_a_small_machine(warm_verl: Callable[[str], WarmPython]) -> None:
    plan = load_plan(yaml.safe_load((ROOT / "experiments" / "gpu-smoke.yaml").read_text(encoding="utf-8")))
    for run in plan.runs.values():
        assert answer_of(warm_verl("0.9.1"), RESERVED, run.spec["trainer_args"]) == 5
