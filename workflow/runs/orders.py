"""Reads a run's order, its end, and what its job does: the state of a run for every program.

A run is done (an attempt's done.json), ended (an end.json of its order) or open. The job of an open run is none,
waiting, running or unknown: by this machine's lock, or by its name in squeue's answer.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from common.files import user_name, write_json
from workflow.runs.history import is_request_for, read_object
from workflow.runs.locks import can_ask, holder_note
from workflow.runs.paths import RunPaths, queue_file
from workflow.runs.pulse import filesystem_now, still_writes
from workflow.slurm import shared_queue
from workflow.slurm.commands import QueueJob
from workflow.slurm.shared_queue import MAX_AGE_S, Queue

# An older answer does not describe the present, whoever asked.
_STALE_S = 10 * MAX_AGE_S


@dataclass(frozen=True, slots=True)
class Order:
    """A run's order; empty without one, or if it belongs to the folder that this one was copied from."""

    run: RunPaths
    content: dict[str, Any]

    def __bool__(self) -> bool:
        return bool(self.content)

    @property
    def start(self) -> str:
        return str(self.content.get("start", ""))

    @property
    def name(self) -> str:
        return str(self.content.get("name", ""))

    @property
    def on_slurm(self) -> bool:
        return bool(self.content) and self.content["cluster"] == "slurm"

    @property
    def job_id(self) -> str:
        """The last submission's id in Slurm; empty without one."""
        return str(self.content["job_ids"][-1]) if self.on_slurm and self.content.get("job_ids") else ""

    @property
    def label(self) -> str:
        """Its job's name in messages."""
        return f"Slurm job {self.job_id or self.name}" if self.on_slurm else "its job"

    def is_for(self, fingerprint: str, inputs: dict[str, str] | None) -> bool:
        return is_request_for(self.content, fingerprint, inputs)

    def end(self) -> dict[str, Any]:
        """How this order ended; empty while it is open."""
        return end_of(self.run, self.start)


def end_of(run: RunPaths, start: str) -> dict[str, Any]:
    """The end of the order with this start; an earlier order's end counts no more."""
    end = read_object(run.end)
    return end if end and end.get("order") == start else {}


def write_end(run: RunPaths, start: str, end: dict[str, Any]) -> dict[str, Any]:
    """Record how an order ended, unless that is known already; what counts."""
    if known := end_of(run, start):
        return known
    end = {**end, "order": start, "time": time.time()}
    write_json(run.end, end)
    return end


def order_of(run: RunPaths) -> Order:
    """A run's order as it is now."""
    content = read_object(run.order)
    if content.get("folder") != str(run.folder.resolve()):
        content = {}
    return Order(run, content)


class Presence(StrEnum):
    """What the job of an open run does."""

    NONE = "none"
    WAITING = "waiting"
    RUNNING = "running"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class JobState:
    """A job's state, with Slurm's own record of it and a note where that says more."""

    job: Presence
    note: str = ""
    queued: QueueJob | None = None


def slurm_job(queue: Queue, name: str) -> JobState:
    """The state of the job of this name by squeue's answer."""
    if queue.error is not None:
        return JobState(Presence.UNKNOWN, f"is left alone while Slurm does not answer ({queue.error})")
    if (queued := next(iter(queue.living(name)), None)) is None:
        return JobState(Presence.NONE)
    if queued.state == "PENDING":
        return JobState(Presence.WAITING, "", queued)
    usual = queued.state in ("RUNNING", "CONFIGURING")
    return JobState(Presence.RUNNING, "" if usual else queued.state.lower().replace("_", " "), queued)


def local_job(run: RunPaths) -> JobState:
    """The state of a run's job on this machine: it is alive while it holds its run's lock."""
    if holder_note(run.live_lock) is not None:
        return JobState(Presence.RUNNING)
    beats = not can_ask(run.live_lock) and still_writes(run, filesystem_now(run.experiment))  # another user's
    return JobState(Presence.RUNNING if beats else Presence.NONE)


def job_state(order: Order, queue: Queue) -> JobState:
    """The state of an order's job from a single look."""
    return slurm_job(queue, order.name) if order.on_slurm else local_job(order.run)


def queue_now(experiment: Path, orders: Iterable[Order]) -> Queue:
    """squeue's answer on an experiment's open orders; its error says why it does not describe the present.

    Slurm is not asked if there are none.
    """
    if not any(order.on_slurm and not order.end() for order in orders):
        return Queue()
    file, owner, now = queue_file(experiment), owner_of(experiment), time.time()
    if owner != os.getuid():
        # An answer contains one user's jobs: ours would lack theirs.
        queue, problem = shared_queue.read(file), f"{user_name(owner)} has not asked Slurm since"
    elif shutil.which("squeue") is None:
        queue, problem = shared_queue.read(file), "no Slurm on this machine; it was last asked at"
    else:
        queue, problem = shared_queue.ask(file, now - MAX_AGE_S), "Slurm does not answer; it was asked at"
    if queue.error is None and now - queue.asked < _STALE_S:
        return queue
    why = f"{problem} {clock(queue.asked)}" if queue.asked else "Slurm does not answer"
    return replace(queue, error=f"{why} ({queue.error})" if queue.error else why)


def owner_of(path: Path) -> int:
    """The user id of a file's or folder's owner; ours if it is missing."""
    try:
        return path.stat().st_uid
    except OSError:
        return os.getuid()


def clock(when: float) -> str:
    """A time of day such as `16:20`, with the date if it is not today."""
    then = time.localtime(when)
    return time.strftime("%H:%M" if then[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M", then)
