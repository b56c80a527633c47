"""Checks a compute node as a program of its own, which imports only the standard library.

It tries a lock that another machine holds, reads a file that was renamed there, and renames one itself.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

FOLDERS = ("HOME", "HF_HOME", "TMPDIR")
"""Variables with folders into which a training writes."""


def unwritable_folders(variables: Mapping[str, str]) -> list[str]:
    """The folders of `FOLDERS` that cannot be written, and the reason."""
    found = []
    for name in FOLDERS:
        folder = Path(variables[name]) if variables.get(name) else None
        if folder is not None and ("$" in str(folder) or str(folder).startswith("~")):
            found.append(f"{name} ({folder}: never expanded, as in single quotes)")
            continue
        try:
            if folder is not None:
                there = next(path for path in (folder, *folder.parents) if path.exists())
                tempfile.TemporaryFile(dir=there).close()
        except OSError as error:
            found.append(f"{name} ({folder}: {error.strerror})")
    return found


def missing_interfaces(variables: Mapping[str, str]) -> Iterator[str]:
    """NCCL's and Gloo's variables that name no network interface of this machine."""
    own = [name for _, name in socket.if_nameindex()]
    # NCCL: beginnings of names; `=` exact names, `^` names to leave out. Gloo: exact names.
    for variable, exact in (("NCCL_SOCKET_IFNAME", False), ("GLOO_SOCKET_IFNAME", True)):
        value = variables.get(variable, "")
        names = value.removeprefix("=").split(",")
        same = exact or value.startswith("=")
        if (
            value
            and not value.startswith("^")
            and not any(name in own if same else any(one.startswith(name) for one in own) for name in names)
        ):
            yield f"{variable}={value}, but {socket.gethostname()} has {', '.join(own)}"


def main(folder: str, mark: str, setup: str) -> None:
    variables = os.environ | json.loads(setup)
    report = {"host": socket.gethostname(), "read": Path(folder, "renamed").read_text() == mark, "refused": False}
    report |= {"unwritable": unwritable_folders(variables), "interfaces": [*missing_interfaces(variables)]}
    with Path(folder, "lock").open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report["refused"] = True
    Path(folder, "draft").write_text(json.dumps(report))
    Path(folder, "draft").replace(Path(folder, "report"))


if __name__ == "__main__":
    main(*sys.argv[1:])
