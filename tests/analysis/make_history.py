"""Made-up histories: copies of one real report with other times, releases and speeds."""

import copy
import json
import math

import make_results
import numpy as np

from analysis.report.__main__ import main as report

ARMS = {"transformers": ("transformers", 3.2), "vllm": ("vllm", 0.9)}
DAY = 86400.0


def finished(results, **more):
    """One experiment with its report."""
    make_results.realistic(results, ARMS, seeds=2, steps=6, **more)
    assert report(["--plan", str(results / "plan.json"), "--results", str(results), "--out", str(results)]) == 0
    return results


def nightly(folder, template, speeds, *, at=10**9):
    """An experiment for each night: `speeds` are the seconds of vllm's steps, as a factor.

    From night `at` on vllm has a new release. Runs differ by 1%, nights by 2%; some nights are left out.
    """
    draw = np.random.default_rng(7)
    original, plan = (json.loads((template / name).read_text()) for name in ("report.json", "plan.json"))
    for night, speed in enumerate(speeds):
        found = copy.deepcopy(original)
        common = math.exp(draw.normal(0, 0.02))
        slower = {}
        for run in found["runs"]:
            factor = common * math.exp(draw.normal(0, 0.01)) * (speed if run["arm"] == "vllm" else 1.0)
            slower.setdefault(run["arm"], factor)
            run["step_s"] *= factor
            run["tokens_per_s"] /= factor
            run["started"] += DAY * (night + night // 7)
            if run["arm"] == "vllm" and night >= at:
                run["releases"]["vllm"] = "0.32.0"
        for row in found["tables"]["estimates"]:
            for key in ("value", "low", "high"):
                if row[key] is not None:
                    row[key] *= slower["transformers"] / slower["vllm"]
        into = folder / f"night-{night:04d}"
        into.mkdir(parents=True)
        (into / "plan.json").write_text(json.dumps(plan))
        (into / "report.json").write_text(json.dumps(found, indent=1))
