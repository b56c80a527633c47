"""Which differences make arms unequal: only those in what both tell."""

from pathlib import Path

import pytest

from analysis.fairness import fairness_verdicts
from analysis.planned import PlanRead
from analysis.runs import Run
from trainers.registry import tree_named
from trainers.reward_settings import without_code

GPU = [{"name": "NVIDIA H100 80GB HBM3", "memory_gib": 79.6}]
MACHINE = {"host": "node1", "cpu": "Some CPU", "cpus": 2, "threads": 2, "gpus": GPU, "driver": "550.1"}
DATA = {"data_sha256": "abc", "model_sha256": "def"}
WORK = {"steps": 12, "temperature": 0.9}


def plan(*arms):
    return PlanRead("case", "", arms[0], {arm: {} for arm in arms}, 0, (), {})


def run(arm, seed=0, hardware=None, inputs=None, workload=None):
    spec = {"trainer": "trl", "engine": "vllm", "workload": workload or {}}
    done = {"hardware": hardware or {}, "inputs": inputs or {}}
    tree = tree_named("trl-1.16")
    return Run(f"{arm}-{seed}", arm, seed, {}, spec, done, None, None, (1,), tree, Path("no file"))


def told(*runs):
    arms = list(dict.fromkeys(r.arm for r in runs))
    return [v.text for v in fairness_verdicts(runs, plan(*arms))]


@pytest.mark.parametrize(
    "imported", [run("b"), run("b", hardware={"cpus": 2, "gpus": GPU}, workload={"temperature": 0.9})]
)
def test_what_an_arm_does_not_tell_is_no_difference(imported):
    assert told(run("a", hardware=MACHINE, inputs=DATA, workload=WORK), imported) == []


def test_arms_that_tell_are_compared_and_only_they_are_named():
    other = MACHINE | {"gpus": [], "threads": 8}
    runs = [
        run("a", hardware=MACHINE, inputs=DATA, workload=WORK),
        run("unknown"),
        run("b", hardware=other, inputs=DATA | {"data_sha256": "123"}, workload=WORK | {"steps": 99}),
    ]
    found = told(*runs)
    assert len(found) == 4 and not any("unknown" in text for text in found)
    assert any("threads (a: 2; b: 8)" in text for text in found) and any("; b: [])" in text for text in found)
    assert any("training data (a: abc; b: 123)" in text for text in found)
    assert any("workload.steps (a: 12; b: 99)" in text for text in found)


def test_a_users_reward_shows_its_hash_and_not_its_text():
    own = {"source": "mine.py", "function": "f", "sha256": "ab", "code": "def f(completions): ..."}
    shown = without_code({"steps": 2, "rewards": [{"name": "format"}, own]})
    assert shown == {
        "steps": 2,
        "rewards": [{"name": "format"}, {"source": "mine.py", "function": "f", "sha256": "ab"}],
    }
    assert without_code({"steps": 2}) == {"steps": 2}
