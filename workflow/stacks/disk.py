"""One builder at a time in a folder, and what its disk says."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from common.errors import UserError
from common.redaction import without_secrets
from common.retry import interruptible_sleep


@contextlib.contextmanager
def builder_lock(folder: Path, name: str) -> Iterator[tuple[int, ...]]:
    """Waits for the folder's build lock and holds it; yields the descriptors that uv must inherit to hold it too."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            if not _lock(descriptor):
                print(f"{name}: waiting for another builder", file=sys.stderr, flush=True)
            while not _lock(descriptor):
                interruptible_sleep(0.5)
        except OSError as error:
            if error.errno not in {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}:
                raise
            print(
                f"{name}: {folder} has no file locks; let no other process build there at the same time",
                file=sys.stderr,
                flush=True,
            )
        yield (descriptor,)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    # A blocking flock would delay a Ctrl-C that arrives just before it.
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


@contextlib.contextmanager
def explaining_disk(name: str, folder: Path) -> Iterator[None]:
    """Turns file system errors into UserErrors, and reports a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise UserError(f"{name}: {without_secrets(str(error))}") from error
        raise UserError(f"{name}: the disk of {folder.resolve()} is full (or your quota is)") from None


def require_space(folder: Path, needed_gib: float, name: str) -> None:
    """UserError if the file system has less free space than that."""
    free_gib = shutil.disk_usage(folder).free / 2**30
    if free_gib < needed_gib:
        raise UserError(
            f"{name} needs about {needed_gib:.1f} GiB, and {folder.resolve()} has {free_gib:.1f} GiB free; "
            "make room there, or build elsewhere with --stacks-dir"
        )
