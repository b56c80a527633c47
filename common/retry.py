"""Waits out what a shared file system does for a while: stale handles, failed reads, no rights, no room, no handles."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from common.files import DiskFull, user_name

T = TypeVar("T")

PATIENCE_S = 900.0
READ_PATIENCE_S = 30.0
"""For commands that only look: a person waits for them."""
# Room is made by people, while whoever waits for it keeps a node.
_ROOM_S = 30.0
# What passes by itself, or after an administrator's hand. A missing file is an answer, not a fault.
_PASSING = frozenset(
    {
        *(errno.ESTALE, errno.EIO, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTCONN, errno.ESHUTDOWN),
        *(errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM),
        *(errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOLCK, errno.EREMOTEIO),
    }
)


def is_transient(error: OSError | DiskFull) -> bool:
    """Whether waiting may cure an error of the file system."""
    return error.errno in _PASSING


def denying_owner(error: OSError | DiskFull) -> str | None:
    """The other user to whom a file belongs that one has no right to; None for one's own and for any other error.

    Where a folder hides it, the file counts as that folder's owner's.
    """
    name = getattr(error, "filename", None)
    if error.errno not in (errno.EACCES, errno.EPERM) or not isinstance(name, str | os.PathLike):
        return None
    for path in (Path(name), *Path(name).absolute().parents):
        with suppress(OSError):
            owner = path.stat().st_uid
            return None if owner == os.getuid() else user_name(owner)
    return None


def exists(path: Path) -> bool:
    """Whether a file is there; raises OSError where that cannot be known, which `is_file` may take for no."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def retry_io(action: Callable[[], T], what: str, patience_s: float = PATIENCE_S, for_others: bool = True) -> T:
    """What an action returns, tried again while the file system refuses it; says so once.

    Without `for_others` another user's refusal is final: one who only looks may have no right to, and never get it.

    The patience (half a minute for a full disk) begins with the first refusal: on a busy machine the action itself may
    take as long. Raises the last error when it is over, and at once one that will not pass.
    """
    refused: float | None = None
    pause_s = 0.2
    while True:
        try:
            return action()
        except (OSError, DiskFull) as error:
            limit_s = min(patience_s, _ROOM_S) if isinstance(error, DiskFull) else patience_s
            final = not is_transient(error) or (not for_others and denying_owner(error) is not None)
            if final or (refused is not None and time.monotonic() + pause_s > refused + limit_s):
                raise
            if refused is None:
                print(f"{what}: {error}; trying again for {limit_s:.0f} s", file=sys.stderr, flush=True)
                refused = time.monotonic()
            interruptible_sleep(pause_s)
            pause_s = min(2 * pause_s, 5.0)


def interruptible_sleep(seconds: float) -> None:
    """Sleeps, and hears a Ctrl-C within a second.

    A signal that comes between Python's last look for signals and the sleep itself does not end the sleep: it is heard
    after it.
    """
    for _ in range(int(seconds)):
        time.sleep(1)
    time.sleep(seconds % 1)


def run_interruptible(words: Sequence[str], patience_s: float, **how: Any) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` with the output as text and a limit; hears a Ctrl-C as `interruptible_sleep` does."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how) as process:
        give_up = time.monotonic() + patience_s
        try:
            while True:
                try:
                    out, said = process.communicate(timeout=1)
                    return subprocess.CompletedProcess(words, process.returncode, out, said)
                except subprocess.TimeoutExpired:
                    if time.monotonic() > give_up:
                        raise
        except BaseException:
            process.kill()
            raise
