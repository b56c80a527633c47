"""What must not be divided is refused by name, and what is not known is not held against a run."""

from dataclasses import replace

import make_results
import pytest
from test_comparison import ARMS, results, row

from analysis.compared import compared
from analysis.counted import WARMUP, wide_steps
from analysis.estimates.comparable import comparable
from analysis.estimates.estimate_table import estimate_table
from analysis.planned import read_plan
from analysis.runs import read_runs


def judged(folder, **more):
    plan = read_plan(folder / "plan.json")
    runs, _ = read_runs(plan, folder, None)
    wide, verdicts = wide_steps(runs, plan.warmup_steps)
    found, told = comparable(runs, plan, wide)
    table, _ = estimate_table(wide, plan, compared(wide, plan), found)
    return found, {v.code: v for v in [*verdicts, *told]}, table


def two(tmp_path, base, arm):
    """Two runs of three steps whose done.json and spec.json are changed so."""
    rows = [row(s, 3) for s in (1, 2, 3)]
    return results(tmp_path, {"b": ("transformers", 0, [rows], base), "a": ("vllm", 0, [rows], arm)})


def gpu_run(name="NVIDIA H100 80GB HBM3", per_node=8, nodes=1, **more):
    gpus = [{"name": name, "memory_gib": 79.6}] * per_node
    machine = {"host": "n1", "cpu": "x", "cpus": 2, "threads": 2, "memory_gib": 1, "gpus": gpus}
    workload = {"steps": 3, "gpus_per_node": per_node, "nodes": nodes}
    return {"hardware": machine, "spec_more": {"workload": workload}, **more}


@pytest.mark.parametrize(
    "other, code, words",
    [
        (gpu_run("NVIDIA H200"), "gpus-differ", "H200"),
        (gpu_run(per_node=4), "gpu-counts-differ", "transformers: 8; vllm: 4"),
        (gpu_run(nodes=2), "node-counts-differ", "transformers: 1; vllm: 2"),
        (gpu_run(done_more={"inputs": {"model_sha256": "0" * 64}}), "models-differ", "vllm: 000000000000)"),
        ({}, "gpus-differ", "vllm: no GPU"),
    ],
)
def test_other_machines_and_models_are_not(tmp_path, other, code, words):
    found, told, table = judged(two(tmp_path, gpu_run(), other))
    assert told[code].level == "error" and words in told[code].text and "no ratio is given" in told[code].text
    assert table["value"].isna().all() and set(table["verdict"]) == {"x"}
    assert set(table["why"]) == {found.refused["", "vllm"]}


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("Qwen/Qwen2.5-1.5B", ["models-differ"]),
        ("microsoft/phi-4", []),
        ("/shared/phi-4", []),
        ("/shared/Qwen2.5-1.5B", ["models-differ"]),
        ("/shared/other", ["models-unknown"]),
    ],
)
def test_a_trained_runs_model_is_compared_with_an_imported_ones(tmp_path, name, codes):
    folder = two(tmp_path, gpu_run(), gpu_run())
    plan = read_plan(folder / "plan.json")
    base, arm = read_runs(plan, folder, None)[0]
    base = replace(base, inputs={"model": {"source": "microsoft/phi-4"}})
    # The imported one has no prepared model, and so no sum of its weights.
    done = {key: value for key, value in arm.done.items() if key != "inputs"}
    arm = replace(arm, imported=True, inputs=None, done=done, spec=arm.spec | {"import": {"model": name}})
    assert "model_sha256" in base.done["inputs"]
    found, told = comparable([base, arm], plan, wide_steps([base, arm], 0)[0])
    assert bool(found.refused) == (codes == ["models-differ"]) and [v.code for v in told] == codes
    assert not found.refused or f"transformers: microsoft/phi-4; vllm: {name}" in told[0].text


def test_two_names_of_the_same_weights_are_one_model(tmp_path):
    folder = two(tmp_path, gpu_run(), gpu_run())
    plan = read_plan(folder / "plan.json")
    names = ("microsoft/phi-4", "/shared/phi")
    runs = [
        replace(run, inputs={"model": {"source": name}})
        for run, name in zip(read_runs(plan, folder, None)[0], names, strict=True)
    ]
    found, told = comparable(runs, plan, wide_steps(runs, 0)[0])
    assert not found.refused and not told


@pytest.mark.parametrize("said, codes", [({}, ["gpu-count-unknown"]), ({"nodes": 1, "gpus_per_node": 8}, [])])
def test_engines_on_an_unknown_number_of_gpus_are_told(tmp_path, said, codes):
    folder = two(tmp_path, gpu_run(), gpu_run())
    plan = read_plan(folder / "plan.json")
    base, arm = read_runs(plan, folder, None)[0]
    server = {"resolved": {"vllm_mode": "server"}}
    arm = replace(arm, spec=arm.spec | {"import": said}, done=arm.done | server, imported=True)
    found, told = comparable([base, arm], plan, wide_steps([base, arm], 0)[0])
    assert [v.code for v in told] == codes and not found.refused
    assert not told or (
        told[0].level == "warning" and "the engines of vllm have an unknown number of GPUs" in told[0].text
    )


def test_without_a_gpu_the_processor_is_what_must_be_the_same(tmp_path):
    machine = {"host": "n2", "cpu": "Other CPU", "cpus": 2, "threads": 2, "memory_gib": 23.5, "gpus": []}
    found, told, _ = judged(two(tmp_path, {}, {"hardware": machine}))
    assert "transformers: Some CPU; vllm: Other CPU" in told["processors-differ"].text and found.refused


def test_a_repetition_on_another_machine_is_none(tmp_path):
    folder = two(tmp_path, gpu_run(), gpu_run())
    plan = replace(read_plan(folder / "plan.json"), arms={**ARMS, "again": ARMS["vllm"]}, same_as={"again": "vllm"})
    read, _ = read_runs(plan, folder, None)
    again = {"run_id": "c", "arm": "again", "done": read[1].done | {"hardware": gpu_run("NVIDIA H200")["hardware"]}}
    read = [*read, replace(read[1], **again)]
    found, told = comparable(read, plan, wide_steps(read, 0)[0])
    assert "H200" in found.not_repeated["", "again"] and ("", "vllm") not in found.refused
    (verdict,) = [v for v in told if v.code == "no-repetition"]
    assert verdict.level == "error" and "again should repeat vllm, but ran with other GPUs" in verdict.text


def test_a_log_that_begins_after_the_warm_up_is_told(tmp_path):
    folder = two(tmp_path, {}, {})
    plan = replace(read_plan(folder / "plan.json"), warmup_steps=1)
    runs, _ = read_runs(plan, folder, None)
    late = [make_results.with_steps(run, lambda steps: steps.assign(step=steps["step"] + 100)) for run in runs]
    for some, left_out in ((runs, 1), (late, 0)):
        wide, verdicts = wide_steps(some, plan.warmup_steps)
        assert (wide["left_out"] == WARMUP).groupby(wide["arm"]).sum().tolist() == [left_out] * 2
        assert [v.code for v in verdicts] == ([] if left_out else ["no-warmup-left-out"] * 2)
    assert "its first step is 101, after the warm-up (1 step), so no step of it" in verdicts[0].text
    assert not wide_steps(late, 0)[1]
