"""verl's Python with its imports done: what runs in it is a fork, which begins where the imports end.

Importing verl takes many times longer than what most tests do with it. `python warm.py FOLDER` is the process that is
forked: it reads orders from its standard input, a line of JSON each, and answers each with the exit status.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import runpy
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
IMPORTS = ("wandb", "datasets", "transformers.models.qwen2.modeling_qwen2", "verl.utils.dataset.rl_dataset")
IMPORTS += ("verl.utils.tracking", "verl.trainer.ppo.reward", "verl.trainer.main_ppo")
# As jobs have them; some are read only when a library is imported.
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
# pyarrow's allocator, which stops and starts its thread around a fork.
FORK_SAFE = {"jemalloc_bg_thd"}


class WarmPython:
    """Runs programs in forks of one process, which `close` ends."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._in, self._out, self._err = folder / "in", folder / "out", folder / "err"
        self._process = subprocess.Popen(
            [str(python), "-W", "ignore", str(Path(__file__).resolve())],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith("WANDB")} | ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self, *command: object, cpu_s: float = 300.0, given: str = "", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A program's file, or `-m` and a module or `-c` and its text, with its arguments; `env` is added to ours."""
        arguments = [str(word) for word in command]
        self._in.write_text(given, encoding="utf-8")
        files = [str(self._in), str(self._out), str(self._err)]
        order = {"command": arguments, "env": dict(env or {}), "files": files}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        from tests.patience import Patience  # not at the top: what is forked has no psutil

        patience = Patience(self._process.pid, cpu_s)
        while not select.select([self._process.stdout], [], [], 0.5)[0]:
            if patience.is_over():
                self._process.kill()
                raise AssertionError(f"did not end: {arguments}; {self._err.read_text(encoding='utf-8')}")
        status = self._process.stdout.readline()
        assert status, f"verl's Python ended with {self._process.wait()}"
        said = [file.read_text(encoding="utf-8") for file in (self._out, self._err)]
        return subprocess.CompletedProcess(arguments, int(status), *said)

    def close(self) -> None:
        from tests.patience import ended

        ended(self._process, 60)  # without orders it ends


@contextlib.contextmanager
def warm_pythons(build: Callable[[str], Path], folder: Callable[[str], Path]) -> Iterator[Callable[[str], WarmPython]]:
    """One for each version that is asked for."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def warm(version: str) -> WarmPython:
            made = WarmPython(build(version), folder(f"verl-{version}"))
            stack.callback(made.close)
            return made

        yield warm


def serve() -> None:
    """Answer orders until there are no more; a fork returns, too, and ends as any Python does."""
    sys.path.pop(0)  # this file's folder
    from node.hardware import importing

    # Else each fork's end goes through all that was imported, too, which takes it two seconds.
    with importing():
        for name in IMPORTS:
            importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        order = json.loads(line)
        # A fork has no threads but its own: whoever waits for another's lock waits for ever.
        threads = {(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}
        assert threads == {Path("/proc/self/comm").read_text().strip(), *FORK_SAFE}, threads
        if (child := os.fork()) == 0:
            return follow(order)
        answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        answers.flush()


def follow(order: Mapping[str, Any]) -> None:
    """Be the program that was asked for, as Python would have started it."""
    for place, name in enumerate(order["files"]):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC if place else os.O_RDONLY), place)
    sys.stdin = os.fdopen(0, closefd=False)  # the other one has the orders in its buffer
    os.environ.update(order["env"])
    start(order["command"])


def start(command: Sequence[str]) -> None:
    """Run a module, a text or a file as the main program."""
    sys.argv = list(command[command[0] == "-m" :])
    if command[0] == "-m":
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    elif command[0] == "-c":
        exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    serve()
