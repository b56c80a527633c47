"""Gives a run in Slurm the nodes of the run before it in its pair, so that both arms train on the same nodes in turns.

The second run waits until the first one has begun. Its job names the first one's nodes, and depends on the first one's
job. If the nodes are drained or taken, the job's node list is removed after `pair_wait_s`; it is still the same job.
The report says where each pair trained.
"""

from __future__ import annotations

import time
from typing import Any

from common.files import read_json
from common.messages import print_message
from common.retry import exists
from workflow.head.submission import LauncherStop
from workflow.runs.history import matching_attempts, read_object
from workflow.runs.job_state import JobState
from workflow.runs.locks import holder_note
from workflow.runs.paths import JobPaths, RunPaths
from workflow.slurm import commands as slurm
from workflow.slurm.commands import SlurmError

_POLL_S = 2.0
# Both launchers of a pair start together: the first one's may take a moment to be there again.
_STARTS_AGAIN_S = 60.0
# A job that waits for these does not wait for its nodes.
_OTHER_REASONS = ("Dependency", "BeginTime", "JobHeldUser", "JobHeldAdmin")


class Pairing:
    """The nodes of one run's job; `request["pair"]` names the run before it and that run's fingerprint, or nothing."""

    def __init__(self, run: RunPaths, request: dict[str, Any], stop: LauncherStop) -> None:
        self._run_id, self._stop = str(request["spec"]["run_id"]), stop
        first, _, self._fingerprint = str(request.get("pair") or "").rpartition(" ")
        self._first = RunPaths(run.folder.parent / first) if first else None
        self._wait_s = float(request["limits"].get("pair_wait_s", 0))
        self._waiting_since: float | None = None
        self._released: set[int] = set()

    def placement(self) -> dict[str, str]:
        """The nodes that the job must have, and the Slurm job that must end before it; empty if there are none.

        Waits while the first run's launcher is at work, and without one for a minute: the first run may have failed, or
        Snakemake may have no place for its launcher beside this one.
        """
        if self._first is None:
            return {}
        name, reported = self._first.folder.name, False
        give_up = time.monotonic() + min(self._wait_s, _STARTS_AGAIN_S)
        while not (attempts := matching_attempts(self._first, self._fingerprint)):
            if holder_note(self._first.launcher_lock) is not None:
                give_up = time.monotonic() + min(self._wait_s, _STARTS_AGAIN_S)
            elif time.monotonic() > give_up:
                self._print(f"{name} has not begun, and nobody is starting it; training on any node")
                return {}
            if not reported:
                reported = True
                self._print(f"waiting for {name} to begin, to train on its nodes after it (pair: node)")
            self._stop.leave_if_asked()
            time.sleep(_POLL_S)
        attempt = read_object(attempts[-1].request)
        if not (placed := attempt.get("slurm")):
            return {}
        ended = exists(self._first.job(int(attempt["job"])).end)
        return {"nodes": str(placed["nodes"]), "after": "" if ended else str(placed["job_id"])}

    def release_if_waiting(self, job: JobPaths, state: JobState) -> None:
        """Let a job go to other nodes that has waited `pair_wait_s` for those of the first run."""
        queued = state.queued
        if queued is None or queued.state != "PENDING" or queued.reason.strip("()") in _OTHER_REASONS:
            self._waiting_since = None
            return
        now = time.monotonic()
        self._waiting_since = self._waiting_since or now
        if now - self._waiting_since < self._wait_s or job.number in self._released:
            return
        nodes = (read_json(job.request).get("placement") or {}).get("nodes")
        if nodes:
            try:
                slurm.require_no_nodes(queued.job_id)
            except SlurmError as error:
                self._print(f"Slurm job {queued.job_id} keeps waiting for {nodes}: {error}")
                self._waiting_since = None
                return
            self._print(f"{nodes} was not free for {self._wait_s:.0f} s ({queued.reason}); training on any node")
        self._released.add(job.number)

    def _print(self, message: str) -> None:
        print_message(f"{self._run_id}: {message}")
