"""What stands in a results folder stays: two starts do not share it, and a report that fails leaves the one before."""

import re
import shutil
import subprocess
import sys

import pytest
import yaml

from common.files import read_json
from workflow.runs.locks import lock_experiment

from .importing import ROOT, run_snakemake
from .quick_site import QuickSite

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


@pytest.mark.parametrize("words", [(), ("--no-hooks",), ("--no-hooks", "--touch"), ("results/logs/plan.json",)])
def test_a_second_start_is_refused_whatever_it_leaves_out(two_logs, monkeypatch, words):
    folder, config = two_logs
    monkeypatch.chdir(folder)
    with lock_experiment("results/logs"):
        second = run_snakemake(folder, config, "--nolock", *words)
        planned = run_snakemake(folder, config, "--nolock", "-n", *words)
    assert second.returncode == 1 and "error: another snakemake works on results/logs" in second.stderr, second.stderr
    assert planned.returncode == 0, planned.stderr
    assert not (folder / "results" / "logs" / "plan.json").exists()


def test_after_a_touch_under_another_configuration_the_next_start_trains(tmp_path):
    """Snakemake records the new parameters beside the old run; the run's own files say what it trained."""
    site = QuickSite(tmp_path, stacks=("trl-transformers-cpu", "trl-vllm-cpu"))
    assert site.snakemake().returncode == 0
    before = site.trained()
    site.config["workload"]["steps"] = 5
    site.snakemake("--touch")
    again = site.snakemake()
    assert again.returncode == 0, again.stderr
    assert site.trained() == 2 * before
    done = read_json(site.results / "runs" / "vllm-s0" / "done.json")
    assert done["attempt"] == 2 and (site.results / "report.html").is_file()


def test_a_run_that_is_not_in_the_plan_is_no_target():
    command = [sys.executable, "-m", "snakemake", "-n", "--cores", "1", "results/quickstart/runs/vllm-s9/done.json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "MissingRuleException" in done.stdout + done.stderr


def test_no_job_of_seconds_waits_in_a_queue():
    """What takes longer is Slurm's: environments, data, settings, the comparison."""
    text = "".join(file.read_text() for file in (ROOT / "rules").glob("*.smk"))
    rules = re.split(r"^ *(?:rule|checkpoint)\b ?", text, flags=re.MULTILINE)[1:]
    queued = {rule.partition(":")[0] for rule in rules if "localrule: True" not in rule}
    assert queued == {"stack", "stack_checks", "inputs", "settings", "comparison"}
