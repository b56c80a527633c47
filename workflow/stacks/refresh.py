"""Makes a stack's locks anew from its requirements.in and its environment.yml."""

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
"""The oldest Python that the controller runs on; its locks serve every later one too."""

_TORCH = re.compile(r"^(torch==[^\s;#]+)", re.MULTILINE)


def refresh_lock(name: str, envs: Path = ENVS, *, upgrade: bool = False) -> Path:
    """The lock, resolved anew; pins that still fit stay unless `upgrade` is given.

    The new lock replaces the old one only after `check_lock` has accepted it. A stack's uv.toml is read by uv from
    its folder: there it may tell the metadata of packages that have no wheel.
    """
    folder = env_folder(name, envs)
    lock = folder / "requirements.lock"
    backend: list[str] = []
    uv = configured_uv(main_index_first=True)
    if (folder / "stack.yaml").is_file():
        stack = load_stack(name, envs)
        # A stack is installed on one kind of machine; no marker may leave a pin out of it.
        # What is built from source later may be chosen as source. uv.toml tells what it needs: without that uv would
        # run its setup.py here, which may want half the stack to be there.
        target = ["--python-version", stack.python, "--only-binary", ":all:"]
        for package in stack.source_builds:
            target += ["--no-binary", package]
        if (folder / "uv.toml").is_file():
            # By itself uv reads the project's root and not this folder.
            target += ["--config-file", "uv.toml"]
        torch = _TORCH.search((folder / "requirements.in").read_text(encoding="utf-8"))
        backend = torch_arguments(uv, torch[1] if torch else None, stack.torch_backend, stack.python)
    else:
        target = ["--python-version", CONTROLLER_PYTHON, "--universal"]
    if (folder / "overrides.txt").is_file():
        target += ["--overrides", "overrides.txt"]

    command = ["pip", "compile", "requirements.in", "--generate-hashes", "--quiet", *target, *uv.arguments, *backend]
    # Sources belong to the site and not to the lock, and the header names the command that everybody has.
    command += ["--no-emit-index-url", "--no-emit-find-links"]
    command += ["--custom-compile-command", f"make locks STACK={name}"]
    if upgrade:
        command += ["--upgrade"]
    fresh = folder / ".requirements.lock.new"
    try:
        if lock.exists():
            shutil.copyfile(lock, fresh)  # uv keeps the pins that it finds in its output file
        status, said = uv.run([*command, "--output-file", fresh.name], cwd=folder, show=True)
        if status != 0:
            raise uv_error(said, f"{name}: resolving {folder / 'requirements.in'}", uv)
        check_lock(name, envs, fresh)
        fresh.replace(lock)
    finally:
        fresh.unlink(missing_ok=True)
    return lock


def refresh_conda_lock(name: str, envs: Path = ENVS) -> Path | None:
    """The stack's conda lock, resolved anew from environment.yml; None where that was not done.

    Where conda-lock or a conda program is missing, the present lock is left as it is, and the one command that makes
    it on a connected machine is told.
    """
    folder = env_folder(name, envs)
    if not (folder / "stack.yaml").is_file() or not (folder / "environment.yml").is_file():
        return None
    stack = load_stack(name, envs)
    conda, beside = find_conda(), Path(sys.executable).with_name("conda-lock")
    program = str(beside) if beside.exists() else shutil.which("conda-lock")
    needs = [("conda-lock", program), ("one of micromamba, mamba and conda", conda)]
    missing = [what for what, there in needs if not there]
    if program is None or conda is None:
        print(
            f"{name}: conda-lock.yml stays as it is, for want of {' and of '.join(missing)}. Where the channels can be "
            f"reached: {HOW_TO_INSTALL_CONDA}; then `uv tool install conda-lock && make locks STACK={name}`",
            file=sys.stderr,
            flush=True,
        )
        return None
    fresh = folder / ".conda-lock.new.yml"
    command = [program, "lock", "--file", "environment.yml", "--platform", PLATFORM, "--conda", conda]
    if (folder / "virtual-packages.yml").is_file():
        command += ["--virtual-package-spec", "virtual-packages.yml"]
    elif stack.cuda is not None:
        raise UserError(
            f"{folder / 'virtual-packages.yml'} is missing: without it the lock would be made for the driver of this "
            f'machine, or for none; it names `__cuda: "{stack.cuda}"` and `__glibc: "2.28"` (conda-lock\'s docs)'
        )
    try:
        done = subprocess.run(
            [*command, "--lockfile", fresh.name], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode != 0 or not fresh.exists():
            last = end_of_output(done.stderr or done.stdout)
            raise UserError(f"{name}: resolving {folder / 'environment.yml'} failed; conda-lock said last:\n{last}")
        check_conda_lock(stack, fresh)
        fresh.replace(folder / "conda-lock.yml")
    finally:
        fresh.unlink(missing_ok=True)
    return folder / "conda-lock.yml"
