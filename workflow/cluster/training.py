"""Starts an attempt's trainer in its stack, watches it, and ends it when it must end, however it takes that.

The trainer is a child in a session of its own, so that a terminal's Ctrl-C does not reach it; it dies with this
process (PR_SET_PDEATHSIG), so that no trainer is ever left behind unwatched.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.retry import exists, retry_io
from node.hardware import THREAD_VARIABLES
from trainers import SERVERS, driver_module
from workflow.cluster.ends import exit_of, oom_kills
from workflow.cluster.history import FILES
from workflow.cluster.jobstate import HEARTBEAT_S
from workflow.cluster.paths import AttemptPaths
from workflow.cluster.processes import children, end_processes_of, reap_orphans, start_in_session
from workflow.cluster.stopping import StopRequests
from workflow.cluster.watchdog import Watchdog, dump_stacks
from workflow.stacks import stack_environment

if TYPE_CHECKING:
    from workflow.cluster.spread import Head

POLL_S = 0.2
REQUEUE_EXIT_CODE = 75  # what a trainer's job says when it was stopped and left a checkpoint (EX_TEMPFAIL)
# Of the time between the warning and the limit the trainer gets most; the rest is for killing it and for requeueing.
_TRAINERS_SHARE = 0.8
_HUNG_GRACE_S = 10.0
_LOST_NODE_GRACE_S = 10.0
_UNKILLABLE_S = 120.0
# For a program that the file system refuses: a mistake of its rights must not keep a node for long.
_START_PATIENCE_S = 120.0
_STACK = "the stack's files"
# How a trainer ends that a stop signal met before it could hear one, or after it had ceased to.
_ENDED_BY_STOP = frozenset({REQUEUE_EXIT_CODE, -signal.SIGTERM, -signal.SIGUSR2, 128 + signal.SIGTERM})
# The controller's Python must not leak into the stack's.
_CONTROLLER_VARIABLES = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "PYTHONWARNINGS")


class Training:
    """One attempt's trainer. `is_superseded` and `hung_before` are asked of the run."""

    def __init__(
        self,
        order: dict[str, Any],
        attempt: AttemptPaths,
        stops: StopRequests,
        requeues: bool,
        is_superseded: Callable[[], bool],
        hung_before: Callable[[], bool],
    ) -> None:
        self._order, self._attempt, self._stops, self._requeues = order, attempt, stops, requeues
        self._is_superseded, self._hung_before = is_superseded, hung_before
        self._stop: dict[str, Any] | None = None
        """Why it must end; None while it may go on."""
        self._kill_at = float("inf")
        limits = order["limits"]
        self._watchdog = Watchdog(attempt.metrics, limits["hang_factor"], limits["hang_min_s"], limits["first_step_s"])

    def run(self, head: Head | None) -> dict[str, Any]:
        """How the trainer ended, with `again` if the run shall go on in another attempt."""
        token, before = secrets.token_hex(8), children()
        try:
            process = self._start(token, head)
        except (OSError, ValueError) as error:
            return {"kind": "not started", "detail": str(error)}
        try:
            with self.beating():
                return self._watch(process, head)
        finally:
            # Whatever the trainer started and left: data loaders, wandb's service, an engine's own processes, and
            # daemons that shed both their environment and their parents.
            end_processes_of(token, grace_s=0, sessions=[process.pid], orphans=children() - before)

    def _start(self, token: str, head: Head | None) -> subprocess.Popen[bytes]:
        command = trainer_command(self._order, self._attempt)
        environment = retry_io(lambda: trainer_environment(self._order, os.environ), _STACK)
        if head is not None:
            command, environment = head.command(command), environment | head.environment()
        with retry_io(lambda: self._attempt.log.open("ab"), FILES) as log:

            def start() -> subprocess.Popen[bytes]:
                return start_in_session(command, cwd=self._order["cwd"], env=environment, token=token, log=log)

            return retry_io(start, _STACK, _START_PATIENCE_S)

    def _watch(self, process: subprocess.Popen[bytes], head: Head | None) -> dict[str, Any]:
        """Wait for the trainer; end it when it must end, however it takes that."""
        kills_before = oom_kills()
        ticked = looked = time.monotonic()
        while (code := process.poll()) is None:
            now = time.monotonic()
            if now - looked > HEARTBEAT_S:
                looked = now
                reap_orphans()
                if self._is_superseded():
                    self._stop, self._kill_at = {"kind": "superseded"}, min(self._kill_at, now)
            if self._stop is None:
                self._stop = self._why_stop(process, head, now, now - ticked)
            if self._stops.asked() == "now":
                self._kill_at = min(self._kill_at, now)
            if now >= self._kill_at:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            if now >= self._kill_at + _UNKILLABLE_S:
                # In the kernel for good (a GPU, a file system): Slurm must see to the node, the run goes on elsewhere.
                stop = self._stop or {}
                detail = f"it could not be killed; {stop.get('detail') or 'it was to stop'}"
                return {"kind": "hung", "again": self._requeues, **stop, **self._stops.reason(stop), "detail": detail}
            ticked = now
            time.sleep(POLL_S)
        return self._ended(code, kills_before, head)

    def _why_stop(
        self, process: subprocess.Popen[bytes], head: Head | None, now: float, elapsed_s: float
    ) -> dict[str, Any] | None:
        """Why the trainer must end, when it was asked to; None while it may go on."""
        if (stop := self._stops.wanted()) is not None:
            self._kill_at = now + _TRAINERS_SHARE * self._order["limits"]["stop_grace_s"]
        elif (silence := self._watchdog.tick(elapsed_s)) is not None:
            # A first hang is given another chance, a second one is not.
            stop = {"kind": "hung", "detail": silence, "again": not self._hung_before()}
            dump_stacks(process.pid, self._attempt.log)
            self._kill_at = now + _HUNG_GRACE_S
        elif head is not None and (lost := head.poll()) is not None:
            stop = {"kind": "node lost", "detail": lost, "again": self._requeues}
            self._kill_at = now + _LOST_NODE_GRACE_S
        else:
            return None
        # Only the trainer itself: it needs its children (data loaders, the tracker, an engine) for its last step.
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        return stop

    def _ended(self, code: int, kills_before: int, head: Head | None) -> dict[str, Any]:
        """What a trainer's end means that has come."""
        # A trainer that had done its work before it heard of the stop has finished.
        if retry_io(lambda: exists(self._attempt.done), FILES):
            return {"kind": "finished", "code": code}
        # Slurm signals the trainer, too, which may be gone before this loop, or this process, has heard of it.
        if self._stop is None and self._stops.signal is None and code in _ENDED_BY_STOP:
            time.sleep(1.0)
        if self._stop is None and (self._stops.signal is not None or code == REQUEUE_EXIT_CODE):
            own = {"kind": "stopped", "cause": "the trainer's own", "again": self._requeues}
            self._stop = self._stops.wanted() or own
        if self._stop is not None and self._stop["kind"] != "node lost":
            return {**self._stop, **self._stops.reason(self._stop), "code": code}
        who, of = head.culprit(code) if head is not None else ("", code)
        if self._stop is not None and (of is None or not who):
            return {**self._stop, "code": code}
        if of is None:
            return {"kind": "node lost", "detail": who, "again": self._requeues, "code": code}
        end = exit_of(of, self._attempt, killed_for_memory=oom_kills() > kills_before)
        return end | ({"rank": who} if who else {})

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Shows a sign of life every few seconds, however long the loop that watches takes for a look."""
        over = threading.Event()

        def beat() -> None:
            while True:
                # A file system that falters for a moment must not end a training.
                with suppress(OSError):
                    self._attempt.heartbeat.touch()
                if over.wait(HEARTBEAT_S):
                    return

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()


def trainer_command(order: dict[str, Any], attempt: AttemptPaths) -> list[str]:
    """The command of an attempt's trainer: its driver, by the stack's Python."""
    return [order["python"], "-m", driver_module(order["module"]), str(attempt.order)]


def trainer_environment(order: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a trainer and its Ray: ours, less the controller's Python, plus the stack's, threads and the
    arm's own."""
    env = {name: value for name, value in environ.items() if name not in _CONTROLLER_VARIABLES}
    env = stack_environment(Path(order["python"]).parents[2] / "verify.json", env)
    env["PYTHONPATH"] = order["cwd"]
    env["PYTHONUNBUFFERED"] = "1"
    env |= dict.fromkeys(THREAD_VARIABLES, str(order["cpus"]))
    env |= order["env"]
    if gpus := int(order["spec"]["workload"].get("gpus_per_node", 0)):
        seen = _gpus_in_sight(order, env, gpus)
        env["CUDA_VISIBLE_DEVICES"] = ",".join(seen[: gpus - server_gpus_beside(order)])
    return env


def server_environment(order: Mapping[str, Any], environ: Mapping[str, str], name: str = SERVERS[0]) -> dict[str, str]:
    """The environment of a server beside the trainer: the same, but for its GPUs, which are among the last in sight."""
    env = trainer_environment(order, environ)
    if gpus := int(order["spec"]["workload"].get("gpus_per_node", 0)):
        seen = _gpus_in_sight(order, {**environ, **order["env"]}, gpus)
        first, *behind = SERVERS[SERVERS.index(name) :]
        end = gpus - _gpus_of(order, behind)
        env["CUDA_VISIBLE_DEVICES"] = ",".join(seen[end - _gpus_of(order, [first]) : end])
    return env


def server_gpus_beside(order: Mapping[str, Any]) -> int:
    """The GPUs of the trainer's node that servers have; with several nodes an engine's has the last one."""
    return _gpus_of(order, SERVERS) if int(order["spec"]["workload"].get("nodes", 1)) == 1 else 0


def _gpus_of(order: Mapping[str, Any], servers: Iterable[str]) -> int:
    return sum(int(order["spec"][name]["gpus"]) for name in servers if name in order["spec"])


def _gpus_in_sight(order: Mapping[str, Any], env: Mapping[str, str], wanted: int) -> list[str]:
    """As many GPUs as the experiment wants, of those that may be used.

    With more in sight Ray might put two nodes' parts onto one node, and torch would spread where it is not asked to.
    """
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if order["cluster"] == "local":
        # submitit's local executor hides all of them.
        visible = order["env"].get("CUDA_VISIBLE_DEVICES", order["visible_gpus"])
    return (list(map(str, range(wanted))) if visible is None else visible.split(","))[:wanted]
