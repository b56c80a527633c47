"""The published comparison, read again from its tables to the page, without a GPU or a stack."""

import json

import pytest
import yaml

from .goldens.made import numbers_of
from .goldens.test_goldens import stored
from .importing import ROOT, run_snakemake

NAME = "camino-2025-published"
WHOLE = pytest.mark.full("a whole workflow; that of tests/goldens reads every format")


def experiment(name):
    loaded = yaml.safe_load((ROOT / "experiments" / f"{name}.yaml").read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of the published experiment, made in a folder of its own."""
    folder = tmp_path_factory.mktemp("article")
    (folder / "experiments").symlink_to(ROOT / "experiments")
    done = run_snakemake(folder, ROOT / "experiments" / f"{NAME}.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (folder / ".stacks").exists(), "no stack is built to read a table"
    return folder / "results" / NAME


@WHOLE
def test_its_numbers_are_as_they_were(results):
    assert numbers_of(results.parents[1], NAME) == stored("article")


@WHOLE
def test_the_report_shows_them_and_does_not_claim_what_they_do_not_carry(results):
    report = (results / "report.md").read_text(encoding="utf-8")
    for figure in ("879.9", "878.9", "410.5", "408.2", "2.15x", "2.22x"):
        assert figure in report, figure
    verdict = next(line for line in report.splitlines() if line.startswith("**"))
    assert verdict == "**sglang vs vllm: not resolved, one step only: 2.15x, 408 s against 879 s per step.**"
    assert "- ≠ Unequal terms (" in report and "2.15x" in report


@WHOLE
def test_the_report_says_why_the_sums_differ_and_how_near_the_floor_generation_is(results):
    for name in ("report.md", "report.html"):
        report = (results / name).read_text(encoding="utf-8")
        for words in ("The same without nested ones", "Efficiency: decode floor / generation", "39.3 %"):
            assert words in report, words


@WHOLE
def test_the_ledger_says_why_the_arms_were_not_equal(results):
    preflight = json.loads((results / "preflight.json").read_text(encoding="utf-8"))
    unequal = [finding["code"] for finding in preflight["findings"] if finding["level"] == "unequal"]
    assert unequal == ["cuda-graphs", "cuda-launch-blocking"]
    assert preflight["ledger"][0]["verdict"] == "different"
    assert not preflight["unverifiable"]


def test_the_published_experiment_says_what_the_trained_one_says():
    """YAML has no way to share it between two files."""
    published, trained = experiment(NAME), experiment("camino-2025")
    for part in ("shared", "workload", "baseline"):
        assert published[part] == trained[part]
    for name, arm in trained["arms"].items():
        assert {key: value for key, value in published["arms"][name].items() if key != "import"} == arm
