"""Measures the first verdict of two logs: `rolloutbench compare` against a configuration and Snakemake."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.measure import ROOT, Line

STEPS = 100
LOGS = ROOT / "tests" / "goldens" / "data" / "formats"


def first_verdict_lines() -> list[Line]:
    """Seconds, CPU seconds and printed lines until the verdict of two consoles of verl is there."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for engine in ("vllm", "sglang"):
            (folder / f"{engine}.log").write_text(_console(engine), encoding="utf-8")
        arms = [f"{engine}={engine}.log" for engine in ("vllm", "sglang")]
        verdict = _cost(folder, "rolloutbench", "compare", *arms, "--release", "0.4.1", "--verdict-only")
        whole = _cost(folder, "rolloutbench", "compare", *arms, "--release", "0.4.1", "--save", "mine.yaml")
        workflow = ("-s", str(ROOT / "workflow" / "Snakefile"), "--profile", str(ROOT / "profiles" / "local"))
        plain = _cost(folder, "snakemake", *workflow, "--configfile", "mine.yaml")
    what = f"two consoles of {STEPS} steps"
    return [
        Line(f"{what}: seconds to the verdict", verdict[0], 3, "s", plain[0]),
        Line(f"{what}: CPU to the verdict", verdict[1], None, "s", plain[1]),
        Line(f"{what}: with the report", whole[0], None, "s", plain[0]),
        Line(f"{what}: lines printed", whole[2], 20, "", plain[2]),
    ]


def _console(engine: str) -> str:
    """A console of so many steps, from the recorded steps of the goldens."""
    lines = (LOGS / f"verl-console-{engine}-0.log").read_text(encoding="utf-8").splitlines()
    steps = [line for line in lines if "timing_s/step" in line]
    made = [re.sub(r"\bstep:\d+", f"step:{n}", steps[n % len(steps)], count=1) for n in range(1, STEPS + 1)]
    return "\n".join([lines[0], *made]) + "\n"


def _cost(folder: Path, program: str, *arguments: str) -> tuple[float, float, int]:
    """Seconds, CPU seconds and printed lines of a program."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu_s, len((done.stdout + done.stderr).splitlines())
