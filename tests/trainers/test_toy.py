"""A trainer and an engine of the tests' own, each one folder: planned, checked, trained, collected, read, reported."""

import json
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import engines
from analysis.collect import main as collect
from analysis.imports.__main__ import main as import_run
from analysis.report.__main__ import main as report
from common.errors import UserError
from common.files import file_sha256, tree_sha256
from node.dataset import arithmetic_rows
from node.inputs import _write_parquet
from tests.engines.abacus import ABACUS
from tests.patience import run as run_patiently
from tests.trainers.toy.trainer import TOY
from trainers import registry
from trainers.cases import StackPins
from trainers.protocol import Driver, LogFormat, Logs, StackFacts, Trainer
from trainers.resolve import resolved
from workflow.config.plan import plan_runs
from workflow.config.reading import parse_config
from workflow.preflight import preflight
from workflow.preflight.cases import settings_request, settings_requests

from ..programs import executable

ROOT = Path(__file__).resolve().parents[2]
TRL_LOG = ROOT / "tests" / "goldens" / "data" / "formats" / "trl-console-vllm.log"

EXPERIMENT = {
    "experiment": "toy",
    "baseline": "trl",
    "arms": {
        "toy": {"trainer": "toy", "engine": "abacus", "stack": "toy-cpu"},
        "trl": {"trainer": "trl", "engine": "vllm", "import": {"version": "1.9", "runs": [str(TRL_LOG)]}},
    },
    "workload": {
        "model": {"source": "builtin:tiny-qwen2"},
        "data": {"source": "builtin:arithmetic", "rows": 32},
        "rewards": [{"name": "length", "options": {"target": 3}}, {"name": "format"}],
        "steps": 6,
        "batch_size": 16,
        "num_generations": 4,
        "max_prompt_length": 64,
        "max_response_length": 4,
    },
    "seeds": [0],
    "warmup_steps": 1,
}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Both are there as long as a test lasts."""
    monkeypatch.setitem(registry._TRAINERS, TOY.name, TOY)
    monkeypatch.setitem(engines._ENGINES, ABACUS.name, ABACUS)


def planned(**options):
    arms = EXPERIMENT["arms"] | {"toy": EXPERIMENT["arms"]["toy"] | {"options": options}}
    return plan_runs(
        parse_config(EXPERIMENT | {"arms": arms}), lambda stack: StackFacts("toy", "abacus", "cpu", np.__version__, "0")
    )


def told(stack):
    return StackPins("cpu", np.__version__, {"numpy": np.__version__})


def test_what_describes_a_trainer_is_thirty_fields_at_most():
    parts = (Trainer, Driver, Logs, LogFormat)
    assert sum(len(fields(part)) for part in parts) <= 30


def test_it_is_planned_as_any_other():
    spec = planned(rate=0.25).runs["toy-s0"].spec
    assert spec["trainer_args"] == {"steps": 6, "group": 4, "prompts": 4, "seed": 0, "letters": 4, "rate": 0.25}
    assert (spec["job_module"], spec["ray"], spec["least_cpus"]) == ("tests.trainers.toy.driver", False, 1)
    arms = {"toy": EXPERIMENT["arms"]["toy"] | {"engine": "vllm"}}
    with pytest.raises(UserError, match=r"arms.toy.engine \(of trainer toy\) must be one of: abacus"):
        plan_runs(parse_config(EXPERIMENT | {"arms": arms, "baseline": "toy"}), lambda stack: pytest.fail())


def test_its_preflight_has_its_own_checks_and_those_of_all():
    found = preflight(planned(rate=2.0), stack_of=told)
    (own,) = [one for one in found.findings if one.code == "toy-rate"]
    assert own.what == "a rate of 2 with Abacus" and own.arms == ("toy",)
    assert {"trainers", "one-seed"} <= {one.code for one in found.findings} and not found.impossible
    assert "toy-rate" not in {one.code for one in preflight(planned(), stack_of=told).findings}


def test_its_settings_are_resolved_in_its_stack():
    (run,) = settings_requests(planned(rate=0.25)).values()
    found = resolved(settings_request(run), "tests.trainers.toy.driver")
    assert found["version"] == np.__version__ and found["settings"]["rate"] == 0.25 and "seed" not in found["settings"]
    with pytest.raises(UserError, match="the toy has no setting speed"):
        (run,) = settings_requests(planned(speed=1)).values()
        resolved(settings_request(run), "tests.trainers.toy.driver")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of the experiment's results, in which the local launcher has trained the toy."""
    folder = tmp_path_factory.mktemp("toy")
    patch = pytest.MonkeyPatch()
    patch.setattr(registry, "_TRAINERS", {**registry._TRAINERS, "toy": TOY})
    spec = planned().runs["toy-s0"].spec
    patch.undo()
    python = folder / "stack" / "env" / "bin" / "python"
    executable(python, f'exec {sys.executable} "$@"')
    (folder / "stack" / "verify.json").write_text("{}")
    results = folder / "results" / "toy"
    _write_inputs(folder)
    run = results / "runs" / "toy-s0"
    command = [sys.executable, "-m", "workflow.head.launcher", str(run), "--spec", json.dumps(spec)]
    command += ["--inputs", str(folder / "inputs.json"), "--stack", str(folder / "stack" / "verify.json")]
    command += ["--log", str(run / "launcher.log"), "--resources", "cpus_per_task=1"]
    done = run_patiently(command, 300, cwd=ROOT)
    assert done.returncode == 0, done.stderr + "".join(log.read_text() for log in run.rglob("attempts/*/log"))
    yield results


def _write_inputs(folder):
    rows = [
        {
            "data_source": "arithmetic",
            "prompt": [{"role": "user", "content": row["question"]}],
            "reward_model": {"style": "rule", "ground_truth": row["answer"]},
            "extra_info": {"index": index, "split": "train"},
        }
        for index, row in enumerate(arithmetic_rows(32, 0))
    ]
    _write_parquet(rows, folder / "data.parquet")
    (folder / "model").mkdir()
    (folder / "model" / "letters.txt").write_text("0123456789")
    data = {"path": "data.parquet", "sha256": file_sha256(folder / "data.parquet"), "rows": len(rows)}
    model = {"path": "model", "sha256": tree_sha256(folder / "model")}
    (folder / "inputs.json").write_text(json.dumps({"data": data, "model": model}))


def test_the_local_launcher_trains_it_and_it_learns(trained):
    done = json.loads((trained / "runs" / "toy-s0" / "done.json").read_text())
    assert (done["last_step"], done["versions"]["numpy"]) == (6, np.__version__)
    lines = (trained / "runs" / "toy-s0" / "attempts" / "1" / "metrics.jsonl").read_text().splitlines()
    scores = [json.loads(line)["scalars"]["toy/score"] for line in lines]
    assert len(scores) == 6 and len(set(scores)) > 1


def test_it_is_collected_read_from_its_console_and_reported_beside_trl(trained, tmp_path):
    assert collect([str(trained / "runs" / "toy-s0")]) == 0
    steps = pq.read_table(trained / "runs" / "toy-s0" / "steps.parquet").to_pandas()
    of_step = steps[(steps["step"] == 3) & (steps["kind"] == "phase")].set_index("name")["value"]
    assert {"step", "step/draw", "step/learn"} == set(of_step.index)
    assert of_step["step"] >= of_step["step/draw"] + of_step["step/learn"]

    # The same run once more, from what it printed.
    (console,) = (trained / "runs" / "toy-s0").glob("attempts/1/log")
    imported = {"trainer": "toy", "engine": "abacus", "import": {"runs": [str(console)]}}
    plan = plan_runs(
        parse_config(EXPERIMENT | {"arms": EXPERIMENT["arms"] | {"printed": imported}}),
        lambda stack: StackFacts("toy", "abacus", "cpu", np.__version__, "0"),
    )
    for run_id, run in plan.imports.items():
        folder = trained / "runs" / run_id
        folder.mkdir(exist_ok=True)
        assert import_run([json.dumps(run.spec), "--out", str(folder / "steps.parquet")]) == 0
    told_twice = pq.read_table(trained / "runs" / "printed-s0" / "steps.parquet").to_pandas()
    again = told_twice[(told_twice["step"] == 3) & (told_twice["kind"] == "phase")].set_index("name")["value"]
    assert again["step/draw"] == pytest.approx(of_step["step/draw"], abs=1e-6)

    (trained / "plan.json").write_text(json.dumps(plan.as_json()))
    found = preflight(plan, stack_of=told)
    (trained / "preflight.json").write_text(json.dumps(found.as_json()))
    assert report(["--plan", str(trained / "plan.json"), "--results", str(trained), "--out", str(tmp_path)]) == 0
    page = (tmp_path / "report.md").read_text()
    assert "toy" in page and "trl" in page and "printed" in page
    timings = (tmp_path / "tables" / "steps.csv").read_text()
    assert "timing_s/step/draw" in timings and "mean_response_length" in timings
