"""Measures a replay's overhead: its steps against the engine's own offline benchmark, on the same prompts and lengths.

Both are processes with an engine of their own, in the same stack, and take turns: while one works, the other is
stopped (SIGSTOP), since an idle SGLang spins. Compared are pairs of neighbours; which goes first changes from pair to
pair. A replay's seconds are all of its step but the weight sync, which a benchmark does not have; the benchmark's are
those that it tells itself. Both call the engine's own `generate` with the same words: what a replay adds around that
call is measured apart, and hardly depends on what else the machine does.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from bench.measure import ROOT, Line, cost_of
from trainers.protocol import StackFacts
from workflow.config.plan import plan_runs
from workflow.config.reading import parse_config
from workflow.stacks import stack_python

PAIRS, WARM_UP = 24, 2
BOUND = 3.0
"""Per cent that a replay may take more."""
ARMS = {"vllm": "vllm-32", "sglang": "sglang-32", "transformers": "transformers"}
"""Engine -> its arm in experiments/replay-cpu.yaml."""


@dataclass(frozen=True)
class Over:
    """How much more something takes, in per cent: the median of pairs, and its 95% interval."""

    percent: float
    low: float
    high: float


def over(ours: Sequence[float], plain: Sequence[float]) -> Over:
    """Of pairs: their median ratio, with the order statistics that hold it in 95 of 100 samples.

    No mean: a neighbour on the machine disturbs single pairs, and by much.
    """
    ratios = sorted(100 * (one / other - 1) for one, other in zip(ours, plain, strict=True))
    count = len(ratios)
    # The most pairs at each end that leave at least 95% between them, of fair coins.
    cut = max(n for n in range(count // 2) if sum(math.comb(count, k) for k in range(n)) <= 0.025 * 2**count)
    return Over(statistics.median(ratios), ratios[cut - 1] if cut else -math.inf, ratios[-cut] if cut else math.inf)


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
    cost_of([sys.executable, "-m", "workflow.stacks", "build", _stack(engine), "--stacks-dir", ".stacks"])
    python = stack_python(_stack(engine), ROOT / ".stacks")
    spec = _spec(engine)
    request = {
        "data": spec["workload"]["data"],
        "model": {**spec["workload"]["model"], "seed": 0},
        "max_prompt_length": spec["workload"]["max_prompt_length"],
        "max_response_length": spec["workload"]["max_response_length"],
    }
    (folder / "request.json").write_text(json.dumps(request))
    made = ["-m", "node.inputs", "--request", str(folder / "request.json"), "--out", str(folder / "inputs")]
    cost_of([str(python), *made])
    with (
        _worker(python, "ours", _attempt(spec, folder, 1)) as ours,
        _worker(python, other, _attempt(spec, folder, 2)) as plain,
    ):
        found = []
        for pair in range(WARM_UP + PAIRS):
            order = (ours, plain) if pair % 2 else (plain, ours)
            told = {one: one.repetition() for one in order}
            found.append((told[ours], told[plain]))
    return found[WARM_UP:]


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


def _attempt(spec: dict[str, Any], folder: Path, number: int) -> Path:
    """attempt.json as the launcher writes it."""
    run = folder / "results" / "replay-cpu" / "runs" / f"{spec['run_id']}-{number}"
    place = run / "attempts" / "1"
    place.mkdir(parents=True)
    told = json.loads((folder / "inputs" / "inputs.json").read_text())
    attempt = {
        "inputs_sha256": {f"{part}_sha256": told[part]["sha256"] for part in ("data", "model")},
        "attempt": 1,
        "run_id": spec["run_id"],
        "fingerprint": spec["fingerprint"],
        "spec": str(run / "spec.json"),
        "inputs": str(folder / "inputs" / "inputs.json"),
        "attempt_dir": str(place),
        "checkpoint_dir": str(run / "checkpoints"),
        # With two, threads that wait for each other spin, and beside other load most CPU time is that.
        "cpus": 1,
    }
    (run / "spec.json").write_text(json.dumps(spec))
    (place / "attempt.json").write_text(json.dumps(attempt))
    return place / "attempt.json"


class _Worker:
    """A process that makes a repetition when it is asked, and stands still otherwise."""

    def __init__(self, process: subprocess.Popen[bytes], go: int, told: int, log: Path) -> None:
        self._process, self._go, self._log = process, go, log
        self._told = os.fdopen(told)

    def repetition(self) -> dict[str, float]:
        """What one took."""
        self._signal(signal.SIGCONT)
        os.write(self._go, b"g")
        line = self._told.readline()
        if not line:
            raise SystemExit(f"a worker of the bench ended:\n{self._log.read_text()[-4000:]}")
        self._signal(signal.SIGSTOP)
        figures: dict[str, float] = json.loads(line)
        return figures

    def close(self) -> None:
        """End it with all that it has started."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._told.close()
        os.close(self._go)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            whole = psutil.Process(self._process.pid)
            for one in [whole, *whole.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.send_signal(number)


@contextlib.contextmanager
def _worker(python: Path, role: str, attempt: Path) -> Iterator[_Worker]:
    go_read, go_write = os.pipe()
    told_read, told_write = os.pipe()
    log = attempt.with_name("log.txt")
    spec = json.loads(Path(json.loads(attempt.read_text())["spec"]).read_text())
    command = [str(python), "-m", "bench.replay_worker", role, str(attempt), str(go_read), str(told_write)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **spec["env"]},
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            pass_fds=(go_read, told_write),
            start_new_session=True,
        )
    os.close(go_read)
    os.close(told_write)
    worker = _Worker(process, go_write, told_read, log)
    try:
        yield worker
    finally:
        worker.close()
