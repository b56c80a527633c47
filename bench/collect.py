"""Measures many runs, from wandb's offline files to tables and to the report, against a plain pandas script.

1,000 runs of 100 steps and 80 metrics, and a tenth of that, to see how both grow. The script reads a tenth of the
runs, and a hundredth: it takes more than a second for each file.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from analysis.steps import read_steps
from bench.measure import ROOT, Cost, Line, cost_of
from bench.wandb_files import METRICS, write_runs

RUNS, STEPS = 1000, 100
FEW = RUNS // 10


def collect_lines() -> list[Line]:
    """Files to tables, and tables to the report, of `FEW` runs and of `RUNS`."""
    with tempfile.TemporaryDirectory() as folder:
        results = {runs: Path(folder) / str(runs) / "bench" for runs in (FEW, RUNS)}
        folders = {runs: write_runs(place, runs, STEPS) for runs, place in results.items()}
        tables = {runs: _collected(folders[runs]) for runs in folders}
        alone = cost_of([sys.executable, "-m", "analysis.collect", str(folders[FEW][0])])
        plain = {runs: _plain(Path(folder), folders[FEW][:runs]) for runs in (FEW // 10, FEW)}
        reports = {runs: _report(place) for runs, place in results.items()}
        page_mb = (results[RUNS] / "report.html").stat().st_size / 1e6
    few, many, script = tables[FEW], tables[RUNS], plain[FEW]
    size = f"{STEPS} steps x {METRICS} metrics"
    return [
        Line(f"offline wandb files to parquet, {FEW} runs x {size}", few.seconds, 60, "s", script.seconds),
        Line("... CPU time", few.cpu_s, None, "s", script.cpu_s),
        Line("... memory of the largest process", few.peak_mb, 500, "MB", script.peak_mb),
        Line(f"offline wandb files to parquet, {RUNS} runs x {size}", many.seconds, 300, "s"),
        Line("... CPU time", many.cpu_s, None, "s"),
        Line("... memory of the largest process", many.peak_mb, 500, "MB"),
        Line(
            f"... growth from {FEW} to {RUNS} runs (script: {FEW // 10} to {FEW}): time",
            *(many.seconds / few.seconds, 12, "x", script.seconds / plain[FEW // 10].seconds),
        ),
        Line("... memory", many.peak_mb / few.peak_mb, 1.5, "x", script.peak_mb / plain[FEW // 10].peak_mb),
        Line("one run alone, as Snakemake starts it", alone.seconds, 5, "s"),
        Line(f"report, {FEW} runs x {size}: time", reports[FEW].seconds, 60, "s"),
        Line("... memory", reports[FEW].peak_mb, 2000, "MB"),
        Line(f"report, {RUNS} runs x {size}: time", reports[RUNS].seconds, 180, "s"),
        Line("... CPU time", reports[RUNS].cpu_s, None, "s"),
        Line("... memory", reports[RUNS].peak_mb, 4000, "MB"),
        Line("... page", page_mb, 5, "MB"),
        Line(f"... growth from {FEW} to {RUNS} runs: time", reports[RUNS].seconds / reports[FEW].seconds, 12, "x"),
        Line("... memory", reports[RUNS].peak_mb / reports[FEW].peak_mb, 12, "x"),
    ]


def _collected(folders: list[Path]) -> Cost:
    cost = cost_of([sys.executable, "-m", "analysis.collect", *map(str, folders)])
    for folder in (folders[0], folders[-1]):
        rows = read_steps(folder / "steps.parquet")[0].num_rows
        if rows < STEPS * METRICS:
            raise SystemExit(f"{folder}: {rows} rows, of at least {STEPS * METRICS}")
    return cost


def _plain(folder: Path, folders: list[Path]) -> Cost:
    files = [str(next(one.glob("attempts/1/wandb/*/run-*.wandb"))) for one in folders]
    script = [sys.executable, str(ROOT / "bench" / "plain_script.py")]
    # `wandb` is the one beside this Python, and sends no telemetry.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {"PATH": path, "WANDB_ERROR_REPORTING": "false"}
    return cost_of([*script, str(folder / "plain.parquet"), str(folder / "plain.html"), *files], env=env)


def _report(results: Path) -> Cost:
    command = [sys.executable, "-m", "analysis.report", "--plan", str(results / "plan.json")]
    return cost_of([*command, "--results", str(results), "--out", str(results)])
