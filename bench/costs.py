"""Measures what commands cost, in time and memory, on inputs of a real size."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from bench.functions import two_logs
from bench.long_logs import FORMATS, write_log, write_wandb_offline
from bench.measure import ROOT, Cost, Line, cost_of
from common.files import fingerprint_of

PROGRAMS = Path(sys.executable).parent
STEPS = 100
PLANNED, DRY, REPORTED, EXPERIMENTS = 10_000, 4500, 1000, 1000
LOG_BYTES = 300_000_000
RELEASES = {"swift-jsonl": ("swift", "4.6.0"), "trainer-state": ("trl", "1.16.0"), "wandb": ("trl", "1.16.0")}
PLAN = """
import json, sys
from workflow.config.plan import load_plan
plan = load_plan(json.load(open(sys.argv[1])))
assert len(plan.runs) == int(sys.argv[2]), len(plan.runs)
"""
# What Snakemake itself needs for as many jobs of the same shape: two wildcard rules and nothing else.
PLAIN_SNAKEFILE = """
rule all:
    input: expand("steps/{{run}}", run=range({runs}))
rule train:
    output: "done/{{run}}"
    shell: "touch {{output}}"
rule collect:
    input: "done/{{run}}"
    output: "steps/{{run}}"
    shell: "touch {{output}}"
"""


def command_lines() -> list[Line]:
    """Every command whose time grows with what it reads."""
    lines = []
    for measured in (_compare, _plan, _dry_run, _report, _history):
        with tempfile.TemporaryDirectory() as folder:
            lines += measured(Path(folder))
    return lines


def import_lines() -> list[Line]:
    """Reading one log of 300 MB, in every format that grows with the training."""
    lines = []
    for form in (*FORMATS, "wandb-offline"):
        with tempfile.TemporaryDirectory() as folder:
            spec = _import_of(Path(folder), form)
            command = [sys.executable, "-m", "analysis.imports", spec, "--out", f"{folder}/steps.parquet"]
            cost = cost_of([*command, "--cache", f"{folder}/cache"])
        lines += _lines(f"import {LOG_BYTES / 1e6:.0f} MB of {form}", cost, most_mb=500)
    return lines


def quickstart_lines() -> list[Line]:
    """A newcomer's wait: a fresh clone with empty package caches, then the same again with nothing to do."""
    with tempfile.TemporaryDirectory(dir=ROOT.parent, prefix="bench-quickstart-") as folder:
        clone = Path(folder) / "clone"
        cost_of(["git", "clone", "--quiet", str(ROOT), str(clone)])
        cold = {"UV_CACHE_DIR": f"{folder}/uv", "PIP_CACHE_DIR": f"{folder}/pip", "XDG_CACHE_HOME": f"{folder}/cache"}
        first = cost_of(["make", "quickstart"], cwd=clone, env=cold)
        again = cost_of(["make", "quickstart"], cwd=clone, env=cold)
    return [
        Line("quickstart, cold package cache", first.seconds, 480, "s"),
        Line("quickstart again, nothing to do", again.seconds, 5, "s"),
    ]


def _lines(what: str, cost: Cost, most_s: float | None = None, most_mb: float | None = None) -> list[Line]:
    return [Line(what, cost.seconds, most_s, "s"), Line("... memory", cost.peak_mb, most_mb, "MB")]


def _compare(folder: Path) -> list[Line]:
    command = [str(PROGRAMS / "rolloutbench"), *two_logs(folder, STEPS)]
    whole = [part for part in command if part != "--verdict-only"]
    what = f"compare two logs of {STEPS} steps"
    return [
        *_lines(f"{what}: the verdict", cost_of(command, cwd=folder), 1),
        *_lines(f"{what}: with the report", cost_of(whole, cwd=folder)),
    ]


def _config(runs: int) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))
    arms = {name: config["arms"][name] for name in ("vllm", "sglang")}
    return config | {"experiment": "bench", "arms": arms, "seeds": list(range(runs // 2))}


def _plan(folder: Path) -> list[Line]:
    file = folder / "config.json"
    file.write_text(json.dumps(_config(PLANNED)))
    return _lines(f"plan {PLANNED:,} runs", cost_of([sys.executable, "-c", PLAN, str(file), str(PLANNED)]), 2, 300)


def _dry_run(folder: Path) -> list[Line]:
    """Printing every job; beside a workflow of as many plain ones."""
    file, snakemake = folder / "config.yaml", str(PROGRAMS / "snakemake")
    file.write_text(yaml.safe_dump(_config(DRY)))
    (folder / "Snakefile").write_text(PLAIN_SNAKEFILE.format(runs=DRY))
    plain = cost_of([snakemake, "-n", "--cores", "1", "--snakefile", f"{folder}/Snakefile"], cwd=folder)
    cost = cost_of([snakemake, "--profile", "profiles/local", "-n", "--configfile", str(file)])
    return [Line(f"snakemake -n, {DRY:,} runs ({2 * DRY:,} jobs): CPU time", cost.cpu_s, 20, "s", plain.cpu_s)]


def _report(folder: Path) -> list[Line]:
    """1,000 runs x 200 steps, 12 phases, 30 scalars, 16 samples."""
    sys.path.insert(0, str(ROOT / "tests" / "analysis"))
    import make_results  # the tests' generator of run folders

    results, arms = folder / "bench", {"transformers": ("transformers", 3.2), "vllm": ("vllm", 0.9)}
    make_results.realistic(results, arms, seeds=REPORTED // 2, steps=200, extra_scalars=27)
    command = [sys.executable, "-m", "analysis.report", "--plan", str(results / "plan.json")]
    cost = cost_of([*command, "--results", str(results), "--out", str(results)])
    page_mb = (results / "report.html").stat().st_size / 1e6
    what = f"report of {REPORTED:,} runs x 200 steps"
    return [*_lines(what, cost, 30, 500), Line("... page", page_mb, 5, "MB")]


def _history(folder: Path) -> list[Line]:
    sys.path.insert(0, str(ROOT / "tests" / "analysis"))
    import make_history  # the tests' generator

    template, many = make_history.finished(folder / "template"), folder / "many"
    make_history.nightly(many, template, [1.0] * 600 + [1.1] * (EXPERIMENTS - 600), at=600)
    cost = cost_of([str(PROGRAMS / "rolloutbench"), "history", str(many), "--to", str(folder / "out")])
    return _lines(f"history of {EXPERIMENTS:,} experiments", cost, 10, 300)


def _import_of(folder: Path, form: str) -> str:
    """Writes a log; the spec of its import."""
    source = str(folder / "log")
    if form == "wandb-offline":
        source = str(write_wandb_offline(folder, LOG_BYTES))
    elif form == "wandb":
        run = folder / "cache" / "a" / "b" / "c"
        run.mkdir(parents=True)
        (run / "run.json").write_text(json.dumps({"complete": True}))
        write_log(run / "history-000000000.jsonl", form, LOG_BYTES)
        source = "wandb:a/b/c"
    else:
        write_log(Path(source), form, LOG_BYTES)
    trainer, version = RELEASES.get(form, ("verl", "0.4.1"))
    spec: dict[str, Any] = {"run_id": "long", "arm": "long", "trainer": trainer, "engine": "vllm", "seed": 0}
    spec |= {"factors": {}, "import": {"sources": [source], "version": version, "batch_size": 16}}
    spec["fingerprint"] = fingerprint_of(spec)
    return json.dumps(spec)
