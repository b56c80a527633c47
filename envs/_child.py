"""Runs one probe of verify.py in a child process, which is killed with all that it started when its time is over."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Has the kernel kill this process when its parent ends, however that ends: nothing is left that holds a GPU.

    A session of its own would outlive a parent that is killed.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def isolated_python() -> list[str]:
    """This Python for a child, which keeps its bytecode where this process does: -I would ignore the variable."""
    cache = [f"-Xpycache_prefix={sys.pycache_prefix}"] if sys.pycache_prefix else []
    return [sys.executable, "-I", *cache]


def run_in_child(name: str, limit_s: float) -> tuple[Any, bool]:
    """What the probe of that name gave, or how its process ended; and whether it ended in time."""
    with tempfile.TemporaryDirectory(prefix="verify-") as folder:
        out, said = Path(folder, "got.json"), Path(folder, "said")
        program = Path(sys.modules["__main__"].__file__ or "").resolve()
        command = [*isolated_python(), str(program), "--probe", name, "--out", str(out)]
        with said.open("wb") as output:
            # A session of its own: a compiler or a rank that it leaves behind ends with it.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                return f"no answer within {limit_s:.0f} s{_last_words(said)}; its processes were killed", False
            finally:
                _kill_session(process)
        if code == 0 and out.is_file():
            return json.loads(out.read_text(encoding="utf-8"))["got"], True
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return f"{how}{_last_words(said)}", True


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(30)  # a process in the driver's hands may not even die by SIGKILL


def _last_words(said: Path) -> str:
    lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"; it said last: {lines[-1].strip()[:300]}" if lines else ""
