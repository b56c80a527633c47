"""The published comparison, read again from its tables to the page, without a GPU or a stack."""

import json

import pytest
import yaml

from .goldens.made import numbers_of
from .goldens.test_goldens import stored
from .importing import ROOT, run_snakemake

NAME = "camino-2025-published"
FIGURES = ("879.9", "878.9", "410.5", "408.2", "2.15x", "2.22x", "- ≠ Unequal terms (")
# Why the sums differ, and how near the floor generation is.
EXPLAINED = ("The same without nested ones", "Efficiency: decode floor / generation", "39.3 %")


@pytest.mark.full("a whole workflow; that of tests/goldens reads every format")
def test_the_report_shows_the_articles_figures_and_why_its_arms_were_not_equal(tmp_path):
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    done = run_snakemake(tmp_path, ROOT / "experiments" / f"{NAME}.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / ".stacks").exists(), "no stack is built to read a table"
    assert numbers_of(tmp_path, NAME) == stored("article")
    results = tmp_path / "results" / NAME
    text, page = ((results / f"report.{kind}").read_text(encoding="utf-8") for kind in ("md", "html"))
    assert [one for one in (*FIGURES, *EXPLAINED) if one not in text] == []
    assert [one for one in EXPLAINED if one not in page] == []
    verdict = next(line for line in text.splitlines() if line.startswith("**"))
    assert verdict == "**sglang vs vllm: not resolved, one step only: 2.15x, 408 s against 879 s per step.**"
    preflight = json.loads((results / "preflight.json").read_text(encoding="utf-8"))
    unequal = [finding["code"] for finding in preflight["findings"] if finding["level"] == "unequal"]
    assert unequal == ["cuda-graphs", "cuda-launch-blocking"]
    assert preflight["ledger"][0]["verdict"] == "different" and not preflight["unverifiable"]


def test_the_published_experiment_says_what_the_trained_one_says():
    """YAML has no way to share it between two files."""
    published, trained = (
        yaml.safe_load((ROOT / "experiments" / f"{name}.yaml").read_text(encoding="utf-8"))
        for name in (NAME, "camino-2025")
    )
    for part in ("shared", "workload", "baseline"):
        assert published[part] == trained[part]
    for name, arm in trained["arms"].items():
        assert {key: value for key, value in published["arms"][name].items() if key != "import"} == arm
