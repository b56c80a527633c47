"""The experiments that are shipped for verl, composed with the real verl of their stacks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.verl.environments import build
from workflow import stacks
from workflow.jobs.verl_config import flat
from workflow.plan import plan_runs
from workflow.reading import parse_config
from workflow.trainers import StackFacts

from .article import ELSEWHERE, SCRIPT

ROOT = Path(__file__).resolve().parents[2]


def stack_facts(name: str) -> StackFacts:
    stack = stacks.load_stack(name)
    return StackFacts(stack.trainer, stack.engine, stack.accelerator, stack.trainer_version, stacks.lock_id(name))


def shipped() -> dict[str, tuple[str, list[str]]]:
    """`<experiment>/<run>` -> verl's version and the run's overrides, of the first seed."""
    found = {}
    for file in sorted((ROOT / "experiments").glob("*.yaml")):
        config = parse_config(yaml.safe_load(file.read_text(encoding="utf-8")))
        for run in plan_runs(config, stack_facts).runs.values():
            if run.spec["trainer"] == "verl" and run.spec["seed"] == config.seeds[0]:
                args = run.spec["trainer_args"]
                found[f"{file.stem}/{run.spec['arm']}"] = (args["version"], args["overrides"])
    return found


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What verl makes of each, what our checks and what its own validation say."""
    folder, results = tmp_path_factory.mktemp("experiments"), {}
    for version in ("0.4.1", "0.9.1"):
        cases = {name: overrides for name, (its, overrides) in shipped().items() if its == version}
        given, out = folder / f"{version}.json", folder / f"{version}-composed.json"
        given.write_text(json.dumps(cases), encoding="utf-8")
        done = subprocess.run(
            [str(build(version)), "tests/trainers/composing.py", version, str(given), str(out)],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": "", "HOME": str(folder)},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        results.update({name: one for name, one in json.loads(out.read_text("utf-8")).items() if name in cases})
    return results


@pytest.mark.parametrize("name", shipped())
def test_verl_takes_the_settings(name: str, composed: dict[str, dict[str, Any]]) -> None:
    assert (composed[name]["error"], composed[name]["verl"]) == (None, None)


@pytest.mark.parametrize("arm", ["vllm", "sglang"])
def test_camino_2025_is_the_articles_script(arm: str, composed: dict[str, dict[str, Any]]) -> None:
    got = flat(composed[f"camino-2025/{arm}"]["config"])
    missed = {key for key, value in SCRIPT.items() if got.get(key.lstrip("+")) != value}
    named = set(ELSEWHERE) | {"trainer.logger", "actor_rollout_ref.rollout.name"}
    assert missed <= named
    assert got["actor_rollout_ref.rollout.name"] == arm


def test_the_ablation_varies_graphs_and_blocking_and_nothing_else(composed: dict[str, dict[str, Any]]) -> None:
    arms = {
        name.split("/")[1]: flat(one["config"]) for name, one in composed.items() if name.startswith("camino-2025-a")
    }
    vllm = {name: settings for name, settings in arms.items() if name.startswith("vllm")}
    assert len(vllm) == 4
    varied = {key for key in vllm["vllm-eager"] if len({repr(one[key]) for one in vllm.values()}) > 1}
    assert varied == {"actor_rollout_ref.rollout.enforce_eager"}
    assert arms["sglang"] == arms["sglang-blocking"]
