"""Names a user by id; in containers a user may have no name."""

from __future__ import annotations

import os
import pwd


def user_name(uid: int | None = None) -> str:
    """The name of a user, ours by default; the number where there is no name, which Slurm understands, too."""
    uid = os.getuid() if uid is None else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
