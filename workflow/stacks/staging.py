"""Creates the folders in which environments are built, and moves each to its final path in one step."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from common.errors import UserError
from common.redaction import without_secrets
from common.retry import interruptible_sleep

_PREFIX = ".building-"
_FOREIGN_LEFTOVER_S = 24 * 3600
"""Age at which leftovers of another host's builder are removed: its lock may be invisible here."""


@contextlib.contextmanager
def builder_lock(folder: Path, name: str) -> Iterator[tuple[int, ...]]:
    """Waits for the folder's build lock and holds it; yields the descriptors that uv must inherit to hold it too.

    Removes leftovers of killed builders.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            if not _lock(descriptor):
                print(f"{name}: waiting for another builder", file=sys.stderr, flush=True)
            while not _lock(descriptor):
                interruptible_sleep(0.5)
            _remove_leftovers(folder)
        except OSError as error:
            if error.errno not in {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}:
                raise
            # Two builders may then do the same work; the rename still shows only complete environments.
            print(f"{name}: {folder} has no file locks; building without", file=sys.stderr, flush=True)
        yield (descriptor,)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def building_folder(folder: Path, lock_id: str) -> Iterator[Path]:
    """A new folder on the final one's file system; removed at the end unless it was moved."""
    temporary = folder / f"{_PREFIX}{lock_id}-{os.getpid()}@{socket.gethostname()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def growing_prefix(final: Path) -> Iterator[Path]:
    """A path in the final folder for a new conda prefix; removed at the end unless the link `env` points to it.

    Files of a conda environment contain its path, so it cannot be renamed. It is built in place, beside the one that
    it replaces, and counts only once `env` points to it.
    """
    prefix = final / f"env-{socket.gethostname()}-{os.getpid()}-{time.time_ns() // 10**6}"
    made = not final.exists()
    final.mkdir(exist_ok=True)
    try:
        yield prefix
    finally:
        if not _points_to(final / "env", prefix):
            shutil.rmtree(prefix, ignore_errors=True)
            if made:
                with contextlib.suppress(OSError):
                    final.rmdir()


def link_into_place(prefix: Path, final: Path) -> None:
    """Points the final folder's `env` to the finished prefix, after its files are on the disk."""
    _flush(prefix)
    env, link = final / "env", prefix.with_name(f"{prefix.name}.link")
    before = final / env.readlink() if env.is_symlink() else None
    if before is None and env.exists():
        # A folder made by uv, which a link cannot replace in one step.
        before = prefix.with_name(f"{prefix.name}.replaced")
        env.rename(before)
    link.symlink_to(prefix.name)
    link.replace(env)
    _flush(final)
    if before is not None:
        shutil.rmtree(before, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    """Removes what killed builders left: with the lock held no other one of this host is alive.

    A lock of another host may be invisible here: its folders stay for a day.
    """
    own = (f"@{socket.gethostname()}", f"env-{socket.gethostname()}-")
    prefixes = [path for path in folder.glob("*/env-*") if not _points_to(path.with_name("env"), path)]
    for leftover in (*folder.glob(f"{_PREFIX}*"), *prefixes):
        is_own = leftover.name.endswith(own[0]) or leftover.name.startswith(own[1])
        if not is_own and time.time() - leftover.lstat().st_mtime < _FOREIGN_LEFTOVER_S:
            continue
        if leftover.is_symlink():
            leftover.unlink(missing_ok=True)
        else:
            shutil.rmtree(leftover, ignore_errors=True)


def move_into_place(temporary: Path, final: Path) -> None:
    """Renames the finished folder to its final path, after its files are on the disk."""
    _flush(temporary)
    if final.exists():
        # An empty output folder that Snakemake created, or a broken environment.
        final.rename(temporary.with_name(temporary.name.replace("@", "-replaced@")))
    temporary.rename(final)
    _flush(final.parent)
    for old in final.parent.glob(f"{_PREFIX}*-{os.getpid()}-replaced@*"):
        shutil.rmtree(old, ignore_errors=True)


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


def foreign_paths(folder: Path, needle: str) -> list[str]:
    """Names of small files in `folder` that contain `needle`, a path: these programs would break after a rename."""
    small = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.is_symlink()]
    small = [path for path in small if path.stat().st_size < 2**20]
    return [path.name for path in small if needle.encode() in path.read_bytes()]


def _lock(descriptor: int) -> bool:
    # A blocking flock would delay a Ctrl-C that arrives just before it.
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _points_to(link: Path, prefix: Path) -> bool:
    return link.is_symlink() and str(link.readlink()) == prefix.name


def _flush(folder: Path) -> None:
    """Writes the file system's pending data to the disk: otherwise a rename may arrive before the files."""
    subprocess.run(["sync", "--file-system", folder], stderr=subprocess.DEVNULL, check=False)
