"""Starts and ends a run's own processes on this node, never by name: other users have trainers and Rays here, too.

This process adopts every descendant that loses its parent, so that its tree is complete: whatever was started in it,
and has dropped its parents, its session or its environment, is below it. In Slurm the rest ends with the step.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import BinaryIO

import psutil

from node.ranks import die_with_this_process

GRACE_S = 5.0
_REAP_TIMEOUT_S = 10.0  # a process blocked in a driver may not die even by SIGKILL
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_PR_SET_CHILD_SUBREAPER = 36
_before: dict[int, set[int]] = {}
"""By started process: the children that this process had before it."""


def start_in_session(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: Path | BinaryIO, ignore_sigterm: bool = False
) -> subprocess.Popen[bytes]:
    """Start a process that leads its own session, dies with this one and appends to a log.

    With `ignore_sigterm` neither the process nor its children end at SIGTERM.
    """
    prepare = die_with_this_process()

    def block_sigterm() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        prepare()

    adopt_orphans()
    before = living_children()
    if isinstance(log, Path):
        log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") if isinstance(log, Path) else nullcontext(log) as output:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=block_sigterm if ignore_sigterm else prepare,
        )
    _before[process.pid] = before
    return process


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own, so that it can still be found and ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def living_children() -> set[int]:
    """Those of this process, adopted ones too."""
    return {process.pid for process in psutil.Process().children() if _lives(process)}


def reap_orphans() -> None:
    """Reap adopted processes that have ended, which would otherwise fill the process table.

    Processes that this one starts lead a session or are in its own; their starter waits for them.
    """
    for process in psutil.Process().children():
        with suppress(ProcessLookupError, ChildProcessError):
            if not _lives(process) and os.getsid(process.pid) not in (os.getsid(0), process.pid):
                os.waitpid(process.pid, os.WNOHANG)


def end_processes(*started: subprocess.Popen[bytes] | None, grace_s: float = 0) -> None:
    """End processes of `start_in_session` with their trees and with the orphans that they have left.

    A process that ignores SIGTERM is killed after `grace_s`.
    """
    ours = {process.pid for process in started if process is not None}
    if not ours:
        return
    foreign = (set().union(*(_before[pid] for pid in ours)) | _before.keys()) - ours
    kill_at, terminated = time.monotonic() + grace_s, set[psutil.Process]()
    while found := set(_trees(ours, foreign)):
        now = time.monotonic()
        for process in found if now >= kill_at else found - terminated:
            with suppress(psutil.NoSuchProcess):
                process.kill() if now >= kill_at else process.terminate()
        terminated |= found
        if now > kill_at + _REAP_TIMEOUT_S:
            break
        time.sleep(0.05)
        reap_orphans()
    for process in filter(None, started):
        with suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_TIMEOUT_S)
        _before.pop(process.pid, None)


def _trees(ours: set[int], foreign: set[int]) -> Iterator[psutil.Process]:
    """The living processes below this one, without the trees of its other children."""
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            # Short programs that this process itself runs stay in its session.
            if child.pid in foreign or (child.pid not in ours and os.getsid(child.pid) == os.getsid(0)):
                continue
            yield from (process for process in (child, *child.children(recursive=True)) if _lives(process))


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() not in _ENDED)
    return False
