"""The configuration: what is accepted, and what each mistake is told."""

from __future__ import annotations

import copy
import difflib
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis.errors import UserError
from workflow.config import parse_config
from workflow.plan import load_plan
from workflow.schema import REFERENCE_FILE, SCHEMA_FILE, config_schema, reference_page

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def raw() -> dict[str, Any]:
    """The default configuration as YAML gives it."""
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))
    return loaded


def changed(raw: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one dotted path set."""
    result = copy.deepcopy(raw)
    at = result
    *way, last = path.split(".")
    for key in way:
        at = at[key]
    at[last] = value
    return result


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("basline", "vllm", "basline is not a known key (did you mean baseline?)"),
        ("workload.max_respons_length", 3, "did you mean max_response_length?"),
        ("workload.data.promt_column", "q", "did you mean prompt_column?"),
        ("arms.vllm.option", {}, "arms.vllm.option is not a known key (did you mean options?)"),
        ("workload.steps", "ten", "workload.steps: must be a valid integer (got 'ten')"),
        ("workload.steps", 0, "workload.steps: must be greater than or equal to 1 (got 0)"),
        ("workload.temperature", float("nan"), "workload.temperature"),
        ("workload", 3, "workload: must be"),
        ("workload.batch_size", 30, "multiple of num_generations (got 30 and 8; try 32)"),
        ("workload.micro_batch_size", 12, "must divide batch_size (got 12 and 32; try 4)"),
        (
            "workload.rewards",
            [{"name": "acuracy"}],
            "workload.rewards.0.name: must be 'accuracy', 'format' or 'length'",
        ),
        ("workload.rewards", [], "workload.rewards"),
        ("workload.num_generations", 1, "workload.num_generations must be at least 2 with trainer trl"),
        ("arms.vllm.options", {"logging_steps": 5}, "options.logging_steps of an arm is not free"),
        ("baseline", "vlm", "baseline must be one of the arms: transformers, vllm (got 'vlm') (did you mean vllm?)"),
        ("arms.vllm.engine", "sglang", "arms.vllm.engine (of trainer trl) must be one of: transformers, vllm"),
        ("arms.vllm.trainer", "trll", "arms.vllm.trainer must be one of: trl (got 'trll') (did you mean trl?)"),
        ("arms.vllm.stack", "trl-transformers-cpu", "is built for trainer trl with engine transformers"),
        ("arms.vllm.stack", "trl-vlm-cpu", "trl-vllm-cpu"),
        ("arms.vllm.env", {"WANDB_API_KEY": "x"}, "WANDB_API_KEY looks like a secret"),
        ("arms.vllm.options", {"temperature": 2.0}, "options.temperature of an arm is not free"),
        ("arms.vllm.options", {"use_vllm": False}, "options.use_vllm of an arm is not free"),
        ("seeds", [1, 1], "seeds must differ"),
        ("seeds", [], "seeds"),
        ("sweep", {"workload.temprature": [1]}, "has no 'temprature' (did you mean temperature?)"),
        ("sweep", {"workload.temperature": [1, "hot"]}, "sweep with {'workload.temperature': 'hot'}"),
        ("sweep", {"workload.temperature": []}, "sweep.workload.temperature"),
        ("sweep", {"workload.temperature": [1, 1]}, "sweep lists the same value twice"),
        ("sweep", {"arms.vllm.engine": ["vllm"]}, "arms.<arm>.options.<setting>"),
        ("workload.data.source", "builtin:arithmetik", "source must be builtin:arithmetic"),
        ("workload.data.source", "openai/gsm8k", "needs a revision"),
        ("workload.data.source", "./no/such.jsonl", "no such file or folder: ./no/such.jsonl"),
        ("workload.data.source", "./readme.txt", "must be a local .jsonl, .json, .parquet file"),
        ("workload.model.source", "./no/such/model", "workload.model.source: no such file or folder"),
        ("experiment", "../elsewhere", "experiment may hold letters"),
    ],
)
def test_a_mistake_is_told_in_one_message(raw: dict[str, Any], path: str, value: Any, says: str) -> None:
    with pytest.raises(UserError) as caught:
        load_plan(changed(raw, path, value))
    assert says in str(caught.value)


def test_identical_arms_are_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="arms transformers and again are identical"):
        parse_config(changed(raw, "arms.again", raw["arms"]["transformers"]))


def test_all_mistakes_are_listed_at_once(raw: dict[str, Any]) -> None:
    wrong = changed(changed(raw, "workload.steps", "x"), "basline", 1)
    with pytest.raises(UserError) as caught:
        parse_config(wrong)
    assert "workload.steps" in str(caught.value)
    assert "basline" in str(caught.value)


def test_yaml_floats_without_a_dot_are_numbers(raw: dict[str, Any]) -> None:
    assert parse_config(changed(raw, "workload.learning_rate", "1e-6")).workload.learning_rate == 1e-6


def test_the_configuration_is_frozen(raw: dict[str, Any]) -> None:
    config = parse_config(raw)
    with pytest.raises(ValueError, match="frozen"):
        config.workload.steps = 3  # type: ignore[misc]


@pytest.mark.parametrize("file", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_shipped_experiment_loads(file: Path) -> None:
    shipped = yaml.safe_load(file.read_text(encoding="utf-8"))
    data = shipped["workload"]["data"]
    if data["source"].endswith(".jsonl"):
        data["source"] = "builtin:arithmetic"  # the user's own file is not in the repository
    assert load_plan(shipped).runs


@pytest.mark.parametrize(("file", "content"), [(SCHEMA_FILE, config_schema()), (REFERENCE_FILE, reference_page())])
def test_generated_files_are_fresh(file: str, content: str) -> None:
    committed = (ROOT / file).read_text(encoding="utf-8")
    diff = "\n".join(
        difflib.unified_diff(committed.splitlines(), content.splitlines(), "committed", "now", lineterm="")
    )
    assert not diff, f"{file} is stale; run `make schema`:\n{diff}"


def test_every_field_is_documented() -> None:
    import json

    schema = json.loads(config_schema())
    for section in [schema, *schema["$defs"].values()]:
        for name, field in section.get("properties", {}).items():
            assert field.get("description"), f"{name} has no docstring"
