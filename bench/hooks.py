"""Measures what our timers and logs cost a step of TRL and of ms-swift, of `tests/trainers/trainers-cpu.yaml`.

Two processes of a stack train the same steps from the same seed, one with them and one without, and take turns. Their
ratio holds all that they do, and the machine's noise. What they cost is also measured by itself, with little noise: the
seconds of a timed call times the calls of a step, which are in its phases, and those of the step's log, which come
after its end. That leaves out what a slower cache or another process (the tracker's) pays for them.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from bench.in_turns import built_python, ordered, over, pairs_of, prepared_inputs, worker
from bench.measure import ROOT, Line
from workflow.config.plan import plan_runs, stack_facts
from workflow.config.reading import parse_config, read_yaml

PAIRS, WARM_UP = 40, 3
BOUND = 1.0
"""Per cent of a step that the timers in it may take, and the mismatch."""
EXPERIMENT = ROOT / "tests" / "trainers" / "trainers-cpu.yaml"
ARMS = ("trl", "swift")
"""Those of transformers: with vLLM the hooks are the same, and threads of its own that spin are in the figures."""


def hook_lines() -> list[Line]:
    """Of each trainer the ratio of its steps with hooks to those without, and the shares of the timers and the log."""
    return [line for arm in ARMS for line in _lines(arm)]


def _lines(arm: str) -> list[Line]:
    with tempfile.TemporaryDirectory(prefix="bench-hooks-") as folder:
        pairs = _pairs(_spec(arm), Path(folder))
    found = []
    for what, name in (("cpu", "CPU time"), ("wall", "time")):
        more = over([one[what] for one, _ in pairs], [two[what] for _, two in pairs])
        middle = statistics.median(two[what] for _, two in pairs)
        told = f"{more.low:.1f} to {more.high:.1f} %, {len(pairs)} pairs of {middle:.2f} s"
        found.append(Line(f"{arm}: a step with our hooks over one without: {name} ({told})", more.percent, None, "%"))
    ours = [one for one, _ in pairs]
    whole = statistics.median(one["wall"] for one in ours)
    calls, per_call = statistics.median(one["calls"] for one in ours), ours[0]["per_call"]
    log_s = statistics.median(one["log_s"] for one in ours)
    timers = f"{arm}: timers in a step ({calls:.0f} calls of {1e6 * per_call:.1f} us: {1e3 * calls * per_call:.2f} ms)"
    log = f"{arm}: the log between two steps ({1e3 * log_s:.1f} ms)"
    mismatch_s = statistics.median(one["mismatch_s"] for one in ours)
    mismatch = f"{arm}: mismatch of engine and trainer in a step ({1e3 * mismatch_s:.2f} ms)"
    shares = 100 * calls * per_call / whole, 100 * log_s / whole, 100 * mismatch_s / whole
    lines = (timers, shares[0], BOUND), (log, shares[1], None), (mismatch, shares[2], BOUND)
    return [*found, *(Line(name, share, bound, "%") for name, share, bound in lines)]


def _spec(arm: str) -> dict[str, Any]:
    raw = read_yaml(EXPERIMENT)
    raw |= {"arms": {arm: raw["arms"][arm]}, "baseline": arm, "seeds": [0]}
    # The last step's end is the end of the training: it is not told.
    raw["workload"] |= {"steps": WARM_UP + PAIRS + 1, "save_steps": 0}
    (run,) = plan_runs(parse_config(raw), stack_facts).runs.values()
    return {**run.spec, "stack": run.stack}


def _pairs(spec: dict[str, Any], folder: Path) -> list[tuple[dict[str, float], dict[str, float]]]:
    python = built_python(spec["stack"])
    prepared_inputs(python, spec["workload"], folder)
    module, trainer = "bench.hooks_worker", spec["trainer"]
    with (
        worker(python, module, (trainer, "ours"), ordered(spec, folder, 1)) as ours,
        worker(python, module, (trainer, "plain"), ordered(spec, folder, 2)) as plain,
    ):
        return pairs_of(ours, plain, WARM_UP, PAIRS)
