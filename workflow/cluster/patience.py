"""Waits out what a shared file system does for a while: stale handles, failed reads, no rights, no room, no handles."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 900.0
# What passes by itself, or after an administrator's hand. A missing file is an answer, not a fault.
_PASSING = frozenset(
    {
        *(errno.ESTALE, errno.EIO, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTCONN, errno.ESHUTDOWN),
        *(errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM),
        *(errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOLCK, errno.EREMOTEIO),
    }
)


def may_pass(error: OSError) -> bool:
    """Whether waiting may cure an error of the file system."""
    return error.errno in _PASSING


def patiently(action: Callable[[], T], what: str, patience_s: float = PATIENCE_S) -> T:
    """What an action returns, tried again while the file system refuses it; says so once.

    Raises the last OSError when the patience is over, and at once one that will not pass.
    """
    give_up = time.monotonic() + patience_s
    pause_s, told = 0.2, False
    while True:
        try:
            return action()
        except OSError as error:
            if not may_pass(error) or time.monotonic() + pause_s > give_up:
                raise
            if not told:
                print(f"{what}: {error}; trying again for {patience_s / 60:.0f} min", file=sys.stderr, flush=True)
                told = True
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 5.0)
