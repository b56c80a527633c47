"""Checks before a build that this machine has everything that the stack's build and runs need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

from common.errors import UserError
from workflow.stacks.conda import CondaPackage
from workflow.stacks.definition import ENVS, Stack
from workflow.stacks.lockfile import Pin
from workflow.stacks.uv import find_uv

_PROGRAM = ENVS / "_needs.py"
LAYER = {
    "nvcc": "cuda-nvcc",
    "c++": "gxx_linux-64",
    "cc": "gcc_linux-64",
    "ninja": "ninja",
    "python-headers": "python",
    "libnuma": "libnuma",
}
"""The conda package that provides each need."""


def require_needs(stack: Stack, pins: Iterable[Pin], conda: list[CondaPackage] | None) -> list[str]:
    """The run-time needs of a GPU stack that this machine lacks, one line each; compute nodes must have them.

    UserError if the build, or the runs of a CPU stack, lack something. `conda` has the packages of the stack's conda
    layer; None if it is built without one.
    """
    _require_for_build(stack, conda)
    provided = {package.name for package in conda or []}
    locked = {pin.name for pin in pins}
    needs = [need for need in stack.run_needs if LAYER[need] not in provided and need not in locked]
    lines = [lack["line"] for lack in missing_needs(needs, stack)]
    if lines and stack.cuda is None:
        raise UserError("\n".join([f"{stack.name} cannot run on this machine:", *(f"  {line}" for line in lines)]))
    return lines


def _require_for_build(stack: Stack, conda: list[CondaPackage] | None) -> None:
    if conda is not None or not stack.source_builds or stack.cuda is None:
        return  # a conda layer brings the compilers of its lock
    # torch rejects a compiler of another CUDA release.
    if lines := [lack["line"] for lack in missing_needs(["nvcc", "c++"], stack, exact=True)]:
        build = f"{stack.name} builds {', '.join(stack.source_builds)} from source for CUDA {stack.cuda}"
        raise UserError("\n".join([f"{build}; this machine lacks:", *(f"  {line}" for line in lines)]))


def missing_needs(needs: Iterable[str], stack: Stack, *, exact: bool = False) -> list[dict[str, Any]]:
    """The needs that this machine lacks, each with its `line` and its Debian package (`debian`)."""
    asked = list(needs)
    if not asked:
        return []
    python = find_python(stack.python)
    if python is None:  # the build reports a missing Python; headers do not matter then
        asked = [need for need in asked if need != "python-headers"]
    command = [python or sys.executable, "-I", str(_PROGRAM), *asked, *(["--exact"] if exact else [])]
    command += ["--layer"] if stack.conda_lock else []
    command += ["--cuda", stack.cuda] if stack.cuda else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(f"{_PROGRAM} failed: {done.stderr.strip()[-500:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def find_python(release: str) -> str | None:
    """The Python of that release on this machine that uv would build with; None without any."""
    return _found_python(release, os.environ.get("PATH", ""))


@cache
def _found_python(release: str, path: str) -> str | None:
    """As `find_python`; uv looks through PATH, and stacks ask for the same releases."""
    command = [find_uv(), "python", "find", "--system", "--no-python-downloads", "--no-project", release]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
