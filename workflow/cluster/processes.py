"""Ends a run's own processes on this node, never by name: other users have trainers and Rays here, too."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import psutil

from node.ranks import die_with_this_process

LIFE_VARIABLE = "ROLLOUTBENCH_LIFE"
"""Marks the processes that one task of one life of a job has started."""

GRACE_S = 5.0
_REAPED_S = 10.0  # a process in a driver's hands may not even die by SIGKILL
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_PR_SET_CHILD_SUBREAPER = 36


def start_in_session(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], token: str, log: Path | BinaryIO, deaf: bool = False
) -> subprocess.Popen[bytes]:
    """Start a process that leads a session of its own, carries a life's token, never outlives this one and adds to a
    log, which may be open; a `deaf` one, and what it starts, does not end at SIGTERM."""
    prepare = die_with_this_process()

    def deafened() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        prepare()

    with _opened(log) if isinstance(log, Path) else nullcontext(log) as output:
        return subprocess.Popen(
            command,
            cwd=cwd,
            env={**env, LIFE_VARIABLE: token},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=deafened if deaf else prepare,
        )


def _opened(log: Path) -> BinaryIO:
    log.parent.mkdir(parents=True, exist_ok=True)
    return log.open("ab")


def end_session(process: subprocess.Popen[bytes] | None, token: str) -> None:
    """End at once what `start_in_session` has started, if it has, and all that carries the token."""
    if process is not None:
        end_processes_of(token, grace_s=0, sessions=[process.pid])
        with suppress(subprocess.TimeoutExpired):
            process.wait(_REAPED_S)


def adopt_orphans() -> None:
    """Become the parent of whatever descendant loses its own, so that it can still be found and ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def reap_orphans() -> None:
    """Take note of the ends of adopted processes, which would fill the process table else.

    Whatever this process itself starts is in its own session or leads one, and is waited for by who started it.
    """
    for process in _own_children(ended=True):
        with suppress(ProcessLookupError, ChildProcessError):
            if os.getsid(process.pid) not in (os.getsid(0), process.pid):
                os.waitpid(process.pid, os.WNOHANG)


def children() -> set[int]:
    """This process's own living children, adopted ones included."""
    return {process.pid for process in _own_children(ended=False)}


def _own_children(ended: bool) -> Iterator[psutil.Process]:
    for process in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if (process.status() in _ENDED) is ended:
                yield process


def end_processes_of(
    token: str, grace_s: float = GRACE_S, sessions: Collection[int] = (), orphans: Collection[int] = ()
) -> list[int]:
    """End our processes on this node that carry a life's token, their descendants and the sessions they opened.

    `sessions` names sessions to end even if no process in them carries the token any more: some overwrite their
    environment; `orphans` names adopted processes to end. Whoever does not heed SIGTERM is killed after `grace_s`.
    Returns those that even so did not end.
    """
    kill_at = time.monotonic() + grace_s
    known = {process for process in _living(token) if process.pid in orphans}
    ours = set(sessions)
    terminated: set[psutil.Process] = set()
    while True:
        living = _living(token)
        found = _found(living, known, ours)
        known |= found
        ours |= {living[process].session for process in found} - {os.getsid(0)}
        now = time.monotonic()
        if not found or now > kill_at + 10.0:
            return [process.pid for process in found]
        for process in found if now >= kill_at else found - terminated:
            with suppress(psutil.NoSuchProcess):
                process.kill() if now >= kill_at else process.terminate()
        terminated |= found
        time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class _Facts:
    parent: int
    session: int
    own: bool
    """It is this user's."""
    marked: bool
    """It carries the token."""


def _found(
    living: Mapping[psutil.Process, _Facts], known: set[psutil.Process], sessions: Collection[int]
) -> set[psutil.Process]:
    # psutil compares processes by number and start: a known one is the very same, not one with its number.
    recalled = known & living.keys()
    by_pid = {process.pid: process for process in living}
    # A session's number may be another's by now, if its leader lives and is not one of ours.
    foreign = {pid for pid, leader in by_pid.items() if leader not in recalled and not living[leader].marked}
    open_sessions = set(sessions) - foreign
    found = recalled | {one for one, facts in living.items() if facts.marked or facts.session in open_sessions}
    pids = {process.pid for process in found}
    while children := {one for one, facts in living.items() if facts.parent in pids} - found:
        found |= children
        pids |= {process.pid for process in children}
    ourselves = by_pid.get(os.getpid())
    while ourselves is not None:
        found.discard(ourselves)
        ourselves = by_pid.get(living[ourselves].parent)
    return {process for process in found if living[process].own}


def _living(token: str) -> dict[psutil.Process, _Facts]:
    """All living processes on this node."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError), process.oneshot():  # it may end in the meantime
            if process.status() in _ENDED:
                continue
            own, marked = process.uids().effective == os.getuid(), False
            with suppress(psutil.AccessDenied):  # a program with rights of its own
                marked = own and process.environ().get(LIFE_VARIABLE) == token
            found[process] = _Facts(process.ppid(), os.getsid(process.pid), own, marked)
    return found
