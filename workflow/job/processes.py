"""Starts and ends a run's own processes on this node, never by name: other users have trainers and Rays here, too."""

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

LIFE_VARIABLE = "ROLLOUTBENCH_LIFE"  # marks the processes that one task of one life of a job has started

GRACE_S = 5.0
_REAP_TIMEOUT_S = 10.0  # a process blocked in a driver may not die even by SIGKILL
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_PR_SET_CHILD_SUBREAPER = 36


def start_in_session(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    token: str,
    log: Path | BinaryIO,
    ignore_sigterm: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a process that leads its own session, carries a life's token, dies with this one and appends to a log.

    With `ignore_sigterm` neither the process nor its children end at SIGTERM.
    """
    prepare = die_with_this_process()

    def block_sigterm() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        prepare()

    if isinstance(log, Path):
        log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") if isinstance(log, Path) else nullcontext(log) as output:
        return subprocess.Popen(
            command,
            cwd=cwd,
            env={**env, LIFE_VARIABLE: token},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=block_sigterm if ignore_sigterm else prepare,
        )


def end_session(process: subprocess.Popen[bytes] | None, token: str) -> None:
    """End at once a process of `start_in_session` and all processes that carry the token; nothing if it is None."""
    if process is not None:
        end_processes_of(token, grace_s=0, sessions=[process.pid])
        with suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_TIMEOUT_S)


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own, so that it can still be found and ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def reap_orphans() -> None:
    """Reap adopted processes that have ended, which would otherwise fill the process table.

    Processes that this one starts are in its own session or lead one; their starter waits for them.
    """
    for process in _own_children(ended=True):
        with suppress(ProcessLookupError, ChildProcessError):
            if os.getsid(process.pid) not in (os.getsid(0), process.pid):
                os.waitpid(process.pid, os.WNOHANG)


def living_children() -> set[int]:
    return {process.pid for process in _own_children(ended=False)}


def _own_children(ended: bool) -> Iterator[psutil.Process]:
    for process in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if (process.status() in _ENDED) is ended:
                yield process


def end_processes_of(
    token: str, grace_s: float = GRACE_S, sessions: Collection[int] = (), orphans: Collection[int] = ()
) -> list[int]:
    """End this user's processes on this node that carry a life's token, their descendants and their sessions.

    `sessions`: further sessions to end, since some processes overwrite their environment. `orphans`: adopted processes
    to end. A process that ignores SIGTERM is killed after `grace_s`. Returns the processes that did not end.
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
    own: bool  # it belongs to this user
    marked: bool  # it carries the token


def _found(
    living: Mapping[psutil.Process, _Facts], known: set[psutil.Process], sessions: Collection[int]
) -> set[psutil.Process]:
    # psutil compares processes by pid and start time: a known process is never another one with its pid.
    recalled = known & living.keys()
    by_pid = {process.pid: process for process in living}
    # The kernel may have reused a session's number, if its leader lives and is not one of ours.
    foreign = {pid for pid, leader in by_pid.items() if leader not in recalled and not living[leader].marked}
    open_sessions = set(sessions) - foreign
    found = recalled | {process for process, facts in living.items() if facts.marked or facts.session in open_sessions}
    pids = {process.pid for process in found}
    while children := {process for process, facts in living.items() if facts.parent in pids} - found:
        found |= children
        pids |= {process.pid for process in children}
    ancestor = by_pid.get(os.getpid())
    while ancestor is not None:
        found.discard(ancestor)
        ancestor = by_pid.get(living[ancestor].parent)
    return {process for process in found if living[process].own}


def _living(token: str) -> dict[psutil.Process, _Facts]:
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError), process.oneshot():  # it may end in the meantime
            if process.status() in _ENDED:
                continue
            own, marked = process.uids().effective == os.getuid(), False
            with suppress(psutil.AccessDenied):  # a setuid program
                marked = own and process.environ().get(LIFE_VARIABLE) == token
            found[process] = _Facts(process.ppid(), os.getsid(process.pid), own, marked)
    return found
