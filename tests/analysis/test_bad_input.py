"""Whatever is wrong with the data is a named verdict on the page and in the Markdown: never a crash, never a number."""

import json

import make_results
import pytest

from analysis.collect import collect_run
from analysis.report.answer import answers
from analysis.report.content import read_content
from analysis.report.markdown import markdown
from analysis.report.page import html_page
from analysis.report.provenance import analysed_by
from analysis.steps import write_steps

GEN = "step/training_step/prepare_inputs/generate"
ARMS = {name: {"trainer": "trl", "engine": name, "stack": name, "options": {}} for name in ("base", "arm")}
H100 = {"name": "NVIDIA H100 80GB HBM3", "memory_gib": 79.6}


def row(step, gen_s=3.0, **more):
    """A step of gen_s + 1 seconds."""
    phases = {
        "step": gen_s + 1,
        "step/training_step": gen_s,
        "step/training_step/prepare_inputs": gen_s,
        GEN: gen_s,
        "step/optimizer_step": 0.25,
    } | more.pop("phases", {})
    samples = {"response_length": [90, 110]} if more.pop("sampled", True) else {}
    scalars = {"train/reward": 0.5, "response_tokens": 200} | more.pop("scalars", {})
    return {"step": step, "phases": phases, "scalars": scalars, "samples": samples} | more


def rows(gen_s=3.0, steps=4, **more):
    return [row(step, gen_s + 0.01 * step, **more) for step in range(1, steps + 1)]


def hardware(gpus=8, name="NVIDIA H100 80GB HBM3", host="node1"):
    return {
        "hardware": {
            "host": host,
            "cpu": "x",
            "cpus": 8,
            "threads": 8,
            "memory_gib": 1000.0,
            "gpus": [H100 | {"name": name}] * gpus,
        }
    }


def content(folder, runs, arms=ARMS, **plan):
    """The report of `runs`: run id -> (arm, rows, further arguments of write_run)."""
    for run_id, (arm, steps, more) in runs.items():
        run_dir = make_results.write_run(folder, run_id, arm, 0, [steps or [row(1)]], **more)
        table = collect_run(run_dir)
        write_steps(table if steps else table.slice(0, 0), run_dir / "steps.parquet")
    make_results.write_plan(folder, arms, list(runs), 0, **plan)
    return read_content(folder / "plan.json", folder, None, None)


CASES = {
    "an empty run": ({"b": ("base", rows(), {}), "a": ("arm", [], {})}, ["run-left-out", "arm-without-runs"], False),
    "other GPUs": (
        {"b": ("base", rows(), hardware()), "a": ("arm", rows(1), hardware(name="NVIDIA H200"))},
        ["gpus-differ"],
        False,
    ),
    "negative times": (
        {"b": ("base", [*rows(), row(5, phases={GEN: -7.0})], {}), "a": ("arm", rows(1, 5), {})},
        ["step-left-out"],
        True,
    ),
    "a step of no time": (
        {"b": ("base", [*rows(), row(5, phases={"step": 0.0})], {}), "a": ("arm", rows(1, 5), {})},
        ["step-left-out"],
        True,
    ),
    "an absurd time": (
        {"b": ("base", [*rows(), row(5, 9e9)], {}), "a": ("arm", rows(1, 5), {})},
        ["step-left-out"],
        True,
    ),
    "one step": ({"b": ("base", [row(1)], {}), "a": ("arm", [row(1, 1.0)], {})}, ["single-step", "one-seed"], True),
    "no samples": (
        {"b": ("base", rows(sampled=False), {}), "a": ("arm", rows(1.0, sampled=False), {})},
        ["no-lengths"],
        True,
    ),
}


# Drawing takes most of the time: the oddest tables are drawn, too.
DRAWN = ("an empty run", "other GPUs", "one step", "no samples")


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_named_and_never_in_a_number(tmp_path, monkeypatch, name):
    if name not in DRAWN:
        monkeypatch.setattr("analysis.figures.figures_of", lambda *_: [])
    runs, expected, divided = CASES[name]
    found = content(tmp_path / "case", runs)
    codes = {v.code for v in found.verdicts}
    assert set(expected) <= codes, codes
    page, text = html_page(found), markdown(found)
    for code in expected:
        verdict = next(v for v in found.verdicts if v.code == code)
        assert code in page
        assert verdict.level == "note" or f"`{code}`" in text
    # No ratio where there is none to give; where there is one, it is that of the steps which count.
    values = found.tables["estimates"]["value"].dropna()
    assert bool(len(values)) == divided, found.tables["estimates"]
    if not divided:
        assert (
            not any(one.ratios for one in found.arm_verdicts)
            and not found.tables["comparison"].get("raw_speedup", values).notna().any()
        )
        assert not any(answer.numbers for answer in answers(found))
    else:
        assert values.between(0.2, 12).all()
        assert found.tables["phases"]["mean_s"].between(0, 40).all()


def test_an_unreadable_file_beside_a_run_is_not_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr("analysis.figures.figures_of", lambda *_: [])
    folder = tmp_path / "case"
    content(folder, {"b": ("base", rows(), {}), "a": ("arm", rows(1.0), {})})
    (folder / "runs" / "a" / "attempts" / "1" / "attempt.json").write_text("{ not json")
    found = read_content(folder / "plan.json", folder, None, None)
    assert found.tables["runs"].set_index("run_id").loc["a", "slurm_job_ids"] == ""
    assert html_page(found)


def test_provenance_says_what_is_there_and_what_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr("analysis.figures.figures_of", lambda *_: [])
    folder = tmp_path / "case"
    git = {"commit": "c0ffee" * 6 + "abcd", "dirty": True}
    machine = hardware()
    machine["hardware"] |= {"driver": "580.95.05", "cuda": "13.0"}
    runs = {
        "b": ("base", rows(), machine | {"done_more": {"git": git}}),
        "a": ("arm", rows(1.0), {}),
    }
    content(folder, runs)
    order = folder / "runs" / "b" / "attempts" / "1" / "attempt.json"
    slurm = {"job_id": "4711", "restart": 0, "nodes": ["gpu7"]}
    order.write_text(json.dumps(json.loads(order.read_text()) | {"host": "gpu7", "slurm": slurm}))
    found = read_content(folder / "plan.json", folder, None, None)
    told = found.tables["runs"].set_index("run_id")
    b = told.loc["b", ["hosts", "gpus", "driver", "cuda", "slurm_job_ids", "git_commit", "git_dirty"]].tolist()
    assert b == ["gpu7", "8 × NVIDIA H100 80GB HBM3", "580.95.05", "13.0", "4711", git["commit"], "yes"]
    assert told.loc["a", ["driver", "slurm_job_ids", "git_commit", "git_dirty"]].tolist() == ["", "", "", ""]
    page = html_page(found)
    assert analysed_by() and f"at commit {analysed_by()}." in page and analysed_by(tmp_path) == ""
    assert "c0ffeec0ffee + changes" in page and ">not recorded<" in page and "4711" in page
