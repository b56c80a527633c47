"""What must not be divided is refused by name, and what is not known is not held against a run."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from test_comparison import ARMS, results, row

from analysis.compared import compared
from analysis.counted import wide_steps
from analysis.estimates.comparable import comparable
from analysis.estimates.estimate_table import estimate_table
from analysis.planned import read_plan
from analysis.runs import read_runs


def gpu_run(name="NVIDIA H100 80GB HBM3", per_node=8, nodes=1, **more):
    gpus = [{"name": name, "memory_gib": 79.6}] * per_node
    machine = {"host": "n1", "cpu": "x", "cpus": 2, "threads": 2, "memory_gib": 1, "gpus": gpus}
    workload = {"steps": 3, "gpus_per_node": per_node, "nodes": nodes}
    return {"hardware": machine, "spec_more": {"workload": workload}, **more}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The plan and two runs of three steps on eight H100s each."""
    rows = [row(s, 3) for s in (1, 2, 3)]
    runs = {"b": ("transformers", 0, [rows], gpu_run()), "a": ("vllm", 0, [rows], gpu_run())}
    folder = results(tmp_path_factory.mktemp("two"), runs)
    plan = read_plan(folder / "plan.json")
    return plan, read_runs(plan, folder, None)[0]


CASES = yaml.safe_load(Path(__file__).with_name("comparable.yaml").read_text(encoding="utf-8"))


def changed(run, machine=None, done=None, model="", **more):
    """The run with the changes of comparable.yaml."""
    spec, fields = {}, {"inputs": {"model": {"source": model}}} if model else {}
    if machine:
        made = gpu_run(**machine)
        done, spec = {"hardware": made["hardware"]}, made["spec_more"]
    if "import" in more:
        # It has no prepared model, and so no sum of its weights.
        done, spec = {"inputs": {}} | (done or {}), {"import": more["import"]}
        fields = {"imported": True, "inputs": None}
    return replace(run, done=run.done | (done or {}), spec=run.spec | spec, **fields)


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_comparable_is_refused_by_name(two, name):
    plan, both = two
    case = CASES[name]
    codes = case["codes"]
    runs = [changed(run, **case.get(side, {})) for run, side in zip(both, ("baseline", "arm"), strict=True)]
    wide, _ = wide_steps(runs, 0)
    found, told = comparable(runs, plan, wide)
    assert [v.code for v in told] == codes and all(case.get("words", "") in v.text for v in told)
    table, _ = estimate_table(wide, plan, compared(wide, plan), found)
    if any(code.endswith("differ") for code in codes):
        assert told[0].level == "error" and "no ratio is given" in told[0].text
        assert table["value"].isna().all() and set(table["why"]) == {found.refused["", "vllm"]}
    else:
        assert not found.refused and table["value"].notna().any() and not [v for v in told if v.level == "error"]


def test_a_repetition_on_another_machine_is_none(two):
    plan = replace(two[0], arms={**ARMS, "again": ARMS["vllm"]}, same_as={"again": "vllm"})
    runs = [*two[1], replace(changed(two[1][1], machine={"name": "NVIDIA H200"}), run_id="c", arm="again")]
    found, told = comparable(runs, plan, wide_steps(runs, 0)[0])
    (verdict,) = [v for v in told if v.code == "no-repetition"]
    assert verdict.level == "error" and "again should repeat vllm, but ran with other GPUs" in verdict.text
    assert "H200" in verdict.text and ("", "vllm") not in found.refused
