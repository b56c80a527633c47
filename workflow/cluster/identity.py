"""Gives a run's folder one identity, by whatever path it is reached.

Slurm runs one job of a name at a time (singleton), and the identity is part of that name: a second mount, a link or a
renamed parent must not make a second name. A copy is another run: its folder has another inode, at another path.
"""

from __future__ import annotations

import secrets
from typing import Any

from common.files import write_json
from workflow.cluster.history import read_object
from workflow.cluster.paths import RunPaths


def identity(run: RunPaths) -> str | None:
    """The identity of a run's folder; None where it has none yet, or only that of the folder it was copied from."""
    told = read_object(run.identity)
    here = run.folder.resolve()
    # Not every file system keeps its inodes over a mount: there the path must do.
    ours = told.get("inode") == here.stat().st_ino or told.get("folder") == str(here)
    return str(told["token"]) if ours and "token" in told else None


def make_identity(run: RunPaths) -> str:
    """The identity of a run's folder, given to it if it has none; for whoever holds the head's lock."""
    if (token := identity(run)) is None:
        token, here = secrets.token_hex(16), run.folder.resolve()
        write_json(run.identity, {"token": token, "inode": here.stat().st_ino, "folder": str(here)})
    return token


def is_of(record: dict[str, Any], run: RunPaths) -> bool:
    """Whether a job's record was written for this folder, not for one that it was copied from."""
    if "identity" in record:
        return bool(record["identity"] == identity(run))
    here = str(run.folder.resolve())
    return bool(record.get("folder", here) == here)
