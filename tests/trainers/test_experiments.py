"""The experiments that are shipped for verl, composed with the real verl of their stacks."""

import json
from pathlib import Path

import pytest
import yaml

from common.dotted import flatten
from tests.trainers.verl import composed_defaults
from trainers.verl.driver.overrides import override
from workflow.config.plan import plan_runs, stack_facts
from workflow.config.reading import parse_config

from .composed import composed_by

ROOT = Path(__file__).resolve().parents[2]
ROLLOUT = "actor_rollout_ref.rollout"
# The article's script, and what a workload and an arm do not give of it, and why.
ARTICLE = json.loads(Path(__file__).with_name("article.json").read_text())


def shipped():
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
def composed(tmp_path_factory):
    """What verl makes of each, and what is refused."""
    folder, results = tmp_path_factory.mktemp("experiments"), {}
    for version in ("0.4.1", "0.9.1"):
        cases = {name: overrides for name, (its, overrides) in shipped().items() if its == version}
        cases |= {version: []}  # verl's own configuration
        cases |= {"script": [override(*one) for one in ARTICLE["script"].items()]} if version == "0.4.1" else {}
        made = composed_by(version, cases, folder)
        results.update({name: made[name] for name in cases})
        results[f"references of {version}"] = made["references"]
    return results


@pytest.mark.full("both releases of verl compose")
@pytest.mark.parametrize("name", shipped())
def test_verl_takes_the_settings(name, composed):
    assert composed[name]["error"] is None


@pytest.mark.full("both releases of verl compose")
@pytest.mark.parametrize("arm", ["vllm", "sglang"])
def test_camino_2025_is_the_articles_script_and_nothing_else(arm, composed):
    """The whole composed configuration, and not only what the script names: no default of ours slips in."""
    ours, theirs = (flatten(composed[case]["config"]) for case in (f"camino-2025/{arm}", "script"))
    differ = {key for key in ours.keys() | theirs.keys() if ours.get(key, "missing") != theirs.get(key, "missing")}
    # What follows the model's path; a run's length, its seed, and that old checkpoints are deleted.
    ourselves = {"critic.model.tokenizer_path", "reward_model.model.input_tokenizer", "trainer.total_training_steps"}
    ourselves |= {"data.seed", "trainer.max_actor_ckpt_to_keep", "trainer.logger", f"{ROLLOUT}.name"}
    assert differ - set(ARTICLE["elsewhere"]) <= ourselves
    assert ours[f"{ROLLOUT}.name"] == arm


@pytest.mark.full("both releases of verl compose")
def test_the_ablation_varies_graphs_and_blocking_and_nothing_else(composed):
    arms = {
        name.split("/")[1]: flatten(one["config"]) for name, one in composed.items() if name.startswith("camino-2025-a")
    }
    vllm = {name: settings for name, settings in arms.items() if name.startswith("vllm")}
    assert len(vllm) == 4
    varied = {key for key in vllm["vllm-eager"] if len({repr(one[key]) for one in vllm.values()}) > 1}
    assert varied == {"actor_rollout_ref.rollout.enforce_eager"}
    assert arms["sglang"] == arms["sglang-blocking"]


@pytest.mark.full("both releases of verl compose")
@pytest.mark.parametrize("version", ["0.4.1", "0.9.1"])
def test_the_table_of_verls_own_settings_is_what_verl_composes(version, composed):
    assert composed_defaults.defaults(version) == flatten(composed[version]["config"])
    assert composed_defaults.references(version) == composed[f"references of {version}"]
