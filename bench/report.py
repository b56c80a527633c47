"""What a report costs: seconds, peak memory and page size, on made-up runs.

`python bench/report.py [--runs 200] [--steps 200]`, from the repository root.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "analysis")]

import make_results  # noqa: E402  the tests' generator of run folders

from analysis.collect import collect_run  # noqa: E402
from analysis.steps import write_steps  # noqa: E402


def cost(argv: list[str]) -> tuple[float, float]:
    """(seconds, peak memory in MB) of a command."""
    start = time.perf_counter()
    child = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"failed: {' '.join(argv)}")
    return time.perf_counter() - start, usage.ru_maxrss / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="runs in all, half of them for each of two arms")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "bench"
        start = time.perf_counter()
        make_results.realistic(
            results,
            {"transformers": ("transformers", 3.2), "vllm": ("vllm", 0.9)},
            seeds=args.runs // 2,
            steps=args.steps,
            extra_scalars=27,
            collect=lambda run_dir, out: write_steps(collect_run(run_dir), out),
        )
        made_s = time.perf_counter() - start
        run_dir = results / "runs" / "vllm-s0"
        one_s, one_mb = cost(
            [sys.executable, "-m", "analysis.collect", str(run_dir), "--out", str(results / "one.parquet")]
        )
        argv = [sys.executable, "-m", "analysis.report", "--plan", str(results / "plan.json")]
        report_s, report_mb = cost([*argv, "--results", str(results), "--out", str(results)])
        html_kb = (results / "report.html").stat().st_size / 1000
    print(f"{args.runs} runs x {args.steps} steps   (made and collected in {made_s:.1f} s)")
    print(f"{'':22}{'seconds':>9}{'peak MB':>9}{'HTML kB':>9}")
    print(f"{'collect, one run':22}{one_s:>9.1f}{one_mb:>9.0f}{'':>9}")
    print(f"{'report, all runs':22}{report_s:>9.1f}{report_mb:>9.0f}{html_kb:>9.0f}")


if __name__ == "__main__":
    main()
