"""Imported arms: what may be said of them, which runs they mean, and what Snakemake does with them."""

import copy
import json
import os
from pathlib import Path

import pandas as pd
import pytest
import yaml

from common.errors import UserError
from workflow.cli import main
from workflow.config.plan import load_plan, plan_runs, stack_facts
from workflow.config.reading import parse_config

from .importing import run_snakemake
from .two_arms import two_arms

RAW = two_arms()
ROWS = yaml.safe_load(Path(__file__).with_name("imports.yaml").read_text(encoding="utf-8"))
GOOD = "step:1 - timing_s/gen:1.500 - timing_s/step:2.000\n"
# The least that compares two logs.
LOGS = {
    "experiment": "logs",
    "baseline": "vllm",
    "arms": {
        "vllm": {"trainer": "verl", "engine": "vllm", "import": "vllm.log"},
        "sglang": {"trainer": "verl", "engine": "sglang", "import": ["sglang.log", "wandb:team/grpo/1abc"]},
    },
}


def planned(raw, **changes):
    return plan_runs(parse_config(copy.deepcopy(raw) | changes), stack_facts)


def with_import(given, **arm):
    """Two logs, the first arm's import and other words replaced."""
    raw = copy.deepcopy(LOGS)
    raw["arms"]["vllm"] |= {"import": given, **arm}
    return raw


def mixed(given="old.log", **changes):
    """The default experiment, its transformers arm imported."""
    raw = copy.deepcopy(RAW) | changes
    raw["arms"]["transformers"]["import"] = given
    return raw


def repeated(name="again", **arm):
    raw = copy.deepcopy(RAW)
    raw["arms"][name] = {"same_as": "vllm", **arm}
    return raw


@pytest.mark.parametrize(
    ("given", "runs"),
    [
        ("a.log", [(["a.log"], 0, {})]),
        (["a.log", "wandb:e/p/i"], [(["a.log"], 0, {}), (["wandb:e/p/i"], 1, {})]),
        ({"runs": ["a.log", {"source": "b.log"}]}, [(["a.log"], 0, {}), (["b.log"], 1, {})]),
        (
            {"runs": [{"source": "a", "factors": {"gpus": 8}}, {"source": "b", "factors": {"gpus": 16.0}}]},
            [(["a"], 0, {"gpus": 8}), (["b"], 0, {"gpus": 16})],
        ),
    ],
)
def test_all_forms_of_an_import_are_one(given, runs):
    raw = with_import(given)
    del raw["arms"]["sglang"]  # which has no factors
    plan = planned(raw)
    assert not plan.runs and not plan.inputs
    found = [run.spec for run in plan.imports.values() if run.spec["arm"] == "vllm"]
    assert [(spec["import"]["sources"], spec["seed"], spec["factors"]) for spec in found] == runs


def test_an_imported_arm_beside_trained_ones():
    plan = planned(mixed(["old.log"]))
    assert list(plan.runs) == ["vllm-s0", "vllm-s1"] and list(plan.imports) == ["transformers-s0"]
    spec = plan.imports["transformers-s0"].spec
    assert spec["import"]["batch_size"] is None and spec["workload"]["batch_size"] == RAW["workload"]["batch_size"]
    # The baseline is imported: another arm's stack prepares the inputs.
    assert plan.inputs_stack_file == plan.stack_file("vllm-s0")
    assert [run.fingerprint for run in plan.runs.values()] == [
        run.fingerprint for run in planned(RAW).runs.values() if run.spec["arm"] == "vllm"
    ], "an import beside it retrains nothing"
    told = plan.as_json()
    assert told["runs"] == ["vllm-s0", "vllm-s1", "transformers-s0"] == list(told["fingerprints"])
    assert told["imports"] == ["transformers-s0"]
    assert told["arms"]["transformers"]["import"]["runs"][0]["source"] == ["old.log"]
    assert "import" not in told["arms"]["vllm"]
    json.dumps(told)


def test_an_imported_run_lies_at_one_point_of_the_sweep():
    sweep = {"workload.temperature": [0.5, 1.0]}
    runs = [{"source": "a.log", "factors": {"workload.temperature": 1}}]
    plan = planned(mixed({"runs": runs}, sweep=sweep, seeds=[0]))
    assert list(plan.all_runs) == [
        "vllm-temperature=0.5-s0",
        "vllm-temperature=1.0-s0",
        "transformers-temperature=1.0-s0",
    ]
    spec = plan.imports["transformers-temperature=1.0-s0"].spec
    # As the sweep writes it, or the two would not be compared.
    assert json.dumps(spec["factors"]) == '{"workload.temperature": 1.0}'
    assert spec["workload"]["temperature"] == 1.0
    for factors in ({}, {"workload.temperature": 0.7}, {"workload.temperature": True}):
        runs[0]["factors"] = factors
        with pytest.raises(UserError, match=r"must have one of its values: 0\.5, 1\.0 \(got "):
            planned(mixed({"runs": runs}, sweep=sweep, seeds=[0]))
    with pytest.raises(UserError, match="arm transformers is imported; give each run's values as factors"):
        planned(mixed(sweep={"arms.transformers.options.x": [1]}))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["about"])
def test_sources_are_looked_at_before_anything_runs(row, rolloutbench):
    for name, content in {**row["files"], "good.log": GOOD}.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(content)
    arm = {"trainer": "verl", "engine": "vllm", "import": {"version": "0.4.1", "runs": [{"source": "run.log"}]}}
    base = {**arm, "env": {"A": "1"}, "import": {"version": "0.4.1", "runs": [{"source": "good.log"}]}}
    arms = {"base": base, "other": arm | row.get("arm", {})}
    Path("x.yaml").write_text(yaml.safe_dump({"experiment": "x", "baseline": "base", "arms": arms}))
    said = rolloutbench("check", "x.yaml")
    told = " ".join(said.out.split())
    assert said.code == ("says" in row) and "arms.other.import: " * said.code in told, said
    assert row.get("says", "") in told, said


def test_a_folders_files_but_hidden_ones_are_inputs_of_its_import(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("vllm.log", "sglang.log/run-1abc.wandb", "sglang.log/files/config.yaml", "sglang.log/.hidden/x"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    plan = load_plan(LOGS)
    files = [plan.import_files(run_id) for run_id in plan.imports]
    assert files == [["vllm.log"], ["sglang.log/files/config.yaml", "sglang.log/run-1abc.wandb"], []]


def test_a_repetition_takes_everything_from_its_arm():
    plan = planned(repeated(), sweep={"arms.vllm.options.vllm_max_num_seqs": [4, 8]}, seeds=[0])
    ones = [run.spec for run in plan.runs.values() if run.spec["arm"] == "vllm"]
    others = [run.spec for run in plan.runs.values() if run.spec["arm"] == "again"]
    differs = {key for one, other in zip(ones, others, strict=True) for key in one if one[key] != other[key]}
    assert differs == {"run_id", "arm", "fingerprint"} and len(others) == 2
    assert plan.as_json()["arms"]["again"]["same_as"] == "vllm"
    assert "same_as" not in plan.as_json()["arms"]["vllm"]


def test_a_repetition_of_imported_runs_has_sources_of_its_own():
    raw = with_import({"gpu": "H100-80GB", "version": "0.4.1", "runs": [{"source": "b.log"}]})
    raw["arms"]["again"] = {"same_as": "vllm", "import": "c.log"}
    known = planned(raw).imports["again-s0"].spec["import"]
    assert (known["gpu"], known["version"], known["sources"]) == ("H100-80GB", "0.4.1", ["c.log"])
    raw["arms"]["again"] = {"same_as": "vllm"}
    with pytest.raises(UserError, match="vllm is imported, so this arm needs its own import"):
        planned(raw)


def test_which_arm_repeats_another_is_in_the_plans_fingerprint():
    """The runs are the same; the report shows the noise of a repetition, and a competitor otherwise."""
    facts = {"gpu": "H100-80GB", "version": "0.4.1"}
    raw = with_import({**facts, "runs": [{"source": "b.log"}]})
    again, other = copy.deepcopy(raw), copy.deepcopy(raw)
    again["arms"]["again"] = {"same_as": "vllm", "import": "c.log"}
    other["arms"]["again"] = {**raw["arms"]["vllm"], "import": {**facts, "runs": [{"source": "c.log"}]}}
    one, two = planned(again), planned(other)
    assert [run.fingerprint for run in one.imports.values()] == [run.fingerprint for run in two.imports.values()]
    assert one.fingerprint != two.fingerprint


def test_the_price_is_the_reports_and_no_runs():
    report = {"price_per_gpu_hour": 2.5, "currency": "EUR", "to_steps": 1000}
    plan, without = planned(RAW, report=report), planned(RAW)
    assert plan.as_json()["report"] == report
    assert without.as_json()["report"] == {"price_per_gpu_hour": None, "currency": "USD", "to_steps": None}
    assert plan.runs == without.runs and plan.fingerprint != without.fingerprint


@pytest.fixture
def two_logs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("vllm.csv", "sglang.csv"):
        (tmp_path / name).write_text("step,phase,seconds\n1,step,2.0\n1,gen,1.5\n2,step,2.1\n2,gen,1.6\n")
    raw = copy.deepcopy(LOGS)
    for name, arm in raw["arms"].items():
        arm["import"] = {"version": "0.4.1", "runs": [{"source": f"{name}.csv"}]}
    (tmp_path / "logs.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    return tmp_path


def snakemake(folder, *arguments):
    return run_snakemake(folder, folder / "logs.yaml", *arguments)


def test_imported_runs_are_listed_as_such(two_logs, capsys):
    assert main(["check", "logs.yaml"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert ["vllm-s0", "verl", "vllm", "-", "import", "from", "vllm.csv"] in [line.split() for line in said]
    assert said[0] == "logs.yaml: 2 runs of experiment logs, by this machine (no --profile)"
    assert main(["status", "logs.yaml"]) == 0
    assert "vllm-s0    to import  snakemake reads it" in capsys.readouterr().out
    run = two_logs / "results" / "logs" / "runs" / "vllm-s0"
    run.mkdir(parents=True)
    run.joinpath("imported.json").write_text(json.dumps({"fingerprint": planned_file("logs.yaml").fingerprint}))
    assert main(["status", "logs.yaml"]) == 0
    assert "vllm-s0    imported" in capsys.readouterr().out
    assert main(["cancel", "logs.yaml"]) == 0
    assert "all runs of logs are imported: there is nothing to cancel" in capsys.readouterr().out
    assert main(["cancel", "logs.yaml", "vllm-s0"]) == 1
    assert "run vllm-s0 is imported" in capsys.readouterr().err


def planned_file(name):
    return load_plan(yaml.safe_load(Path(name).read_text())).imports["vllm-s0"]


@pytest.mark.full("whole workflows")
def test_a_log_that_was_replaced_is_read_again_whatever_its_date_and_an_old_key_named_once(two_logs):
    """`rsync -a` and `mv` keep a file's date: the right log may be older than the import of the wrong one."""
    raw = yaml.safe_load((two_logs / "logs.yaml").read_text())
    (two_logs / "logs.yaml").write_text(yaml.safe_dump(raw | {"report": {"explain": {"sglang": ["a", "b"]}}}))
    done = snakemake(two_logs)
    assert done.returncode == 0, done.stderr
    logged = "".join(log.read_text() for log in two_logs.glob("results/logs/logs/*"))
    assert (done.stderr + logged).count("report.explain is no longer used: ") == 1, "once, of all rules"
    again = snakemake(two_logs, "--dry-run")
    assert "Nothing to be done" in again.stdout + again.stderr
    other = two_logs / "other.csv"
    other.write_text((two_logs / "sglang.csv").read_text().replace("2.0", "4.0"))
    os.utime(other, (1e9, 1e9))
    other.replace(two_logs / "sglang.csv")
    done = snakemake(two_logs)
    assert done.returncode == 0 and (done.stdout + done.stderr).count("rule import_run:") == 1, done.stderr
    table = pd.read_parquet(two_logs / "results" / "logs" / "runs" / "sglang-s0" / "steps.parquet")
    assert table[(table["name"] == "step") & (table["step"] == 1)]["value"].tolist() == [4.0]
