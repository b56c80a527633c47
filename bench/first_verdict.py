"""Measures the first verdict of two runs: `rolloutbench compare` against a configuration and Snakemake, for two logs,
and against wandb's own export and pandas, for two runs on a server of wandb (the tests' own, on loopback).
"""

from __future__ import annotations

import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.measure import ROOT, Line
from bench.wandb_files import METRICS, step_row
from tests.analysis.wandb_server import KEY, ServedRun, WandbServer

STEPS = 100
LOGS = ROOT / "tests" / "goldens" / "data" / "formats"


def first_verdict_lines() -> list[Line]:
    """Seconds, CPU seconds and printed lines until the verdict of two consoles of verl is there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for engine in ("vllm", "sglang"):
            (folder / f"{engine}.log").write_text(console(engine), encoding="utf-8")
        arms = [f"{engine}={engine}.log" for engine in ("vllm", "sglang")]
        verdict = _cost(folder, "rolloutbench", "compare", *arms, "--release", "0.4.1", "--verdict-only")
        whole = _cost(folder, "rolloutbench", "compare", *arms, "--release", "0.4.1", "--save", "mine.yaml")
        workflow = ("-s", str(ROOT / "workflow" / "Snakefile"), "--profile", str(ROOT / "profiles" / "local"))
        plain = _cost(folder, "snakemake", *workflow, "--configfile", "mine.yaml")
        ours, export = _wandb_costs(folder)
    what = f"two consoles of {STEPS} steps"
    on_wandb = f"two runs on wandb of {STEPS} steps x {METRICS} metrics"
    return [
        Line(f"{what}: seconds to the verdict", verdict[0], 2, "s", plain[0]),
        Line(f"{what}: CPU to the verdict", verdict[1], None, "s", plain[1]),
        Line(f"{what}: with the report", whole[0], None, "s", plain[0]),
        Line(f"{what}: lines printed", whole[2], 20, "", plain[2]),
        Line(
            f"{on_wandb}: seconds to the verdict (the plain way: wandb's export to the mean)",
            ours[0],
            None,
            "s",
            export[0],
        ),
        Line(f"{on_wandb}: CPU", ours[1], None, "s", export[1]),
    ]


def _wandb_costs(folder: Path) -> tuple[tuple[float, float, int], tuple[float, float, int]]:
    """What `compare` takes for two runs on a server, and what the export of both takes that a script averages."""
    runs = {}
    for number, (engine, speed) in enumerate({"vllm": 1.0, "sglang": 0.8}.items()):
        rows = [
            {
                "_step": step,
                "_timestamp": 1.7e9 + 300 * step,
                **step_row(step, speed, random.Random(1000 * number + step)),
            }
            for step in range(1, STEPS + 1)
        ]
        config = {"actor_rollout_ref": {"rollout": {"name": engine}}, "trainer": {"nnodes": 1}}
        runs[f"me/p/{engine}"] = ServedRun(rows, config=config)
    with WandbServer(runs) as server:
        env = {
            "WANDB_BASE_URL": server.url,
            "WANDB_API_KEY": KEY,
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_ENTITY": "me",
        }
        sources = [f"wandb:{name}" for name in runs]
        flags = ("--trainer", "verl", "--release", "0.4.1", "--verdict-only")
        ours = _cost(folder, "rolloutbench", "compare", *sources, *flags, env=env)
        export = _cost(folder, "python", str(ROOT / "bench" / "wandb_export.py"), *runs, env=env)
    return ours, export


def console(engine: str) -> str:
    """A console of so many steps, from the recorded steps of the goldens."""
    lines = (LOGS / f"verl-console-{engine}-0.log").read_text(encoding="utf-8").splitlines()
    steps = [line for line in lines if "timing_s/step" in line]
    made = [re.sub(r"\bstep:\d+", f"step:{n}", steps[n % len(steps)], count=1) for n in range(1, STEPS + 1)]
    return "\n".join([lines[0], *made]) + "\n"


def _cost(folder: Path, program: str, *arguments: str, env: dict[str, str] | None = None) -> tuple[float, float, int]:
    """Seconds, CPU seconds and printed lines of a program; the server of wandb is in this process, and not counted."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    environ = {**os.environ, **(env or {})}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=True)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu_s, len((done.stdout + done.stderr).splitlines())
