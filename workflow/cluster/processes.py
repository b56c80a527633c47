"""Ends a run's own processes on this node, never by name: other users have trainers and Rays here, too."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LIFE_VARIABLE = "ROLLOUTBENCH_LIFE"
"""Marks the processes that one task of one life of a job has started."""

GRACE_S = 5.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def dying_with_us() -> Callable[[], None]:
    """What a child calls before it becomes a program (preexec_fn), so that it never outlives this process."""
    parent = os.getpid()

    def prepare() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # Some of Slurm's process trackers signal children, too, and USR2 ends a process that has no handler yet.
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def adopt_orphans() -> None:
    """Become the parent of whatever descendant loses its own, so that it can still be found and ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def reap_orphans() -> None:
    """Take note of the ends of adopted processes, which would fill the process table else.

    Whatever this process itself starts is in its own session or leads one, and is waited for by who started it.
    """
    for pid in children(dead=True):
        with suppress(ProcessLookupError, ChildProcessError):
            if os.getsid(pid) not in (os.getsid(0), pid):
                os.waitpid(pid, os.WNOHANG)


def children(dead: bool = False) -> set[int]:
    """This process's own children, adopted ones included: those that live, or those that nobody has waited for."""
    return {pid for pid, process in _processes("", dead) if process.parent == os.getpid()}


def end_processes_of(
    token: str, grace_s: float = GRACE_S, sessions: Collection[int] = (), orphans: Collection[int] = ()
) -> list[int]:
    """End our processes on this node that carry a life's token, their descendants and the sessions they opened.

    `sessions` names sessions to end even if no process in them carries the token any more: some overwrite their
    environment; `orphans` names adopted processes to end. Whoever does not heed SIGTERM is killed after `grace_s`.
    Returns those that even so did not end.
    """
    kill_at = time.monotonic() + grace_s
    known = {pid: process for pid, process in _processes(token) if pid in orphans}
    ours = set(sessions)
    told: set[int] = set()
    while True:
        found = _find_processes(token, known, ours)
        known |= found
        ours |= {process.session for process in found.values() if process.session != os.getsid(0)}
        now = time.monotonic()
        if not found or now > kill_at + 10.0:
            return list(found)
        for pid in found:
            if now >= kill_at:
                _signal(pid, signal.SIGKILL)
            elif pid not in told:
                _signal(pid, signal.SIGTERM)
                told.add(pid)
        time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class _Process:
    parent: int
    session: int
    started: int
    own: bool
    """It is this user's."""
    marked: bool
    """It carries the token."""


def _find_processes(token: str, known: Mapping[int, _Process], sessions: Collection[int]) -> dict[int, _Process]:
    processes = dict(_processes(token))
    recalled = {pid for pid, process in known.items() if pid in processes and processes[pid].started == process.started}
    # A session's number may be another's by now, if its leader lives and is not one of ours.
    open_sessions = {pid for pid in sessions if pid not in processes or pid in recalled or processes[pid].marked}
    found = recalled | {pid for pid, item in processes.items() if item.marked or item.session in open_sessions}
    while children := {pid for pid, process in processes.items() if process.parent in found} - found:
        found |= children
    ourselves = os.getpid()
    while ourselves in processes:
        found.discard(ourselves)
        ourselves = processes[ourselves].parent
    return {pid: processes[pid] for pid in found if processes[pid].own}


def _processes(token: str, dead: bool = False) -> Iterator[tuple[int, _Process]]:
    """All living processes on this node, or all dead ones that nobody has waited for."""
    mark = f"{LIFE_VARIABLE}={token}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            own = entry.stat().st_uid == os.getuid()
            state, parent, _, session, *rest = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            marked = own and not dead and mark in (entry / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue  # it has ended in the meantime
        if (state in "ZX") is dead:
            yield int(entry.name), _Process(int(parent), int(session), int(rest[15]), own, marked)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
