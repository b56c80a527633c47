"""Computes the environment variables of a process in a built stack: activation, run-time paths and caches.

Every job imports this: it needs the standard library alone.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError

CACHE_VARIABLE = "ROLLOUTBENCH_CACHE_DIR"
"""The site sets this to a disk for caches, which must support file locks and run code."""
ENV = "{env}"
"""Placeholder in verify.json for the environment's folder, which is renamed after its verification."""


def stack_environment(stack_file: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of every process in a built stack, from its verify.json (`stack_file`).

    Adds the activation's variables, the run-time paths in front of those of `environ`, the cache folders (created
    here, private to this user and node), and the stack's programs first on PATH.
    """
    verdict = json.loads(stack_file.read_text(encoding="utf-8"))
    return environment_in((stack_file.parent / "env").absolute(), verdict, environ)


def environment_in(env: Path, verdict: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a process in the environment `env`, from the verdict's `environment` and `run`."""
    # A conda environment would import what the user has installed with `pip install --user` in place of its own
    # packages, which verify.py, run with -I, has checked.
    found = {**environ, **verdict.get("environment", {}), "PYTHONNOUSERSITE": "1"}
    run = verdict.get("run", {})
    listed_paths = run.get("paths", {})
    for variable, listed in {**listed_paths, "PATH": [f"{ENV}/bin", *listed_paths.get("PATH", [])]}.items():
        paths = [path.replace(ENV, str(env)) for path in listed]
        before = found.get(variable, os.defpath if variable == "PATH" else "")
        # Empty parts would mean the working directory; a path is listed once.
        rest = [part for part in before.split(os.pathsep) if part and part not in paths]
        found[variable] = os.pathsep.join([*paths, *rest])
    if caches := run.get("caches"):
        folder = cache_folder(run["cache"], environ)
        found |= {variable: str(folder / name) for variable, name in caches.items()}
    return found


def cache_folder(key: str, environ: Mapping[str, str]) -> Path:
    """Creates and returns a stack's cache folder, `<base>/rolloutbench-<uid>/<node>/<key>`.

    The base is ROLLOUTBENCH_CACHE_DIR, else the node's temporary folder. No two nodes, users, stacks or processes that
    run at the same time share compiled code. UserError if other users can write to the folder.
    """
    temporary = (environ.get("SLURM_TMPDIR"), environ.get("TMPDIR"))
    usable = next((path for path in temporary if path and os.access(path, os.W_OK | os.X_OK)), "/tmp")
    base = Path(environ.get(CACHE_VARIABLE) or usable).absolute()
    own = base / f"rolloutbench-{os.getuid()}"
    folder = own / socket.gethostname() / key
    try:
        base.mkdir(parents=True, exist_ok=True)
        own.mkdir(mode=0o700, exist_ok=True)
        found = own.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            # Processes load compiled code from there.
            raise UserError(f"{own} must be a folder that only you can write to; remove it, or {_SET_CACHE_DIR}")
        return _unshared(folder)
    except OSError as error:
        raise UserError(f"the caches of {key} cannot be created in {own}: {error.strerror}; {_SET_CACHE_DIR}") from None


_held: dict[Path, Path] = {}


def _unshared(folder: Path) -> Path:
    """The first of `folder`, `folder.1`, ... that no other process holds; held until this process ends.

    Runs on one node must not share vLLM's compile cache, which has no lock (vllm-project/vllm#24601): one reads what
    the other has half written, and fails. A later run finds the compiled code again.
    """
    for number in itertools.count():
        if folder in _held:
            break
        slot = folder.with_name(f"{folder.name}.{number}") if number else folder
        slot.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(slot / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        except OSError:
            pass  # without locks; the check on the node reports it
        _held[folder] = slot
    return _held[folder]


_SET_CACHE_DIR = f"set {CACHE_VARIABLE} to a disk with file locks that runs code (on Slurm: in setup.sh)"
