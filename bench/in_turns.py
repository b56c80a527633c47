"""Lets two processes of a stack take turns, a repetition each, and compares them pair by pair.

The one that waits is stopped (SIGSTOP). Which goes first changes from pair to pair.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.measure import ROOT, cost_of
from common.files import inputs_sha256
from workflow.stacks import stack_python


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


class Worker:
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
def worker(python: Path, module: str, roles: Sequence[str], attempt: Path) -> Iterator[Worker]:
    """Start `module ROLES ATTEMPT GO TOLD` in a stack; GO and TOLD are open file descriptors."""
    go_read, go_write = os.pipe()
    told_read, told_write = os.pipe()
    log = attempt.with_name("log.txt")
    spec = json.loads(Path(json.loads(attempt.read_text())["spec"]).read_text())
    command = [str(python), "-m", module, *roles, str(attempt), str(go_read), str(told_write)]
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
    worker = Worker(process, go_write, told_read, log)
    try:
        yield worker
    finally:
        worker.close()


def pairs_of(ours: Worker, plain: Worker, warm_up: int, pairs: int) -> list[tuple[dict[str, float], dict[str, float]]]:
    """What each of both took, pair by pair, without the first ones."""
    found = []
    for pair in range(warm_up + pairs):
        order = (ours, plain) if pair % 2 else (plain, ours)
        told = {one: one.repetition() for one in order}
        found.append((told[ours], told[plain]))
    return found[warm_up:]


def built_python(stack: str) -> Path:
    """The Python of a stack, which is built first if need be."""
    cost_of([sys.executable, "-m", "workflow.stacks", "build", stack, "--stacks-dir", ".stacks"])
    return stack_python(stack, ROOT / ".stacks")


def prepared_inputs(python: Path, workload: Mapping[str, Any], folder: Path) -> None:
    """Make a workload's data and model in `folder`/inputs."""
    request = {
        "data": workload["data"],
        "model": {**workload["model"], "seed": 0},
        "max_prompt_length": workload["max_prompt_length"],
        "max_response_length": workload["max_response_length"],
    }
    (folder / "request.json").write_text(json.dumps(request))
    made = ["-m", "node.inputs", "--request", str(folder / "request.json"), "--out", str(folder / "inputs")]
    cost_of([str(python), *made])


def ordered(spec: dict[str, Any], folder: Path, number: int) -> Path:
    """attempt.json of a run, as the launcher writes it."""
    run = folder / "results" / "bench" / "runs" / f"{spec['run_id']}-{number}"
    place = run / "attempts" / "1"
    place.mkdir(parents=True)
    told = json.loads((folder / "inputs" / "inputs.json").read_text())
    attempt = {
        "inputs_sha256": inputs_sha256(told),
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
