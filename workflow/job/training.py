"""Starts an attempt's trainer in its stack, watches it, and ends it when it must end, by SIGKILL if necessary.

The trainer is a child in its own session, so a terminal's Ctrl-C does not reach it. It dies with this process
(PR_SET_PDEATHSIG), so no trainer is ever left unwatched.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from common.retry import exists, keep_watching, retry_io
from common.stack_environment import stack_environment
from node.hardware import THREAD_VARIABLES, WAITING
from trainers import driver_module
from workflow.job.processes import end_processes, reap_orphans, start_in_session
from workflow.job.rendezvous import HeadTask
from workflow.job.stopping import THE_TRAINERS_OWN, SilenceWatchdog, StopRequests, Watchdog, dump_stacks
from workflow.runs.ends import exit_of, oom_kills
from workflow.runs.history import FILES, begins_anew, is_own_command
from workflow.runs.paths import AttemptPaths
from workflow.runs.pulse import HEARTBEAT_S

POLL_S = 0.2
REQUEUE_EXIT_CODE = 75  # a trainer that was stopped and wrote a checkpoint (EX_TEMPFAIL)
# The trainer gets most of the time between the warning and the limit; the rest is for killing and requeueing it.
_TRAINERS_SHARE = 0.8
_HUNG_GRACE_S = 10.0
_LOST_NODE_GRACE_S = 10.0
_UNKILLABLE_S = 120.0
# For a program that the file system refuses: wrong permissions must not block a node for long.
_START_PATIENCE_S = 120.0
_STACK = "the stack's files"
# Exit codes of a trainer that got a stop signal before it handled signals, or after it stopped handling them.
_BY_SIGNAL = frozenset({-signal.SIGTERM, -signal.SIGUSR2, 128 + signal.SIGTERM})
_ENDED_BY_STOP = _BY_SIGNAL | {REQUEUE_EXIT_CODE}
_VISIBLE = "CUDA_VISIBLE_DEVICES"
# The controller's Python must not leak into the stack's.
_CONTROLLER_VARIABLES = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "PYTHONWARNINGS")


class Training:
    """One attempt's trainer; the job supplies `is_superseded` and `hung_before`."""

    def __init__(
        self,
        request: dict[str, Any],
        attempt: AttemptPaths,
        stops: StopRequests,
        requeues: bool,
        is_superseded: Callable[[], bool],
        hung_before: Callable[[], bool],
    ) -> None:
        self._request, self._attempt, self._stops, self._requeues = request, attempt, stops, requeues
        self._is_superseded, self._hung_before = is_superseded, hung_before
        self._stop: dict[str, Any] | None = None  # why it must end; None while it may continue
        self._kill_at = float("inf")
        limits = request["limits"]
        factor, first_step_s = limits["hang_factor"], limits["first_step_s"]
        self._watchdog: Watchdog | SilenceWatchdog = Watchdog(
            attempt.metrics, factor, limits["hang_min_s"], first_step_s
        )
        if is_own_command(request):
            self._watchdog = SilenceWatchdog(attempt.console, first_step_s if factor else float("inf"))

    def run(self, head: HeadTask | None) -> dict[str, Any]:
        """How the trainer ended; `again`: the run continues in another attempt."""
        try:
            process = self._start(head)
        except (OSError, ValueError) as error:
            return {"kind": "not started", "detail": str(error)}
        try:
            with self.beating():
                return self._watch(process, head)
        finally:
            # All that the trainer left behind: data loaders, wandb's service, an engine's own processes, daemons.
            end_processes(process)

    def _start(self, head: HeadTask | None) -> subprocess.Popen[bytes]:
        command = trainer_command(self._request, self._attempt)
        environment = retry_io(lambda: trainer_environment(self._request, os.environ), _STACK)
        if head is not None:
            command, environment = head.command(command), environment | head.environment()
        with retry_io(lambda: self._attempt.log.open("ab"), FILES) as log:

            def start() -> subprocess.Popen[bytes]:
                return start_in_session(command, cwd=self._request["cwd"], env=environment, log=log)

            return retry_io(start, _STACK, _START_PATIENCE_S)

    def _watch(self, process: subprocess.Popen[bytes], head: HeadTask | None) -> dict[str, Any]:
        kills_before = oom_kills()
        ticked = checked = time.monotonic()
        while (code := process.poll()) is None:
            now = time.monotonic()
            if now - checked > HEARTBEAT_S:
                checked = now
                reap_orphans()
                if self._is_superseded():
                    self._stop, self._kill_at = {"kind": "superseded"}, min(self._kill_at, now)
            if self._stop is None:
                self._stop = self._why_stop(process, head, now, now - ticked)
            # Not before the stop is recorded: the request may have come since it was looked for above.
            if self._stop is not None and self._stops.asked() == "now":
                self._kill_at = min(self._kill_at, now)
            if now >= self._kill_at:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            if now >= self._kill_at + _UNKILLABLE_S:
                # Blocked in the kernel (GPU, file system): Slurm must handle the node, the run continues elsewhere.
                stop = self._stop or {}
                detail = f"it could not be killed; {stop.get('detail') or 'it was asked to stop'}"
                return {"kind": "hung", "again": self._requeues, **stop, **self._stops.reason(stop), "detail": detail}
            ticked = now
            time.sleep(POLL_S)
        return self._ended(code, kills_before, head)

    def _why_stop(
        self, process: subprocess.Popen[bytes], head: HeadTask | None, now: float, elapsed_s: float
    ) -> dict[str, Any] | None:
        """Why the trainer must end, once SIGTERM is sent; None while it may continue."""
        if (stop := self._stops.wanted()) is not None:
            self._kill_at = now + _TRAINERS_SHARE * self._request["limits"]["stop_grace_s"]
        elif (silence := self._watchdog.tick(elapsed_s)) is not None:
            # The run is retried after its first hang, not after a second one.
            stop = {"kind": "hung", "detail": silence, "again": not self._hung_before()}
            with suppress(OSError):
                dump_stacks(process.pid, self._attempt.log)
            self._kill_at = now + _HUNG_GRACE_S
        elif head is not None and (lost := head.poll()) is not None:
            stop = {"kind": "node lost", "detail": lost, "again": self._requeues}
            self._kill_at = now + _LOST_NODE_GRACE_S
        else:
            return None
        # Signal only the trainer: it needs its children (data loaders, the tracker, an engine) for its last step.
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        return stop

    def _ended(self, code: int, kills_before: int, head: HeadTask | None) -> dict[str, Any]:
        """The attempt's exit, from the trainer's exit code and what stopped it."""
        # A trainer that finished before the stop reached it has finished the run.
        if retry_io(lambda: exists(self._attempt.done), FILES):
            return {"kind": "finished", "code": code}
        if self._stop is None and (self._stops.signal is not None or code in _ENDED_BY_STOP):
            self._stop = self._stops.wanted() or self._unheard(code)
        if self._stop is not None and self._stop["kind"] != "node lost":
            return self._stopped({**self._stop, **self._stops.reason(self._stop), "code": code})
        culprit, culprit_code = head.culprit(code) if head is not None else ("", code)
        if self._stop is not None and (culprit_code is None or not culprit):
            return {**self._stop, "code": code}
        if culprit_code is None:
            return {"kind": "node lost", "detail": culprit, "again": self._requeues, "code": code}
        if self._requeues and culprit_code in _BY_SIGNAL and (stop := self._unheard(culprit_code)) is not None:
            return self._stopped(
                {**stop, **self._stops.reason(stop), "code": code}
            )  # another node's rank got Slurm's signal first
        end = exit_of(culprit_code, self._attempt, killed_for_memory=oom_kills() > kills_before)
        return end | ({"rank": culprit} if culprit else {})

    def _stopped(self, end: dict[str, Any]) -> dict[str, Any]:
        """The end of a trainer that was stopped, with what it has cost."""
        if end.get("cause") == "time limit" and begins_anew(self._request["spec"]):
            return {**end, "kind": "time limit", "again": False}
        if end["kind"] == "stopped" and end["code"] == -signal.SIGKILL and self._stops.asked() != "now":
            usual = self._watchdog.usual_s
            step = f"a step takes {usual:.0f} s, " if usual else ""
            end["detail"] = (
                f"{end.get('cause', 'asked')}; it was killed before its checkpoint: {step}stop_grace_s is "
                f"{self._request['limits']['stop_grace_s']:g}; set it above the longest step and a checkpoint"
            )
        return end

    def _unheard(self, code: int) -> dict[str, Any] | None:
        """The stop of a trainer that a signal ended, while this process has none.

        Slurm signals one process after the other. It decides before it signals: its reason is asked, no signal awaited.
        """
        if self._requeues:
            return self._stops.ask(signal.Signals(-code if code < 0 else code - 128) if code in _BY_SIGNAL else None)
        if code == REQUEUE_EXIT_CODE:
            return {"kind": "stopped", "cause": THE_TRAINERS_OWN, "again": False}
        return None

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Touches the heartbeat every few seconds, in a thread: the watching loop may be slow."""
        over = threading.Event()
        keep_watching(self._attempt.heartbeat.touch, over, HEARTBEAT_S, "the heartbeat")
        try:
            yield
        finally:
            over.set()


def trainer_command(request: dict[str, Any], attempt: AttemptPaths) -> list[str]:
    """The command of an attempt's trainer: its driver, by the stack's Python."""
    return [request["python"], "-m", driver_module(request["module"]), str(attempt.request)]


def stack_file(request: Mapping[str, Any]) -> Path | None:
    """The verify.json of a job's stack; None without a stack."""
    return None if is_own_command(request) else Path(request["python"]).parents[2] / "verify.json"


def trainer_environment(request: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """A trainer's and its Ray's environment: ours without the controller's Python, plus the stack's and the arm's.

    A user's own command has the user's environment.
    """
    gpus, stack = job_gpus(request, environ), stack_file(request)
    if stack is None:
        env = dict(environ)
    else:
        env = {name: value for name, value in environ.items() if name not in _CONTROLLER_VARIABLES}
        env = stack_environment(stack, env) | {"PYTHONPATH": request["cwd"], "PYTHONUNBUFFERED": "1"}
        env |= dict.fromkeys(THREAD_VARIABLES, str(request["cpus"]))
        env = env if gpus else WAITING | env
    env |= request["env"]
    if gpus:
        env[_VISIBLE] = ",".join(gpus[: len(gpus) - server_gpus_beside(request)])
    elif gpus is None:
        env.pop(_VISIBLE, None)
    return env


def server_environment(request: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server beside the trainer: the trainer's, but with the last visible GPUs."""
    env = trainer_environment(request, environ)
    if gpus := job_gpus(request, environ):
        env[_VISIBLE] = ",".join(gpus[len(gpus) - int(request["spec"]["server"]["gpus"]) :])
    return env


def server_gpus_beside(request: Mapping[str, Any]) -> int:
    """The GPUs that a server uses on the trainer's node; with several nodes it has the last node."""
    spec = request["spec"]
    return int(spec["server"]["gpus"]) if "server" in spec and int(spec["workload"].get("nodes", 1)) == 1 else 0


def job_gpus(request: Mapping[str, Any], environ: Mapping[str, str]) -> list[str] | None:
    """A job's GPUs on this node, as CUDA_VISIBLE_DEVICES has them; None for a user's own command that may use all.

    With more of them visible Ray might place two nodes' workers on one node, and torch would use them all.
    """
    own, wanted = is_own_command(request), int(request["spec"]["workload"].get("gpus_per_node", 0))
    if not (own or wanted):
        return []
    # submitit's local executor hides all GPUs.
    inherited = request["visible_gpus"] if request["cluster"] == "local" else environ.get(_VISIBLE)
    visible = request["env"].get(_VISIBLE, inherited)
    if own:
        return None if visible is None else visible.split(",")
    return (list(map(str, range(wanted))) if visible is None else visible.split(","))[:wanted]
