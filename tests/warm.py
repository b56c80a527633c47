"""A stack's Python with its imports done: each program that runs in it is a fork, which begins where the imports end.

Importing a trainer and its engine takes longer than what most tests do with them. `python warm.py` is the process that
forks: it reads orders from its standard input, a line of JSON each, and answers each with the exit status.
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# What jobs import, where the stack has it.
IMPORTS = (
    *("wandb", "datasets", "transformers.models.qwen2.modeling_qwen2"),
    *("verl.utils.dataset.rl_dataset", "verl.utils.tracking", "verl.trainer.ppo.reward", "verl.trainer.main_ppo"),
    *("trl.trainer.grpo_trainer", "swift.pipelines.train.rlhf", "swift.infer_engine"),
    *("vllm.v1.worker.cpu_worker", "vllm.model_executor.models.qwen2"),
)
# pyarrow's allocator, which stops and starts its thread around a fork.
FORK_SAFE = {"jemalloc_bg_thd"}


class WarmPython:
    """Runs programs in forks of one process, until `close`.

    `environment` is that of the programs. `imports_in` adds what they set before they import: libraries read some
    variables only then.
    """

    def __init__(self, python: Path, environment: Mapping[str, str], imports_in: Mapping[str, str]) -> None:
        self._environment = {**environment, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [str(python), "-W", "ignore", str(Path(__file__).resolve())],
            cwd=ROOT,
            env={**self._environment, **imports_in},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, *command: object, cpu_s: float = 300.0, given: str = "", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a file, or `-m` and a module or `-c` and a text, with arguments; `env` is added to the environment."""
        arguments, environment = [str(word) for word in command], {**self._environment, **(env or {})}
        with tempfile.TemporaryDirectory(prefix="warm-") as folder:
            files = [Path(folder, name) for name in ("in", "out", "err")]
            files[0].write_text(given, encoding="utf-8")
            status = self._ordered({"command": arguments, "env": environment, "files": [*map(str, files)]}, cpu_s)
            said = [file.read_text(encoding="utf-8") if file.exists() else "" for file in files[1:]]
        assert status is not None, f"did not end: {arguments}; {said[1]}"
        assert status, f"the Python that forks ended with {self._process.wait()}: {arguments}; {said[1]}"
        return subprocess.CompletedProcess(arguments, int(status), *said)

    def _ordered(self, order: Mapping[str, Any], cpu_s: float) -> str | None:
        """The answer to an order; None where it takes too long."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        from tests.patience import Patience  # not at the top: what is forked has no psutil

        patience = Patience(self._process.pid, cpu_s)
        while not select.select([self._process.stdout], [], [], 0.5)[0]:
            if patience.is_over():
                self._process.kill()
                return None
        return self._process.stdout.readline()

    def close(self) -> None:
        from tests.patience import ended

        ended(self._process, 60)  # without orders it ends


def serve() -> None:
    """Answer orders until there are no more; a fork returns, too, and ends as any Python does."""
    sys.path.pop(0)  # this file's folder
    from node.hardware import importing

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print as they are imported
    # Else each fork's end goes through all that was imported, too, which takes it two seconds.
    with importing():
        for name in IMPORTS:
            if importlib.util.find_spec(name.partition(".")[0]) is not None:
                importlib.import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        # A fork has no threads but its own: whoever waits for another's lock waits for ever.
        threads = {(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}
        assert threads - FORK_SAFE == {Path("/proc/self/comm").read_text().strip()}, threads
        if (child := os.fork()) == 0:
            return follow(order)
        answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        answers.flush()


def follow(order: Mapping[str, Any]) -> None:
    """Be the program that was asked for, as Python would have started it."""
    for place, name in enumerate(order["files"]):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC if place else os.O_RDONLY), place)
    sys.stdin = os.fdopen(0, closefd=False)  # the other one has the orders in its buffer
    os.environ.clear()
    os.environ.update(order["env"])
    start(order["command"])


def start(command: Sequence[str]) -> None:
    """Run a module, a text or a file as the main program."""
    sys.argv = ["-c", *command[2:]] if command[0] == "-c" else list(command[command[0] == "-m" :])
    if command[0] == "-m":
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    elif command[0] == "-c":
        exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    serve()
