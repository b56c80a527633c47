"""Makes the private folder that Ray gets on each node, and the secret of a life's cluster."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from workflow.cluster.locks import Lock, try_lock

# Ray appends `/session_<date>_<time>_<microseconds>_<pid>/sockets/plasma_store`; a socket's path has 107 bytes.
LONGEST_TEMPORARY = 107 - len("/session_2000-01-01_00-00-00_000000_4194304/sockets/plasma_store.99")


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
