"""Whatever is wrong with the data is a named verdict on the page and in the Markdown: never a crash, never a number."""

import json
import re

import pytest
from svg import check_svg
from test_comparable import gpu_run
from test_comparison import content, results, row

from analysis.collect import collect_run
from analysis.report.provenance import analysed_by
from analysis.report.rendering import html_page, markdown
from analysis.steps import write_steps
from tests.importing import ROOT


def rows(gen_s=3.0, steps=4, **more):
    return [row(step, gen_s + 0.01 * step, **more) for step in range(1, steps + 1)]


def case(tmp_path, base, arm, of_base=None, of_arm=None):
    """The report's folder of two runs; an arm without rows has an empty table."""
    runs = {"b": ("transformers", 0, [base], of_base or {}), "a": ("vllm", 0, [arm or [row(1, 1)]], of_arm or {})}
    folder = results(tmp_path, runs)
    if not arm:
        run_dir = folder / "runs" / "a"
        write_steps(collect_run(run_dir).slice(0, 0), run_dir / "steps.parquet")
    return folder


# What is wrong, the two runs, the codes that name it, and whether a ratio is left.
CASES = {
    "an empty run": ((rows(), []), ["run-left-out", "arm-without-runs"], False),
    "other GPUs": ((rows(), rows(1), gpu_run(), gpu_run("NVIDIA H200")), ["gpus-differ"], False),
    "negative times": (([*rows(), row(5, 3, phases={"step/optimizer_step": -7})], rows(1, 5)), ["step-left-out"], True),
    "an absurd time": (([*rows(), row(5, 9e9)], rows(1, 5)), ["step-left-out"], True),
    "lost completions": (
        ([*rows(), row(5, 5, scalars={"missing_completions": 2})], rows(1, 5)),
        ["step-left-out"],
        True,
    ),
    "one step": (([row(1, 3)], [row(1, 1)]), ["one-seed"], True),
    "no samples": ((rows(samples={}), rows(1, samples={})), [], True),
}
# What is the answer's own reason stands in the answer alone.
ANSWERS = {"gpus-differ": "not comparable, other GPUs (transformers: H100-80GB; vllm: H200-141GB)"}
# Drawing takes most of the time: the oddest tables are drawn, too.
DRAWN = ("an empty run", "other GPUs", "one step", "no samples")


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_named_and_never_in_a_number(tmp_path, monkeypatch, name):
    if name not in DRAWN:
        monkeypatch.setattr("analysis.figures.curves.figures_of", lambda *_: [])
    runs, expected, divided = CASES[name]
    found = content(case(tmp_path, *runs))
    codes = {v.code for v in found.verdicts}
    assert set(expected) <= codes, codes
    page, text = html_page(found), markdown(found)
    for figure in found.figures:
        check_svg(figure)
    for code in expected:
        verdict = next(v for v in found.verdicts if v.code == code)
        words = ANSWERS.get(code, code)
        assert words in re.sub(r"</?span[^>]*>", "", page)
        assert verdict.level == "note" or ANSWERS.get(code, f"{verdict.level} {code}") in text
    # No ratio where there is none to give; where there is one, it is that of the steps which count.
    values = found.tables["estimates"]["value"].dropna()
    assert bool(len(values)) == divided, found.tables["estimates"]
    if divided:
        assert values.between(0.2, 12).all()
        assert found.tables["phases"]["mean_s"].between(0, 40).all()
    else:
        assert not any(one.ratios for one in found.arm_verdicts)
        assert not found.tables["comparison"].get("raw_speedup", values).notna().any()


@pytest.mark.usefixtures("undrawn")
def test_provenance_says_what_is_there_and_what_is_not(tmp_path):
    git = {"commit": "c0ffee" * 6 + "abcd", "dirty": True}
    machine = gpu_run(done_more={"git": git})
    machine["hardware"] |= {"driver": "580.95.05", "cuda": "13.0"}
    folder = case(tmp_path, rows(), rows(1), machine)
    order = folder / "runs" / "b" / "attempts" / "1" / "attempt.json"
    slurm = {"job_id": "4711", "restart": 0, "nodes": ["gpu7"]}
    order.write_text(json.dumps(json.loads(order.read_text()) | {"host": "gpu7", "slurm": slurm}))
    (folder / "runs" / "a" / "attempts" / "1" / "attempt.json").write_text("{ not json")
    found = content(folder)
    told = found.tables["runs"].set_index("run_id")
    b = told.loc["b", ["hosts", "gpus", "driver", "cuda", "slurm_job_ids", "git_commit", "git_dirty"]].tolist()
    assert b == ["gpu7", "8 × NVIDIA H100 80GB HBM3", "580.95.05", "13.0", "4711", git["commit"], "yes"]
    assert told.loc["a", ["driver", "slurm_job_ids", "git_commit", "git_dirty"]].tolist() == ["", "", "", ""]
    page = html_page(found)
    made = f"at commit {analysed_by()}" if (ROOT / ".git").exists() else "in a folder that is no git checkout"
    assert f"This report was made by rolloutbench {made}." in page and analysed_by(tmp_path) == ""
    assert "c0ffeec0ffee + changes" in page and "4711" in page
