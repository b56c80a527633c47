"""A release of verl of the tests' own, one object: planned, checked, read, without a word of it in any other file."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from common.errors import UserError
from tests.preflight import plans
from trainers.protocol import StackFacts
from trainers.verl import releases as of_verl
from trainers.verl.driver import composed
from trainers.verl.driver.composed import job_overrides
from trainers.verl.releases.v0_9_1 import V0_9_1
from workflow.config.plan import plan_runs
from workflow.config.reading import parse_config
from workflow.preflight import preflight

V9_0_0 = replace(V0_9_1, version="9.0.0", reward_key="score.function", cpus_with_gpu=5)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """It is there as long as a test lasts."""
    monkeypatch.setitem(of_verl._RELEASES, V9_0_0.version, V9_0_0)


def _preflighted(**words):
    config = parse_config(plans.EQUAL | {"workload": plans.EQUAL["workload"] | words})
    plan = plan_runs(config, lambda stack: StackFacts("verl", stack.rpartition("-")[2], "cuda", "9.0.0", "0" * 12))
    return plan, preflight(plan, stack_of=lambda stack: replace(plans._told(stack), trainer_version="9.0.0"))


def test_it_is_planned_and_checked_by_the_rules_of_all_releases():
    plan, found = _preflighted(num_generations=1)
    spec = plan.runs["vllm-s0"].spec
    # 8 GPUs, the transfer queue's 8 units, one for the controller.
    assert (spec["trainer_args"]["version"], spec["least_cpus"]) == ("9.0.0", 5 * 8 + 8 + 1)
    by_code = {one.code: one for one in found.findings}
    assert by_code["one-completion"].source.startswith("verl 9.0.0, ")


def test_its_job_knows_its_keys():
    paths = dict.fromkeys(("train_files", "val_files", "model", "checkpoints", "project", "run_id"), "x")
    assert "score.function.path=r" in job_overrides("9.0.0", **paths, reward_file="r")


@pytest.mark.parametrize("kind", ["RuntimeError", "NotImplementedError"])
def test_a_refusal_that_verl_raises_itself_is_told_and_what_a_machine_lacks_is_not(kind, monkeypatch, capsys):
    """Two kinds of RuntimeError: verl's own says what is wrong, another package's that this machine lacks something."""

    def check(file):
        scope = {}
        exec(compile(f"def validate(config):\n    raise {kind}('set use_remove_padding')", file, "exec"), scope)
        monkeypatch.setitem(of_verl._RELEASES, "9.0.0", replace(V9_0_0, validate=scope["validate"]))
        composed.check("9.0.0", {})

    monkeypatch.setattr(composed, "_config_folder", lambda version: Path("/verl/trainer/config"))
    monkeypatch.setitem(sys.modules, "omegaconf", SimpleNamespace(OmegaConf=SimpleNamespace(create=dict)))
    refusal = r"would not run with these settings: set use_remove_padding \(.*verl/actor.py:2"
    with pytest.raises(UserError, match=refusal):
        check("/verl/actor.py")
    check("/torch/cuda.py")
    assert "validates its settings only on the node" in capsys.readouterr().err
