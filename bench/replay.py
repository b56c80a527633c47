"""Measures a replay's overhead: its steps against the engine's own offline benchmark, on the same prompts and lengths.

Both are processes with an engine of their own, in the same stack, and take turns: while one works, the other is
stopped (SIGSTOP), since an idle SGLang spins. Compared are pairs of neighbours; which goes first changes from pair to
pair. A replay's seconds are all of its step but the weight sync, which a benchmark does not have; the benchmark's are
those that it tells itself. Both call the engine's own `generate` with the same words: what a replay adds around that
call is measured apart, and hardly depends on what else the machine does.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import yaml

from bench.in_turns import built_python, ordered, over, pairs_of, prepared_inputs, worker
from bench.measure import ROOT, Line
from trainers.protocol import StackFacts
from workflow.config.plan import plan_runs
from workflow.config.reading import parse_config

PAIRS, WARM_UP = 24, 2
BOUND = 3.0
"""Per cent that a replay may take more."""
ARMS = {"vllm": "vllm-32", "sglang": "sglang-32", "transformers": "transformers"}
"""Engine -> its arm in experiments/replay-cpu.yaml."""


def replay_lines() -> list[Line]:
    """Each engine's replay against its own benchmark, and against vLLM's with its core in a process of its own."""
    lines: list[Line] = []
    for engine in ARMS:
        lines += _lines(engine, "plain", BOUND)
    return [*lines, *_lines("vllm", "released", None)]


def _lines(engine: str, other: str, bound: float | None) -> list[Line]:
    with tempfile.TemporaryDirectory(prefix="bench-replay-") as folder:
        pairs = _pairs(engine, other, Path(folder))
    against = "its own benchmark" if other == "plain" else "its own with the core in another process"
    found = []
    for what, name in (("cpu", "CPU time"), ("wall", "time")):
        more = over([one[what] for one, _ in pairs], [two[what] for _, two in pairs])
        middle = statistics.median(two[what] for _, two in pairs)
        told = f"{more.low:.1f} to {more.high:.1f} %, {len(pairs)} pairs of {middle:.2f} s"
        # CPU time is what a busy machine changes less.
        within = bound if what == "cpu" else None
        found.append(Line(f"replay of {engine} over {against}: {name} ({told})", more.percent, within, "%"))
    own = statistics.median(100 * (one["wall"] / one["inside"] - 1) for one, _ in pairs)
    return [*found, Line(f"... of it outside the engine's own `generate`, {engine}", own, bound, "%")]


def _pairs(engine: str, other: str, folder: Path) -> list[tuple[dict[str, float], dict[str, float]]]:
    python = built_python(_stack(engine))
    spec = _spec(engine)
    prepared_inputs(python, spec["workload"], folder)
    module = "bench.replay_worker"
    with (
        worker(python, module, ("ours",), ordered(spec, folder, 1)) as ours,
        worker(python, module, (other,), ordered(spec, folder, 2)) as plain,
    ):
        return pairs_of(ours, plain, WARM_UP, PAIRS)


def _stack(engine: str) -> str:
    return str(_experiment()["arms"][ARMS[engine]]["stack"])


def _experiment() -> dict[str, Any]:
    text = (ROOT / "experiments" / "replay-cpu.yaml").read_text(encoding="utf-8")
    raw: dict[str, Any] = yaml.safe_load(text)
    return raw


def _spec(engine: str) -> dict[str, Any]:
    raw = _experiment()
    raw |= {"arms": {ARMS[engine]: raw["arms"][ARMS[engine]]}, "baseline": ARMS[engine], "seeds": [0]}
    # One more than is asked for: the last repetition is none at whose end a process ends.
    raw["workload"] |= {"steps": WARM_UP + PAIRS + 1}
    plan = plan_runs(parse_config(raw), lambda stack: StackFacts("trl", engine, "cpu", "1.16.0", "0"))
    (run,) = plan.runs.values()
    return run.spec
