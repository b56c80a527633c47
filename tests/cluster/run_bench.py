"""A run's folder for tests of the launcher, with a stack whose Python runs the stand-in trainer."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).with_name("stand_in_trainer.py")
RAY_TRAINER = Path(__file__).with_name("ray_trainer.py")


class RunBench:
    """A run folder with a stack whose Python runs the stand-in trainer."""

    def __init__(
        self,
        folder: Path,
        steps: int = 5,
        env: dict[str, str] | None = None,
        options: tuple[str, ...] = (),
        head_env: dict[str, str] | None = None,
        run_id: str = "arm-s0",
    ) -> None:
        self.folder, self.options, self.run_id = folder, options, run_id
        self.head_env = {**os.environ, **(head_env or {})}
        self.run = folder / "results" / "experiment" / "runs" / run_id
        self.heads: list[subprocess.Popen[str]] = []
        python = folder / "stack" / "env" / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
        python.chmod(0o755)
        (folder / "stack" / "verify.json").write_text("{}")
        self.write_inputs("d1")
        self.write_spec("f" * 64, steps, env or {})

    def write_spec(self, fingerprint: str, steps: int = 5, env: dict[str, str] | None = None) -> None:
        self.spec = {"run_id": self.run_id, "trainer": "trl", "fingerprint": fingerprint, "env": env or {}}
        self.spec["job_module"] = "stand_in"
        self.spec["workload"] = {"steps": steps}

    def spread_by_ray(self) -> None:
        """Its trainer wants a Ray: the stack's Python is asked for that, too, and runs the trainer as its module."""
        self.spec["ray"] = True
        python = self.folder / "stack" / "env" / "bin" / "python"
        python.write_text(
            f'#!/bin/sh\ncase "$*" in\n*" stand_in "*) exec {sys.executable} {RAY_TRAINER} "$@";;\n'
            f'*) exec {sys.executable} "$@";;\nesac\n'
        )

    def write_inputs(self, data: str) -> None:
        value = {"data": {"sha256": data}, "model": {"sha256": "m"}}
        (self.folder / "inputs.json").write_text(json.dumps(value))

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "workflow.cluster.launcher", str(self.run)]
        command += ["--spec", json.dumps(self.spec)]
        command += ["--inputs", str(self.folder / "inputs.json"), "--stack", str(self.folder / "stack" / "verify.json")]
        return [*command, "--cpus", "2", "--log", str(self.run / "launcher.log"), *self.options]

    def start(self) -> subprocess.Popen[str]:
        head = subprocess.Popen(
            self.command(),
            cwd=ROOT,
            env=self.head_env,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.heads.append(head)
        return head

    def launch(self, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(), cwd=ROOT, env=self.head_env, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def read(self, *parts: str) -> dict[str, Any]:
        """A JSON file in the run's folder."""
        value: dict[str, Any] = json.loads(self.run.joinpath(*parts).read_text())
        return value

    def journal(self) -> list[tuple[int, int]]:
        """(attempt, step) of every step that was trained."""
        file = self.run / "journal"
        lines = file.read_text().splitlines() if file.is_file() else []
        return [(int(line.split()[0]), int(line.split()[1])) for line in lines]

    def done(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.run / "done.json").read_text())
        return value

    def processes(self) -> list[psutil.Process]:
        """The jobs and trainers of this run that are alive."""
        alive = []
        for process in psutil.process_iter(["cmdline"]):
            words = " ".join(process.info["cmdline"] or ())
            if str(self.run) in words and "workflow.cluster.launcher" not in words:
                alive.append(process)
        return alive

    def end(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for head in self.heads:
            if head.poll() is None:
                head.kill()
            head.communicate()


def wait_until(what: Callable[[], Any], timeout_s: float = 20.0) -> None:
    end = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.05)
