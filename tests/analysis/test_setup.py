"""What a run generated on: from its import, its resolved settings and its workload; nothing is guessed."""

from pathlib import Path

import make_results
import pytest
import yaml
from roofline_results import IMPORT, PHI, ROLLOUT, SXM, WORKLOAD
from roofline_results import trained as trained_run

from analysis.roofline.setup import setup_of
from analysis.runs import Run
from trainers.registry import tree_named

SETUPS = yaml.safe_load(Path(__file__).with_name("setups.yaml").read_text(encoding="utf-8"))
VERL, CASES = SETUPS["verl"], SETUPS["cases"]
TREES = {"trl": "trl 1.16", "replay": "replay 1", "trained": "verl 0.9.1", "imported": "verl 0.4.1"}


def setup(case):
    """The setup of a case of setups.yaml."""
    how = "imported" if "imported" in case else "trained"
    trainer = case.get("trainer", "verl")
    settings = (case[how] or {}) if how == "imported" or trainer != "verl" else VERL | case[how]
    gpus = case.get("gpus", 8 if how == "trained" else 0)
    hardware = {"gpus": SXM[:gpus] if isinstance(gpus, int) else [{"name": name} for name in gpus]}
    spec = {"trainer": trainer, "engine": case.get("engine", "vllm"), "options": {}}
    spec["trainer_args"] = {"overrides": case.get("asked", [])}
    if how == "trained":
        done = {"hardware": hardware, "resolved": {"trainer": settings, "engine": case.get("held", {})}}
        spec["workload"] = WORKLOAD | case.get("workload", {})
    else:
        done = {"imported": True, "hardware": hardware if gpus else {}, "resolved": settings}
        spec["workload"] = WORKLOAD | case["workload"] if "workload" in case else {}
        facts = case.get("import", {})
        spec["import"] = (IMPORT | facts if facts is not None else {}) | case.get("declared", {})
    tree = tree_named(case.get("tree", TREES.get(trainer, TREES[how])))
    return setup_of(Run("r", "a", 0, {}, spec, done, None, None, (1,), tree, Path("no file")))


@pytest.mark.parametrize("name", CASES)
def test_a_setup_is_what_the_run_says(name):
    case = CASES[name]
    found = setup(case)
    assert {key: getattr(found, key) for key in case.get("right", {})} == case.get("right", {})
    for key in ("unknown", "contradicted"):
        texts = getattr(found, key)
        for text, word in zip(texts, case.get(key, texts), strict=True):
            assert word in text


@pytest.mark.parametrize("path", ["model", "elsewhere"])
def test_the_prepared_models_own_file_tells_its_sizes(tmp_path, path):
    """Beside inputs.json, as its path there is relative; or where the user's own or the hub's lies."""
    inputs = tmp_path / "inputs" / "89abcdef"
    folder = inputs / "model" if path == "model" else tmp_path / path
    config = {"architectures": ["Qwen2ForCausalLM"], "hidden_size": 4096, "num_attention_heads": 32}
    config |= {"num_hidden_layers": 36, "intermediate_size": 14336, "vocab_size": 50000}
    make_results.write_json(folder / "config.json", config | {"max_position_embeddings": 8192})
    told = {"path": "model" if path == "model" else str(folder), "source": "somebody/else"}
    make_results.write_json(inputs / "inputs.json", {"model": told})
    found = setup_of(trained_run(tmp_path, [400, 600], steps=1))
    assert found.unknown == () and found.facts is not None
    assert found.facts.layers == 36 and found.facts.source == str(folder / "config.json")


@pytest.mark.parametrize(
    ("own", "declared", "name", "denied"),
    [
        ("/shared/Phi-4-reasoning-plus", PHI, PHI, False),
        ("/data/step-500", PHI, PHI, False),
        ("/hub/models--microsoft--Phi-4-reasoning-plus/snapshots/0a1b", None, PHI, False),
        ("/hub/models--Qwen--Qwen2.5-7B/snapshots/0a1b", PHI, "Qwen/Qwen2.5-7B", True),
        ("/shared/Qwen2.5-7B", PHI, "/shared/Qwen2.5-7B", True),
        ("Qwen/Qwen2.5-7B", PHI, "Qwen/Qwen2.5-7B", True),
        ("microsoft/phi-4-reasoning-plus", "/shared/Phi-4-reasoning-plus", "microsoft/phi-4-reasoning-plus", False),
        ("ours/private", "/shared/phi-4", "/shared/phi-4", False),
    ],
)
def test_a_models_folder_is_what_it_is_said_to_hold(own, declared, name, denied):
    found = setup({"imported": {"actor_rollout_ref.model.path": own}, "import": {"model": declared}})
    assert found.model == name and found.facts is not None
    assert found.contradicted == ((f"import.model is {declared}, the run itself says {own}",) if denied else ())


@pytest.mark.parametrize(
    ("loop", "place", "gpus"),
    [
        ("fully_async", "rollout", 16),
        ("one_step_off", "rollout", 16),
        ("one_step_off", ROLLOUT, 16),
        ("separate_async", ROLLOUT, 16),
        ("separate_async", "rollout", None),
        ("fully_async", "elsewhere", None),
    ],
)
def test_the_engines_own_gpus_are_the_runs(loop, place, gpus):
    pool, tree = {f"{place}.nnodes": 1, f"{place}.n_gpus_per_node": 8}, f"verl 0.9.1 {loop}"
    found = setup({"trained": pool, "tree": tree})
    assert (found.gpus, found.replicas, found.separate_engines) == (gpus, None, True)
    brought = {"imported": VERL | pool, "tree": tree}
    alone = setup(brought | {"workload": {}, "import": None})
    assert (alone.gpus, alone.nodes) == (gpus, None)
    # What is declared is of the whole run: 8 GPUs are the trainer's alone, by its own settings.
    short = setup(brought)
    assert short.gpus == gpus and "import.nodes times import.gpus_per_node is 8" in short.contradicted[0]
    whole = setup(brought | {"import": {"nodes": 2}})
    assert (whole.gpus, whole.nodes, whole.contradicted) == (16, 2, ())
