"""Checks that the stack's run-time environment is the one in force: its paths, and the disk of its caches."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HOW = "start it by `python -m workflow.stacks verify`, as jobs do"


def run_time_troubles(run: dict[str, Any]) -> dict[str, str | None]:
    """What is wrong with each path and each cache of verify.json's `run`, by the name of its check; None: nothing."""
    found = {
        f"{variable} has {path}": _path_trouble(variable, path)
        for variable, paths in run.get("paths", {}).items()
        for path in paths
    }
    return found | {
        f"{variable} is on a disk that locks and runs code": _cache_trouble(variable)
        for variable in run.get("caches", {})
    }


def _path_trouble(variable: str, path: str) -> str | None:
    wanted = path.replace("{env}", sys.prefix)
    if not Path(wanted).is_dir():
        return "there is no such folder"
    # By where they lead: a conda environment is reached by a link.
    if Path(wanted).resolve() not in [Path(each).resolve() for each in os.environ.get(variable, "").split(os.pathsep)]:
        return f"this process does not have it; {_HOW}, and let nothing replace {variable}"
    return None


def _cache_trouble(variable: str) -> str | None:
    folder = os.environ.get(variable)
    if folder is None:
        return f"this process does not have it; {_HOW}"
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with _locked_file(folder) as descriptor:
            # A disk mounted noexec refuses this, and with it every kernel that is compiled there.
            mmap.mmap(descriptor, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
    except OSError as error:
        return f"{folder}: {error.strerror}; name another disk by ROLLOUTBENCH_CACHE_DIR (on Slurm: in setup.sh)"
    return None


@contextlib.contextmanager
def _locked_file(folder: str) -> Iterator[int]:
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"\0" * mmap.PAGESIZE)
        file.flush()
        # FlashInfer and tvm-ffi hold such a lock while they compile.
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield file.fileno()
