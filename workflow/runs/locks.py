"""Locks that the kernel releases when their holder dies, however it dies."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path

from common.errors import UserError
from common.files import user_name
from common.messages import print_message
from common.ownership import own_folder


class Lock:
    """A held lock; leaving the `with` block releases it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor  # a process that inherits it holds the lock, too

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def release(self) -> None:
        os.close(self.descriptor)


def try_lock(path: Path, note: str = "", patience_s: float = 0.0) -> Lock | None:
    """The lock on a file, with a note for other processes; None if another process holds it.

    `patience_s` outlasts readers of the note: `holder_note` takes the lock for microseconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _open_lock(path)
    give_up = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                os.close(descriptor)
                raise UserError(
                    f"{path}: this file system has no locks ({error.strerror}); ask for a mount with locks (Lustre: "
                    "flock), or work on another file system"
                ) from None
            if not isinstance(error, BlockingIOError):
                os.close(descriptor)
                raise
            if time.monotonic() >= give_up:
                os.close(descriptor)
                return None
            time.sleep(0.05)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, note.encode(), 0)
    return Lock(descriptor)


def _open_lock(path: Path) -> int:
    """A lock's file, open: whoever could open it could hold the lock, so it is its user's alone."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(f"{path} is a link, and a lock must be a file; see who made it, and remove it") from None
        raise
    found = os.fstat(descriptor)
    if found.st_uid == os.geteuid() and found.st_mode & 0o077:
        with suppress(OSError):
            os.fchmod(descriptor, 0o600)
    return descriptor


def can_ask(path: Path) -> bool:
    """Whether this user may know who holds a lock; of another user's nothing is known."""
    return not path.exists() or os.access(path, os.R_OK)


def holder_note(path: Path) -> str | None:
    """The note of a lock's holder, empty if it has just taken the lock; None if it is free, or another user's."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(descriptor, 4096).decode()
    finally:
        os.close(descriptor)
    return None


def _keep_in_place(folder: Path) -> None:
    """Let nobody who may write the folder above put another one in its place: the sticky bit forbids it."""
    above = folder.parent
    found = above.stat()
    if not found.st_mode & 0o022 or found.st_mode & stat.S_ISVTX:
        return
    if found.st_uid == os.geteuid():
        with suppress(OSError):
            above.chmod(stat.S_IMODE(found.st_mode) | stat.S_ISVTX)
            return
    print_message(
        f"warning: others can write {above}, and could put another folder in place of {folder.name}; "
        f"ask {user_name(found.st_uid)} for: chmod +t {above}"
    )


def _own_folders(folder: Path) -> None:
    """Let this user alone write an experiment's folders, also those of an earlier start."""
    own_folder(folder)
    for found in folder.iterdir():
        if found.name != "runs" and found.is_dir() and not found.is_symlink():
            for path, _, _ in os.walk(found):
                own_folder(Path(path))


def lock_experiment(results: str) -> Lock:
    """The lock on an experiment's results, held until this process ends; exits if another process holds it."""
    folder = Path(results)
    path = folder / ".head.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _own_folders(folder)
        _keep_in_place(folder.absolute())
        lock = try_lock(path, note=f"process {os.getpid()} on {socket.gethostname()}", patience_s=1.0)
    except UserError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {results} cannot be written ({error.strerror}); it must be a folder that you own")
    if lock is None:
        sys.exit(
            f"error: another snakemake works on {results} ({holder_note(path)}); "
            "wait for it, end it, or give your experiment another name"
        )
    # A new start revokes `rolloutbench cancel`.
    path.with_name("cancelled.json").unlink(missing_ok=True)
    return lock
