"""ms-swift's schedulers, loops and lengths, told before the queue."""

from pathlib import Path

import pytest
import yaml

from common.errors import UserError
from trainers.swift.trainer import SCHEDULERS
from workflow.config.plan import plan_runs, stack_facts
from workflow.config.reading import parse_config
from workflow.preflight import preflight
from workflow.preflight.cases import cases_of, load_stack_pins

ROOT = Path(__file__).resolve().parents[2]
GPU = ROOT / "experiments" / "swift-dapo.yaml"
CPU = ROOT / "tests" / "trainers" / "trainers-cpu.yaml"
TURNS = {"multi_turn_scheduler": "math_tip_trick", "max_turns": 2}


def case_with(options, experiment=GPU, engine="vllm"):
    """An arm of ms-swift, and its findings by code."""
    raw = yaml.safe_load(experiment.read_text(encoding="utf-8"))
    stack = f"swift-{engine}" if experiment == GPU else f"swift-{engine}-cpu"
    arm = {"trainer": "swift", "engine": engine, "stack": stack}
    raw |= {"baseline": "one", "arms": {"one": arm | {"options": options}}, "shared": {}}
    raw["workload"]["model"] = {"source": "Qwen/Qwen2.5-1.5B-Instruct", "revision": "0" * 40}
    plan = plan_runs(parse_config(raw), stack_facts)
    (case,) = cases_of(plan, None, load_stack_pins)
    return case, {finding.code: finding for finding in preflight(plan).findings}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_that_the_driver_does_not_support_is_refused_by_the_plan(name):
    with pytest.raises(UserError, match=f"multi_turn_scheduler cannot be {name} here"):
        case_with(TURNS | {"multi_turn_scheduler": name}, CPU)


def test_turns_are_possible_as_long_as_the_model_has_positions_for_them():
    few, many = (case_with(TURNS | {"max_turns": turns}) for turns in (2, 40))
    assert "context" not in few[1] and many[1]["context"].level == "impossible"


def test_turns_of_transformers_have_no_mismatch_and_that_is_said():
    found = [case_with(TURNS, CPU, engine)[1] for engine in ("transformers", "vllm")]
    assert ["mismatch-not-logged" in one for one in found] == [True, False]


def test_responses_of_the_next_step_are_told_of():
    """On eight GPUs, as the experiment has it."""
    raw = yaml.safe_load((ROOT / "experiments" / "swift-colocate-server-async.yaml").read_text(encoding="utf-8"))
    raw["workload"]["model"] = {"source": "Qwen/Qwen2.5-1.5B-Instruct", "revision": "0" * 40}
    plan = plan_runs(parse_config(raw), stack_facts)
    found = {finding.code: finding for finding in preflight(plan).findings}
    assert not [one for one in found.values() if one.level == "impossible"]
    assert found["trainer-mode"].arms == ("async",)
    colocate, server, _ = cases_of(plan, None, load_stack_pins)
    assert (colocate.per_replica, server.per_replica) == (14, 112)


def test_of_four_arms_those_of_one_trainer_meet_on_equal_terms():
    raw = yaml.safe_load(CPU.read_text(encoding="utf-8"))
    found = preflight(plan_runs(parse_config(raw), stack_facts)).findings
    unequal = {finding.code: finding for finding in found if finding.level == "unequal"}
    assert {code: one.sides for code, one in unequal.items()} == {
        "trainers": (("trl", "trl-vllm"), ("swift", "swift-vllm"))
    }
    for one in unequal.values():
        assert one.concerns(("trl", "swift-vllm")) and not one.concerns(("swift", "swift-vllm"))
