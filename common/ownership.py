"""Separates what this user alone could have written from what others could: only the first is obeyed.

A file or a folder counts as its owner's alone if neither its group nor others may write it; for access control lists
the group's bits are their mask. What is opened is checked, not a path: nobody can exchange it in between.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import open_regular, user_name

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_DEFAULT_ACL = "system.posix_acl_default"  # new files would get its rights, whatever the umask says
_obeyed: list[int] = []


class NotOwnError(UserError):
    """A file or a folder that another user owns or can write."""


def obey_only_own_files() -> None:
    """From now on this process reads by `read_own` only its user's files, and others can only read what it writes."""
    _obeyed[:] = [os.geteuid()]
    let_others_only_read()


def let_others_only_read() -> None:
    """From now on nobody else can write what this process writes."""
    os.umask(os.umask(0) | _OTHERS_WRITE)


def own_folder(folder: Path, levels: int = 0) -> None:
    """Make a folder, and so many above it, writable for this user alone; `NotOwnError` if another user owns one."""
    os.close(open_own_folder(folder, levels))


def open_own_folder(folder: Path, levels: int = 0) -> int:
    """The same, with the folder open: what it is opened by leads to it also after somebody has renamed one above."""
    top = folder.parents[levels - 1] if levels else folder
    descriptor = _open_folder(top, top, None)
    try:
        _make_own(descriptor, top)
        _require_own_links(descriptor, top)
        for name in folder.relative_to(top).parts:
            top /= name
            inner = _open_folder(name, top, descriptor)
            os.close(descriptor)
            descriptor = inner
            _make_own(descriptor, top)
            _require_own_links(descriptor, top)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open_folder(name: str | Path, folder: Path, above: int | None) -> int:
    """The folder, open; `NotOwnError` for a link of another user's, who would choose what is written where."""
    try:
        found = os.lstat(name, dir_fd=above)
        is_link = stat.S_ISLNK(found.st_mode)
        if is_link:
            _require(found, os.geteuid(), folder)
        # Nobody else can put another link in place of this user's: the sticky bit, or the folder above, forbids it.
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if is_link else os.O_NOFOLLOW)
        return os.open(name, flags, dir_fd=above)
    except OSError as error:
        error.filename = str(folder)
        raise


def _require_own_links(descriptor: int, folder: Path) -> None:
    """`NotOwnError` if a link of another user's is in an open folder: who writes a file of its name follows it."""
    with os.scandir(descriptor) as found:
        for entry in found:
            if entry.is_symlink():
                _require(entry.stat(follow_symlinks=False), os.geteuid(), folder / entry.name)


def _make_own(descriptor: int, folder: Path) -> None:
    found = os.fstat(descriptor)
    if found.st_uid == os.geteuid():
        with suppress(OSError):
            os.removexattr(descriptor, _DEFAULT_ACL)
        if found.st_mode & _OTHERS_WRITE:
            with suppress(OSError):
                os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & ~_OTHERS_WRITE)
            found = os.fstat(descriptor)
    _require(found, os.geteuid(), folder)


def own_tree(folder: Path) -> None:
    """The same for all folders of a tree, if there is one; `NotOwnError` if another user could have written a file."""
    with suppress(FileNotFoundError):
        for path, _, _, descriptor in os.fwalk(folder):
            _make_own(descriptor, Path(path))
            require_own_files(descriptor, Path(path))


def require_own_files(descriptor: int, folder: Path, suffix: str = "") -> None:
    """A `NotOwnError` if another user could have written a file of an open folder."""
    for name in os.listdir(descriptor):
        found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        if name.endswith(suffix) and not stat.S_ISDIR(found.st_mode):
            _require(found, os.geteuid(), folder / name)


def require_own(*paths: Path) -> None:
    """`NotOwnError` if another user could have written one of these files or folders, or the link to it."""
    for path in paths:
        _require(path.lstat(), os.geteuid(), path)
        _require(path.stat(), os.geteuid(), path)


def read_own(path: Path) -> str:
    """A file's text; `NotOwnError` if another user than this one, or than its folder's owner, could have written it."""
    with open_regular(path) as file:
        _require(os.fstat(file.fileno()), _obeyed[0] if _obeyed else path.parent.stat().st_uid, path)
        return file.read().decode("utf-8")


def read_own_json(path: Path) -> Any:
    """The content of such a JSON file."""
    return json.loads(read_own(path))


def _require(found: os.stat_result, owner: int, path: Path) -> None:
    if found.st_uid != owner:
        raise NotOwnError(
            f"{path} belongs to {user_name(found.st_uid)}, not to {user_name(owner)}: another user's file or folder is "
            "not obeyed; ask them to remove it, or give your experiment another name"
        )
    if found.st_mode & _OTHERS_WRITE and not stat.S_ISLNK(found.st_mode):
        raise NotOwnError(
            f"{path} can be written by other users, and is not obeyed; see who did, then: chmod -R go-w "
            f"{path if stat.S_ISDIR(found.st_mode) else path.parent}"
        )
