"""Recorded and planned files fit their contracts."""

import json
from pathlib import Path
from typing import NotRequired, get_origin, get_type_hints

import pytest
import yaml

from common.contracts import AttemptFile, DoneFile, ImportFacts, MetricsLine, PlanFile, SpecFile, fits, read_file
from common.errors import UserError
from workflow.config.plan import load_plan

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "tests" / "goldens" / "data" / "recorded" / "experiment" / "runs"


def problems(kind, held):
    """The keys that a file lacks, has beside its contract, or holds as another type."""
    hints = get_type_hints(kind)
    full = get_type_hints(kind, include_extras=True)
    lacks = [f"lacks {key}" for key in hints.keys() - held.keys() if get_origin(full[key]) is not NotRequired]
    more = [f"has {key}" for key in held.keys() - hints.keys()]
    wrong = [f"{key} is {value!r}" for key, value in held.items() if key in hints and not fits(value, hints[key])]
    return lacks + more + wrong


@pytest.mark.parametrize(
    ("kind", "file"),
    [(SpecFile, "spec.json"), (AttemptFile, "attempts/1/attempt.json"), (DoneFile, "attempts/1/done.json")],
)
@pytest.mark.parametrize("run", ["vllm-s0", "transformers-s1"])
def test_recorded_runs_fit_their_contracts(kind, file, run):
    assert not problems(kind, json.loads((RECORDED / run / file).read_text()))


def test_recorded_steps_fit_their_contract():
    lines = (RECORDED / "vllm-s0" / "attempts" / "1" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 6 and not [one for line in lines for one in problems(MetricsLine, json.loads(line))]


@pytest.mark.parametrize("name", ["config.yaml", "experiments/camino-2025-published.yaml"])
def test_a_plan_fits_its_contracts(name):
    plan = load_plan(yaml.safe_load((ROOT / name).read_text()))
    assert not problems(PlanFile, json.loads(json.dumps(plan.as_json())))
    for run in plan.all_runs.values():
        assert not problems(SpecFile, run.spec)
        assert not problems(ImportFacts, run.spec["import"]) if "import" in run.spec else run.spec["job_module"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "runs must be list of text (got nothing); the plan makes it"),
        ({"runs": ["a", 1]}, "runs must be list of text (got ['a', 1]); the plan makes it"),
        ({"runs": {}}, "runs must be list of text (got {}); the plan makes it"),
    ],
)
def test_a_reader_rejects_missing_keys(tmp_path, content, message):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match="runs must be") as error:
        read_file(PlanFile, file, "the plan", ("runs",))
    assert message in str(error.value)
    assert read_file(PlanFile, file, "the plan") == content
