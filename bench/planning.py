"""Measures planning, and Snakemake's dry run."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from bench.measure import ROOT, Line, cost_of

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


def _config(runs: int) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))
    arms = {name: config["arms"][name] for name in ("vllm", "sglang")}
    return config | {"experiment": "bench", "arms": arms, "seeds": list(range(runs // 2))}


def plan_lines() -> list[Line]:
    """10,000 runs planned in a fresh process, imports included."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(_config(10_000)))
        cost = cost_of([sys.executable, "-c", PLAN, str(file), "10000"])
    return [
        Line("plan 10,000 runs: time", cost.seconds, 2, "s"),
        Line("plan 10,000 runs: memory", cost.peak_mb, 300, "MB"),
    ]


def dry_run_lines() -> list[Line]:
    """`snakemake -n`, printing every job, for 3,000 runs (6,000 jobs) and for 4,500 runs (9,000 jobs)."""
    lines = []
    snakemake = str(Path(sys.executable).with_name("snakemake"))
    for runs in (3000, 4500):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "config.yaml"
            file.write_text(yaml.safe_dump(_config(runs)))
            (Path(folder) / "Snakefile").write_text(PLAIN_SNAKEFILE.format(runs=runs))
            plain = cost_of([snakemake, "-n", "--cores", "1", "--snakefile", f"{folder}/Snakefile"], cwd=Path(folder))
            cost = cost_of([snakemake, "--profile", "profiles/local", "-n", "--configfile", str(file)])
        lines.append(Line(f"snakemake -n, {runs:,} runs ({2 * runs:,} jobs)", cost.seconds, 20, "s", plain.seconds))
    return lines
