"""What runs on the node, in the controller's Python: start the trainer in its stack, watch it, say how it ended.

The trainer is a child in a session of its own, so that a terminal's Ctrl-C does not reach it; it dies with this
process (PR_SET_PDEATHSIG), so that no trainer is ever left behind unwatched.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from workflow.cluster.locks import try_lock
from workflow.cluster.paths import AttemptPaths, RunPaths
from workflow.files import read_json, write_json

POLL_S = 0.2
STOP_GRACE_S = 120.0
REQUEUE_EXIT_CODE = 75  # what a trainer's job says when it was stopped and left a checkpoint (EX_TEMPFAIL)
_PR_SET_PDEATHSIG = 1
# One thread pool per library would fight over the same cores: all get the run's share, alike in every arm.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# The controller's Python must not leak into the stack's.
_CONTROLLER_VARIABLES = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "PYTHONWARNINGS")


def run_attempt(run_folder: str, number: int) -> None:
    """Live one attempt of a run; `exit.json` says how it ended.

    If another job of this run is alive, it ends at once with kind `duplicate`: whatever the heads do, a run is trained
    by one job at a time.
    """
    run = RunPaths(Path(run_folder))
    attempt = run.attempt(number)
    lock = try_lock(run.live_lock, note=str(number), patience_s=2.0)
    if lock is None:
        write_json(attempt.exit, {"kind": "duplicate", "time": time.time()})
        return
    with lock:
        order = read_json(attempt.order)
        try:
            process = _start(order, attempt.log)
        except (OSError, ValueError) as error:
            write_json(attempt.exit, {"kind": "not started", "error": str(error), "time": time.time()})
            return
        code = _watch(process, attempt)
        write_json(attempt.exit, {"kind": exit_kind(code, attempt), "code": code, "time": time.time()})


def _start(order: dict[str, Any], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            order["command"],
            cwd=order["cwd"],
            env=trainer_environment(order),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )


def trainer_environment(order: dict[str, Any]) -> dict[str, str]:
    """The environment of the trainer's process: ours, less the controller's Python, plus threads and the arm's own."""
    env = {name: value for name, value in os.environ.items() if name not in _CONTROLLER_VARIABLES}
    env["PYTHONPATH"] = order["cwd"]
    env["PYTHONUNBUFFERED"] = "1"
    env |= dict.fromkeys(_THREAD_VARIABLES, str(order["cpus"]))
    return {**env, **order["env"]}


def exit_kind(code: int, attempt: AttemptPaths) -> str:
    """What an exit code means: finished, stopped, refused (a user's mistake), killed or failed."""
    if code == 0:
        return "finished" if attempt.done.is_file() else "failed"
    if code == REQUEUE_EXIT_CODE or attempt.stop.exists():
        return "stopped"
    if code < 0:
        return "killed"
    return "refused" if code == 2 else "failed"


def _watch(process: subprocess.Popen[bytes], attempt: AttemptPaths) -> int:
    """Wait for the trainer; pass a request to stop on to it, and end its whole session when it does not listen."""
    asked_at: float | None = None
    while (code := process.poll()) is None:
        if attempt.stop.exists():
            if asked_at is None:
                asked_at = time.monotonic()
                _signal_session(process, signal.SIGTERM)
            elif time.monotonic() - asked_at > STOP_GRACE_S or attempt.stop.read_text().strip() == "now":
                _signal_session(process, signal.SIGKILL)
        time.sleep(POLL_S)
    # Whatever the trainer started and left (data loaders, wandb's service) belongs to its session.
    _signal_session(process, signal.SIGKILL)
    return code


def _signal_session(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
