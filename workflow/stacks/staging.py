"""Folders in which an environment grows, and the step that puts it at its final place whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from common.errors import UserError
from common.retry import interruptible_sleep
from workflow.stacks.uv import redacted

_PREFIX = ".building-"
_PREFIX_NAME = re.compile(r"env-(?P<host>.+)-(?P<pid>\d+)-\d+(\.[a-z]+)?$")
_FOREIGN_LEFTOVER_S = 24 * 3600
"""A folder of another host's builder is left alone for a day: its lock may not reach this host."""


@contextlib.contextmanager
def builder_lock(folder: Path, name: str) -> Iterator[tuple[int, ...]]:
    """Holds the folder's build lock, waiting for another builder; yields what uv must inherit to hold it too.

    What killed builders left there is removed first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            if not _taken(descriptor):
                print(f"{name}: waiting for another builder", file=sys.stderr, flush=True)
            while not _taken(descriptor):
                interruptible_sleep(0.5)
        except OSError as error:
            if error.errno not in {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}:
                raise
            # Two builders then do the work twice; the rename still lets only whole environments appear.
            print(f"{name}: {folder} has no file locks; building without", file=sys.stderr, flush=True)
        _remove_leftovers(folder)
        yield (descriptor,)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def building_folder(folder: Path, lock_id: str) -> Iterator[Path]:
    """A new folder beside the final one, on the same file system; removed at the end if it still lies there."""
    temporary = folder / f"{_PREFIX}{lock_id}-{os.getpid()}@{socket.gethostname()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def growing_prefix(final: Path) -> Iterator[Path]:
    """The path, with nothing there yet, of a conda prefix in the final folder; removed if `env` does not lead to it.

    Such an environment holds its own path in many of its files and cannot be renamed: it grows where it stays, and
    counts only once the link `env` leads to it. One that replaces another grows beside it.
    """
    prefix = final / f"env-{socket.gethostname()}-{os.getpid()}-{time.time_ns() // 10**6}"
    made = not final.exists()
    final.mkdir(exist_ok=True)
    try:
        yield prefix
    finally:
        if not _leads_to(final / "env", prefix):
            shutil.rmtree(prefix, ignore_errors=True)
            if made:
                with contextlib.suppress(OSError):
                    final.rmdir()


def link_into_place(prefix: Path, final: Path) -> None:
    """Makes `env` of the final folder lead to the finished prefix, which is on the disk before it is visible."""
    _flush(prefix)
    env, link = final / "env", prefix.with_name(f"{prefix.name}.link")
    before = final / env.readlink() if env.is_symlink() else None
    if before is None and env.exists():
        # An environment that uv made, which a link cannot replace in one step.
        before = prefix.with_name(f"{prefix.name}.replaced")
        env.rename(before)
    link.symlink_to(prefix.name)
    link.replace(env)
    _flush(final)
    if before is not None:
        shutil.rmtree(before, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    for leftover in folder.glob(f"{_PREFIX}*"):
        rest, _, host = leftover.name.rpartition("@")
        _remove_unless_used(leftover, host, rest.rpartition("-")[2])
    for leftover in folder.glob("*/env-*"):
        named = _PREFIX_NAME.match(leftover.name)
        if named and not _leads_to(leftover.with_name("env"), leftover):
            _remove_unless_used(leftover, named["host"], named["pid"])


def move_into_place(temporary: Path, final: Path) -> None:
    """Puts the finished folder at its final path, on the disk before it is visible."""
    _flush(temporary)
    if final.exists():
        # Snakemake makes a rule's output folder beforehand; anything else there is a broken environment.
        final.rename(temporary.with_name(temporary.name.replace("@", "-replaced@")))
    temporary.rename(final)
    _flush(final.parent)
    for old in final.parent.glob(f"{_PREFIX}*-{os.getpid()}-replaced@*"):
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def explaining_disk(name: str, folder: Path, advice: str = "") -> Iterator[None]:
    """An error of the file system in it becomes a UserError, which tells a disk that is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise UserError(f"{name}: {redacted(str(error))}") from error
        raise UserError(f"{name}: the disk of {folder.resolve()} is full (or your quota is){advice}") from None


def require_space(folder: Path, needed_gib: float, name: str) -> None:
    """UserError when the file system has less free than that."""
    free_gib = shutil.disk_usage(folder).free / 2**30
    if free_gib < needed_gib:
        raise UserError(
            f"{name} needs about {needed_gib:.1f} GiB, and {folder.resolve()} has {free_gib:.1f} GiB free; "
            "make room there, or build elsewhere with --stacks-dir"
        )


def foreign_paths(folder: Path, needle: str) -> list[str]:
    """Small files of env/bin that hold that text: programs that would break when the folder is renamed."""
    small = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.is_symlink()]
    small = [path for path in small if path.stat().st_size < 2**20]
    return [path.name for path in small if needle.encode() in path.read_bytes()]


def _remove_unless_used(leftover: Path, host: str, pid: str) -> None:
    if host == socket.gethostname():
        used = _alive(pid)
    else:
        used = time.time() - leftover.lstat().st_mtime < _FOREIGN_LEFTOVER_S
    if used:
        return
    if leftover.is_symlink():
        leftover.unlink(missing_ok=True)
    else:
        shutil.rmtree(leftover, ignore_errors=True)


def _taken(descriptor: int) -> bool:
    # Not a lock that is waited for: a Ctrl-C that comes just before it would be heard after it.
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _alive(pid: str) -> bool:
    if not pid.isdigit() or int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _leads_to(link: Path, prefix: Path) -> bool:
    return link.is_symlink() and str(link.readlink()) == prefix.name


def _flush(folder: Path) -> None:
    """Writes that file system's dirty pages: a rename may reach the disk before the files that it shows."""
    subprocess.run(["sync", "--file-system", folder], stderr=subprocess.DEVNULL, check=False)
