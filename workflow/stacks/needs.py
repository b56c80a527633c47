"""Checks, before a stack is built, that this machine has what its build and its runs need."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from common.errors import UserError
from workflow.stacks.condalock import CondaPackage
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
"""The conda package that brings what is needed."""


def require_needs(stack: Stack, pins: Iterable[Pin], conda: list[CondaPackage] | None) -> list[str]:
    """What this machine lacks of the run-time needs of a GPU stack, one line each: compute nodes have to have it.

    UserError when its build, or the runs of a CPU stack, lack something. `conda`: the packages of the conda layer that
    is about to be installed; None where there will be none.
    """
    _require_for_build(stack, conda)
    brought = {package.name for package in conda or []}
    locked = {pin.name for pin in pins}
    asked = [need for need in stack.run_needs if LAYER[need] not in brought and need not in locked]
    lines = [lack["line"] for lack in missing_needs(asked, stack)]
    if lines and stack.cuda is None:
        raise UserError("\n".join([f"{stack.name} cannot run on this machine:", *(f"  {line}" for line in lines)]))
    return lines


def _require_for_build(stack: Stack, conda: list[CondaPackage] | None) -> None:
    if not stack.source_builds or stack.cuda is None:
        return
    what = f"{stack.name} builds {', '.join(stack.source_builds)} from source for CUDA {stack.cuda}"
    if conda is None:
        # Of that very release: torch refuses to compile with another.
        if lines := [lack["line"] for lack in missing_needs(["nvcc", "c++"], stack, exact=True)]:
            raise UserError(
                "\n".join([f"{what}; this machine has not what it takes:", *(f"  {line}" for line in lines)])
            )
        return
    has = {package.name: package.version for package in conda}
    if not has.get("cuda-nvcc", "").startswith(f"{stack.cuda}."):
        raise UserError(
            f"{what}, and conda-lock.yml has cuda-nvcc {has.get('cuda-nvcc', 'not at all')}; mend environment.yml "
            f"and run `make locks STACK={stack.name}`"
        )
    if not any(name.startswith(("gxx_", "gxx")) for name in has):
        raise UserError(f"{what}, and conda-lock.yml has no C++ compiler (gxx_linux-64)")


def missing_needs(needs: Iterable[str], stack: Stack, *, exact: bool = False) -> list[dict[str, Any]]:
    """What this machine lacks of those needs, each with its `line` and `debian`, the package that brings it."""
    asked = list(needs)
    if not asked:
        return []
    python = find_python(stack.python)
    if python is None:  # without one the build says so, and its headers are of no interest
        asked = [need for need in asked if need != "python-headers"]
    command = [python or sys.executable, "-I", str(_PROGRAM), *asked, *(["--exact"] if exact else [])]
    command += ["--layer"] if stack.conda_lock else []
    command += ["--cuda", stack.cuda] if stack.cuda else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(f"{_PROGRAM} failed: {done.stderr.strip()[-500:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def find_nvcc() -> str | None:
    """CUDA's compiler as builds find it: CUDA_HOME's alone where it is set, else PATH's, else /usr/local/cuda's."""
    if home := os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"):
        return shutil.which("nvcc", path=f"{home}/bin")
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def find_python(release: str) -> str | None:
    """This machine's Python of that release, which uv would build with."""
    command = [find_uv(), "python", "find", "--system", "--no-python-downloads", "--no-project", release]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
