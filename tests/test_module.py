"""The workflow as a module of another one, as snakedeploy declares it, and the files that the catalog asks for."""

import shutil

import pytest
import yaml

from common.files import read_json
from workflow.runs.locks import lock_experiment

from .importing import ROOT, snakemake_of

pytestmark = pytest.mark.full("a workflow that includes this one")

LOGS = ROOT / "tests" / "goldens" / "data" / "formats"
# What snakedeploy writes.
DEPLOYED = """
configfile: "config/config.yaml"


module rolloutbench:
    snakefile:
        "{snakefile}"
    config:
        config


use rule * from rolloutbench
"""
# Keys, a handler and a default target of its own, and a rule that it changes: Snakemake reads the module twice.
LARGER = """
configfile: "config/larger.yaml"


onstart:
    Path("mine.txt").write_text(str(config["mine"]))


module rolloutbench:
    snakefile:
        "{snakefile}"
    config:
        config["rolloutbench"]


use rule * from rolloutbench as compare_*


use rule report from rolloutbench as compare_report with:
    threads: 1


rule mine:
    default_target: True
    input:
        rules.compare_all.input,
    output:
        "done.txt",
    shell:
        "echo done > {{output}}"
"""


def deployed(folder):
    """A folder as snakedeploy leaves it, with two logs to compare."""
    arms = {
        engine: {"trainer": "verl", "engine": engine, "import": {"version": "0.4.1", "runs": [f"{engine}.log"]}}
        for engine in ("vllm", "sglang")
    }
    config = {"experiment": "logs", "baseline": "vllm", "arms": arms}
    snakefile = ROOT / "workflow" / "Snakefile"
    for name, text in (
        ("config/config.yaml", yaml.safe_dump(config)),
        ("config/larger.yaml", yaml.safe_dump({"mine": 1, "rolloutbench": config})),
        ("workflow/Snakefile", DEPLOYED.format(snakefile=snakefile)),
        ("larger.smk", LARGER.format(snakefile=snakefile)),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    for engine in arms:
        shutil.copyfile(LOGS / f"verl-console-{engine}-0.log", folder / f"{engine}.log")
    return folder


def test_it_is_a_module_of_another_workflow(tmp_path):
    folder = deployed(tmp_path / "here")
    profile = ["--set-resources", "compare_import_run:mem_mb=77", "--set-threads", "compare_import_run=1"]
    done = snakemake_of(folder, "-s", "larger.smk", "--config", "mine=2", *profile)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(", mem_mb=77,") == 2, done.stderr  # of each import, and of no other rule
    assert (folder / "done.txt").is_file() and (folder / "mine.txt").read_text() == "2"
    (verdict,) = read_json(folder / "results" / "logs" / "verdict.json")["arms"]
    assert (verdict["arm"], verdict["baseline"]) == ("sglang", "vllm")
    with lock_experiment(str(folder / "results" / "logs")):
        second = snakemake_of(folder, "-s", "larger.smk", "--forcerun", "mine")
    assert second.returncode == 1 and "error: another snakemake works on results/logs" in second.stderr, second.stderr
    # A mistake is told as it is without a module, before anything runs.
    (folder / "vllm.log").write_text("nothing that was trained\n")
    again = snakemake_of(folder, "--config", "experiment=again")
    assert again.returncode == 1 and "error: arms.vllm.import: vllm.log" in again.stderr, again.stderr
    assert not (folder / "results" / "again" / "runs").exists()
    moved = folder / "workflow" / "Snakefile"
    moved.write_text(moved.read_text(encoding="utf-8").replace("use rule", '    prefix: "moved"\n\nuse rule'))
    prefixed = snakemake_of(folder, "-n")
    assert prefixed.returncode == 1 and "error: module rolloutbench has prefix" in prefixed.stderr, prefixed.stderr
