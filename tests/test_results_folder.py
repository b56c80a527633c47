"""What stands in a results folder stays: two starts do not share it, and a report that fails leaves the one before."""

import shutil

import pytest
import yaml

from workflow.runs.locks import lock_experiment

from .importing import ROOT, run_snakemake

LOGS = ROOT / "tests" / "goldens" / "data" / "formats"


@pytest.fixture
def two_logs(tmp_path):
    """A folder with an experiment that compares two logs, and its configuration."""
    arms = {
        engine: {"trainer": "verl", "engine": engine, "import": {"version": "0.4.1", "runs": [f"{engine}.log"]}}
        for engine in ("vllm", "sglang")
    }
    config = tmp_path / "logs.yaml"
    config.write_text(yaml.safe_dump({"experiment": "logs", "baseline": "vllm", "arms": arms}))
    for engine in arms:
        shutil.copyfile(LOGS / f"verl-console-{engine}-0.log", tmp_path / f"{engine}.log")
    return tmp_path, config


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_report_that_fails_leaves_the_one_before_and_the_next_start_makes_it(two_logs):
    folder, config = two_logs
    assert run_snakemake(folder, config).returncode == 0
    results = folder / "results" / "logs"
    parts = ("report.html", "report.md", "report.json", "verdict.json", "tables", "figures")
    made = {part: files_of(results / part) or (results / part).read_bytes() for part in parts}
    steps = results / "runs" / "vllm-s0" / "steps.parquet"
    whole = steps.read_bytes()
    steps.write_text("no parquet\n")
    failed = run_snakemake(folder, config, "--forcerun", "comparison")
    assert failed.returncode == 1 and "error: " in failed.stderr
    assert {part: files_of(results / part) or (results / part).read_bytes() for part in parts} == made
    steps.write_bytes(whole)
    (results / "report.md").write_text("an old report\n")
    assert run_snakemake(folder, config, "--forcerun", "comparison").returncode == 0
    assert (results / "report.md").read_bytes() == made["report.md"]
    assert not (results / ".comparison").exists()
    nothing = run_snakemake(folder, config)
    assert nothing.returncode == 0 and "Nothing to be done" in nothing.stderr


def test_a_second_start_is_refused_whatever_it_leaves_out(two_logs, monkeypatch):
    folder, config = two_logs
    monkeypatch.chdir(folder)
    with lock_experiment("results/logs"):
        planned = run_snakemake(folder, config, "--nolock", "-n")
        assert planned.returncode == 0, planned.stderr
        for words in ((), ("--no-hooks",), ("--no-hooks", "--touch"), ("results/logs/plan.json",)):
            second = run_snakemake(folder, config, "--nolock", *words)
            assert second.returncode == 1, words
            assert "error: another snakemake works on results/logs" in second.stderr, second.stderr
    assert not (folder / "results" / "logs" / "plan.json").exists()
