"""Resolves a stack's locks again from its requirements.in and environment.yml."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from common.errors import UserError
from workflow.stacks.conda import HOW_TO_INSTALL_CONDA, find_conda
from workflow.stacks.condalock import PLATFORM, check_conda_lock
from workflow.stacks.definition import ENVS, load_stack
from workflow.stacks.lockfile import check_lock, env_folder
from workflow.stacks.uv import configured_uv, end_of_output, torch_arguments, uv_error

CONTROLLER_PYTHON = "3.11"
"""The oldest Python that the controller supports; its locks are valid for later ones too."""

_TORCH = re.compile(r"^(torch==[^\s;#]+)", re.MULTILINE)


def refresh_lock(name: str, envs: Path = ENVS, *, upgrade: bool = False) -> Path:
    """Resolves the lock again and returns it; `upgrade` also replaces pins that still fit.

    The new lock replaces the old one only after `check_lock` has accepted it. A stack's uv.toml may give the metadata
    of packages without a wheel.
    """
    folder = env_folder(name, envs)
    lock = folder / "requirements.lock"
    backend: list[str] = []
    uv = configured_uv(main_index_first=True)
    if (folder / "stack.yaml").is_file():
        stack = load_stack(name, envs)
        # A stack is for one kind of machine, so its pins have no markers. Source builds may resolve to an sdist.
        # uv.toml gives their dependencies: uv would otherwise run their setup.py, which may import half the stack.
        target = ["--python-version", stack.python, "--only-binary", ":all:"]
        for package in stack.source_builds:
            target += ["--no-binary", package]
        if (folder / "uv.toml").is_file():
            # uv reads the project's root by default, not this folder.
            target += ["--config-file", "uv.toml"]
        torch = _TORCH.search((folder / "requirements.in").read_text(encoding="utf-8"))
        backend = torch_arguments(uv, torch[1] if torch else None, stack.torch_backend, stack.python)
    else:
        target = ["--python-version", CONTROLLER_PYTHON, "--universal"]
    if (folder / "overrides.txt").is_file():
        target += ["--overrides", "overrides.txt"]

    command = ["pip", "compile", "requirements.in", "--generate-hashes", "--quiet", *target, *uv.arguments, *backend]
    # Sources belong to the site, not to the lock; the header names a command that works everywhere.
    command += ["--no-emit-index-url", "--no-emit-find-links"]
    command += ["--custom-compile-command", f"make locks STACK={name}"]
    if upgrade:
        command += ["--upgrade"]
    fresh = folder / ".requirements.lock.new"
    try:
        if lock.exists():
            shutil.copyfile(lock, fresh)  # uv keeps the pins of its output file
        status, output = uv.run([*command, "--output-file", fresh.name], cwd=folder, show=True)
        if status != 0:
            raise uv_error(output, f"{name}: resolving {folder / 'requirements.in'}", uv)
        check_lock(name, envs, fresh)
        fresh.replace(lock)
    finally:
        fresh.unlink(missing_ok=True)
    return lock


def refresh_conda_lock(name: str, envs: Path = ENVS) -> Path | None:
    """Resolves the stack's conda lock again from environment.yml; None if it was not done.

    If conda-lock or a conda program is missing, it leaves the lock and prints the command that makes it.
    """
    folder = env_folder(name, envs)
    if not (folder / "stack.yaml").is_file() or not (folder / "environment.yml").is_file():
        return None
    stack = load_stack(name, envs)
    conda, own = find_conda(), Path(sys.executable).with_name("conda-lock")
    program = str(own) if own.exists() else shutil.which("conda-lock")
    if program is None or conda is None:
        programs = (("conda-lock", program), ("one of micromamba, mamba and conda", conda))
        missing = " and ".join(each for each, path in programs if not path)
        stack.log(
            f"conda-lock.yml does not change: missing {missing}. On a machine that reaches the channels, "
            f"{HOW_TO_INSTALL_CONDA}; then run `uv tool install conda-lock && make locks STACK={name}`"
        )
        return None
    fresh = folder / ".conda-lock.new.yml"
    command = [program, "lock", "--file", "environment.yml", "--platform", PLATFORM, "--conda", conda]
    if (folder / "virtual-packages.yml").is_file():
        command += ["--virtual-package-spec", "virtual-packages.yml"]
    elif stack.cuda is not None:
        raise UserError(
            f"{folder / 'virtual-packages.yml'} is missing: without it the lock depends on this machine's driver; "
            f'create it with `__cuda: "{stack.cuda}"` and `__glibc: "2.28"` (see conda-lock\'s docs)'
        )
    try:
        done = subprocess.run(
            [*command, "--lockfile", fresh.name], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode != 0 or not fresh.exists():
            end = end_of_output(done.stderr or done.stdout)
            raise UserError(f"{name}: resolving {folder / 'environment.yml'} failed; conda-lock's output:\n{end}")
        check_conda_lock(stack, fresh)
        fresh.replace(folder / "conda-lock.yml")
    finally:
        fresh.unlink(missing_ok=True)
    return folder / "conda-lock.yml"
