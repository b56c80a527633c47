"""Holds the files by which the tasks of one life of a job meet, and the private folder that Ray gets on each node."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import read_json, write_json
from workflow.cluster.locks import Lock, try_lock

_LOOK_S = 0.5  # no file on the shared file system is read more often
# Ray appends `/session_<date>_<time>_<microseconds>_<pid>/sockets/plasma_store`; a socket's path has 107 bytes.
LONGEST_TEMPORARY = 107 - len("/session_2000-01-01_00-00-00_000000_4194304/sockets/plasma_store.99")


class Sign:
    """A task's own file in the folder where they meet."""

    def __init__(self, path: Path, host: str, every_s: float) -> None:
        self._path, self._every_s = path, every_s
        self._content: dict[str, Any] = {"host": host, "state": "starting", "beat": 0}
        self._last = float("-inf")

    def tell(self, state: str, **facts: str) -> None:
        if self._content["state"] != "failed":  # the reason is worth more than what follows from it
            self._content |= {"state": state, **facts}
        self._write()

    def beat(self) -> None:
        if time.monotonic() - self._last >= self._every_s:
            self._content["beat"] += 1
            self._write()

    def _write(self) -> None:
        self._last = time.monotonic()
        try:
            write_json(self._path, self._content)
        except (OSError, UserError):
            return  # a full or faltering file system: the others bear a few beats missing


class Other:
    """Another task's file, and how long it has been silent."""

    def __init__(self, path: Path, name: str, stale_s: float) -> None:
        self.name = name
        self._path = path
        self._stale_s = stale_s
        self._content: dict[str, Any] = {}
        self._silent_s = 0.0
        self._looked = float("-inf")

    def look(self) -> dict[str, Any]:
        """What it last said; nothing before it first did."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return self._content
        self._silent_s += min(now - self._looked, 5.0)  # while we did not look ourselves, we cannot have heard it
        self._looked = now
        try:
            content = read_json(self._path)
        except (OSError, ValueError):
            return self._content
        if content != self._content:
            self._content, self._silent_s = content, 0.0
        return self._content

    def trouble(self) -> str | None:
        """A sentence when it failed, left or fell silent."""
        match self.look():
            case {"state": "failed", "error": str(error)}:
                return error
            case {"state": "ended"}:
                return f"{self.name} has left the Ray cluster"
            case {"state": str()} if self._silent_s > self._stale_s:
                return f"nothing was heard of {self.name} for {self._stale_s:.0f} s"
        return None


class PrivateFolder:
    """A private folder on this node whose path is short enough for Ray's sockets."""

    def __init__(self, env: Mapping[str, str]) -> None:
        prefix = f"rb{os.getuid()}-"
        base = _temporary_base(env, prefix)
        for leftover in base.glob(f"{prefix}*/lock"):
            _remove_leftover(leftover)
        self.folder, lock = _new_folder(prefix, base)
        self._lock: Lock | None = lock
        self.ray = self.folder / "r"
        """Ray's part, which Ray opens to everybody; the folder around it stays private."""

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            self._lock.__exit__(None, None, None)
            self._lock = None


def _temporary_base(env: Mapping[str, str], prefix: str) -> Path:
    for told in (env.get("SLURM_TMPDIR"), env.get("TMPDIR")):
        if told and os.access(told, os.W_OK | os.X_OK):
            base = Path(told).absolute()
            if len(os.fsencode(base / f"{prefix}12345678" / "r")) <= LONGEST_TEMPORARY:
                return base
    return Path("/tmp")


def _new_folder(prefix: str, base: Path) -> tuple[Path, Lock]:
    """A new folder and its lock.

    Another task of ours that starts at this moment may find the lock file before it is locked, take the folder for a
    leftover and remove it: then there is another one.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        lock = try_lock(folder / "lock", patience_s=1.0)
        if lock is not None:
            if (folder / "lock").exists():
                return folder, lock
            lock.__exit__(None, None, None)


def _remove_leftover(lock: Path) -> None:
    """Remove the folder of a task that was killed: its lock is free."""
    with suppress(OSError):
        folder = lock.parent.lstat()  # in /tmp others may have laid a trap under such a name
        is_ours = stat.S_ISDIR(folder.st_mode) and folder.st_uid == os.getuid()
        if is_ours and (held := try_lock(lock)) is not None:
            with held:
                shutil.rmtree(lock.parent, ignore_errors=True)


def write_secret(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # no other life's folder, no other's file
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
