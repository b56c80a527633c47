"""Runs a stage's tasks one after another, within the stage's time, and reads what they wrote."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.files import ROOT, inputs_sha256, last_lines, read_json, write_json
from gpu_kit.gpu import PeakMemory, VisitedGpu
from gpu_kit.stages import Stage, StageTask
from trainers import Spread

_END_GRACE_S = 20
_POLL_S = 0.05
_LOG_BYTES = 2_000_000
_REQUEUE = 75


class OutOfTime(Exception):
    """The stage's limit is over."""


@dataclass
class StageRun:
    """A stage on this machine; `folder` keeps what earlier visits finished."""

    name: str
    stage: Stage
    kit: Mapping[str, Any]
    folder: Path
    python: Path
    gpu: VisitedGpu | None

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.stage.limit_s
        stage = self.kit["stages"][self.name]
        self._planned = stage if self.gpu else stage["cpu"]
        self.folder.mkdir(parents=True, exist_ok=True)

    def results(self) -> dict[str, Any]:
        """Run what is not finished; the results of all tasks, and of the probes."""
        found: dict[str, Any] = {"tasks": []}
        try:
            if self.stage.probes and self.gpu:
                found["probes"] = self._probes()
            for inputs_id in self._planned["inputs"]:
                self._inputs(inputs_id)
        except OutOfTime:
            found["probes"] = found.get("probes") or []
        found["tasks"] = [self._kept(task) for task in self.stage.tasks if task.run_id in self._planned["runs"]]
        return found

    def _kept(self, task: StageTask) -> dict[str, Any]:
        """A task's result, from an earlier visit if it finished there."""
        file = self.folder / f"{task.name}.json"
        with contextlib.suppress(OSError, ValueError):
            if (earlier := read_json(file))["ok"]:
                return dict(earlier)
        result = self._task(task)
        write_json(file, result)
        return result

    def _task(self, task: StageTask) -> dict[str, Any]:
        run, began, peak = self._planned["runs"][task.run_id], time.monotonic(), PeakMemory()
        folder = self.folder / task.name
        attempts: list[int] = []
        error = ""
        try:
            with peak.watching() if self.gpu else contextlib.nullcontext():
                for number in (1, 2) if task.stop_after else (1,):
                    # A visit that ended in the middle left attempts; a new one goes on from their checkpoint.
                    at = _next_attempt(folder)
                    attempts.append(self._attempt(task, run, at, stop=number == 1))
                    if attempts[-1] not in (0, _REQUEUE):
                        break
        except OutOfTime:
            error = f"not finished: the stage's {self.stage.limit_s} s are over"
        newest = _attempts(folder)[-1] if _attempts(folder) else None
        done = read_json(newest / "done.json") if newest and (newest / "done.json").is_file() else None
        if done is None and not error:
            error = _why(newest / "log") if newest else "did not start"
        return {
            "task": task.name,
            "ok": done is not None,
            "error": error,
            "seconds": round(time.monotonic() - began, 1),
            "exit_codes": attempts,
            "peak_gpu_gib": peak.gib,
            "done": done
            and {key: done[key] for key in ("first_step", "last_step", "versions", "hardware", "resolved")},
            "steps": [line for at in _attempts(folder) for line in _steps(at)],
            "workload": {key: run["spec"]["workload"][key] for key in ("model", "batch_size", "max_response_length")},
        }

    def _attempt(self, task: StageTask, run: Mapping[str, Any], folder: Path, *, stop: bool) -> int:
        """Train one attempt; its exit code."""
        spec = run["spec"]
        inputs = self.folder / f"inputs-{spec['inputs_id']}" / "inputs.json"
        write_json(folder / "spec.json", spec)
        attempt = {
            "attempt": int(folder.name.rpartition("-")[2]),
            "run_id": spec["run_id"],
            "fingerprint": spec["fingerprint"],
            "spec": str(folder / "spec.json"),
            "inputs": str(inputs),
            "inputs_sha256": inputs_sha256(read_json(inputs)),
            "attempt_dir": str(folder),
            "checkpoint_dir": str(folder.parent / "checkpoints"),
            "cpus": os.cpu_count() or 1,
            "cwd": str(ROOT),
            "env": spec["env"],
        }
        write_json(folder / "attempt.json", attempt)
        module = [run["module"]] if task.synchronized else ["gpu_kit.unsynchronized", run["module"]]
        if Spread.from_spec(spec) is Spread.RAY:
            module = ["gpu_kit.with_ray", *module]
        command = [str(self.python), "-m", *module, str(folder / "attempt.json")]
        stop_file = folder / "metrics.jsonl" if stop and task.stop_after else None
        return self._run(command, folder / "log", dict(spec["env"]), stop_file, task.stop_after)

    def _probes(self) -> list[dict[str, Any]]:
        """The outcomes of the stack's probes; versions are not compared, since the machine's are used."""
        out = self.folder / "probes.json"
        if not out.is_file():
            program = ROOT / "envs" / self.stage.probes / "verify.py"
            options = ["--gpu", "--cuda", str(self._planned["cuda"]), "--out", str(out)]
            self._run([str(self.python), "-I", str(program), *options], self.folder / "probes.log")
        checks = read_json(out)["checks"] if out.is_file() else []
        return [one for one in checks if " " in one["name"] and not one["name"].startswith("files of ")]

    def _inputs(self, inputs_id: str) -> None:
        folder = self.folder / f"inputs-{inputs_id}"
        if not (folder / "inputs.json").is_file():
            write_json(folder / "request.json", self._planned["inputs"][inputs_id])
            command = ["-m", "node.inputs", "--request", str(folder / "request.json"), "--out", str(folder)]
            self._run([str(self.python), *command], self.folder / "inputs.log")

    def _run(
        self,
        command: list[str],
        log: Path,
        env: Mapping[str, str] | None = None,
        stop_file: Path | None = None,
        stop_after: int = 0,
    ) -> int:
        """Run a program until it ends or the stage's time is over; a group of its own, so that nothing is left."""
        if time.monotonic() > self._deadline:
            raise OutOfTime
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            **_headers(),
            "PYTHONUNBUFFERED": "1",
            "WANDB_MODE": "offline",
            **(env or {}),
        }
        with log.open("ab") as file:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            while (code := process.poll()) is None:
                if time.monotonic() > self._deadline:
                    raise OutOfTime
                if stop_file is not None and _lines(stop_file) >= stop_after:
                    process.send_signal(signal.SIGTERM)
                    stop_file = None
                time.sleep(_POLL_S)
            return code
        finally:
            _end(process)

    def write_log(self, out: Path) -> None:
        """All logs in one file, the end of each."""
        with out.open("wb") as file:
            logs = (path for path in self.folder.rglob("*log") if "wandb" not in path.parts)
            for log in sorted(logs):
                content = log.read_bytes()[-_LOG_BYTES:]
                file.write(f"==== {log.relative_to(self.folder)}\n".encode() + content + b"\n")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the program and its group."""
    for number, grace in ((signal.SIGTERM, _END_GRACE_S), (signal.SIGKILL, _END_GRACE_S)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number if process.poll() is None else signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return


def _headers() -> dict[str, str]:
    """CPATH with the headers of torch's NVIDIA wheels: an engine's kernels include some that CUDA may lack."""
    folder = Path(sysconfig.get_path("purelib"), "nvidia", "cu13", "include")
    if not folder.is_dir():
        return {}
    before = os.environ.get("CPATH")
    return {"CPATH": f"{before}{os.pathsep}{folder}" if before else str(folder)}


def _attempts(folder: Path) -> list[Path]:
    return sorted(folder.glob("attempt-*"), key=lambda path: int(path.name.rpartition("-")[2]))


def _next_attempt(folder: Path) -> Path:
    path = folder / f"attempt-{len(_attempts(folder)) + 1}"
    path.mkdir(parents=True)
    return path


def _lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def _steps(attempt: Path) -> list[dict[str, Any]]:
    """The attempt's logged steps, without single lengths."""
    path = attempt / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [
        {key: value for key, value in json.loads(line).items() if key in ("step", "phases", "scalars", "resumed")}
        for line in lines
    ]


def _why(log: Path) -> str:
    """The log's last line that names an error, or its last line."""
    lines = [line.strip() for line in last_lines(log, 200) if line.strip()]
    errors = [line for line in lines if re.match(r"(error:|\w*(Error|Exception)\b)", line)]
    return (errors or lines or ["it wrote nothing"])[-1][:400]
