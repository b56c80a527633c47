"""Makes a stack's locks again, by the tools of each layer: uv, and conda-lock where there is an environment.yml."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import yaml

from common.errors import UserError
from workflow.stacks.conda import PLATFORM, PROGRAMS, check_conda_lock, find_conda
from workflow.stacks.definition import ENVS, load_stack
from workflow.stacks.lockfile import check_lock, env_folder, how_to_make, parse_lock, requirements_id
from workflow.stacks.uv import Uv, configured_uv, end_of_output, run, torch_arguments, uv_error

CONTROLLER_PYTHON = "3.11"
"""The oldest Python that the controller supports; its locks are valid for later ones too."""
_TORCH = re.compile(r"^(torch==[^\s;#]+)", re.MULTILINE)


def refresh_locks(name: str, envs: Path = ENVS, *, upgrade: bool = False) -> list[Path]:
    """Resolves the locks again and returns them; `upgrade` also replaces pins that still fit.

    A new lock replaces the old one only after its check has accepted it.
    """
    folder = env_folder(name, envs)
    found = [_refresh(name, folder / "requirements.lock", envs, upgrade)]
    if (folder / "environment.yml").is_file():
        if (folder / "stack.yaml").is_file():
            found.append(_refresh_conda(name, folder / "conda-lock.yml", envs, upgrade))
        else:
            (folder / "environment.yml").write_text(conda_environment(found[0]), encoding="utf-8")
            found.append(folder / "environment.yml")
    return found


def conda_environment(lock: Path) -> str:
    """A lock as an environment.yml for `snakemake --sdm conda`, which copies that file alone: it names no other."""
    pins = [f"{pin.name}=={pin.version}" + (f" ; {pin.marker}" if pin.marker else "") for pin in parse_lock(lock)]
    environment = {
        "channels": ["conda-forge", "nodefaults"],
        "dependencies": [f"python ={CONTROLLER_PYTHON}", "pip", {"pip": pins}],
    }
    header = f"# For `snakemake --sdm conda`: the pins of {lock.name}, by `make lock STACK={lock.parent.name}`.\n"
    return header + yaml.safe_dump(environment, sort_keys=False, width=200)


def _refresh(name: str, lock: Path, envs: Path, upgrade: bool) -> Path:
    uv = configured_uv(main_index_first=True)
    # Sources belong to the site, not to the lock; the header names a command that works everywhere.
    command = ["pip", "compile", "requirements.in", "--generate-hashes", "--quiet"]
    command += [*_target(name, lock.parent, envs, uv), *uv.arguments, "--no-emit-index-url", "--no-emit-find-links"]
    command += ["--custom-compile-command", f"{how_to_make(lock)} of {requirements_id(lock.parent)}"]
    command += ["--upgrade"] if upgrade else []
    fresh = lock.with_name(".requirements.lock.new")
    try:
        if lock.exists():
            shutil.copyfile(lock, fresh)  # uv keeps the pins of its output file
        status, output = uv.run([*command, "--output-file", fresh.name], cwd=lock.parent, show=True)
        if status != 0:
            raise uv_error(output, f"{name}: resolving {lock.with_name('requirements.in')}", uv)
        check_lock(name, envs, fresh)
        fresh.replace(lock)
    finally:
        fresh.unlink(missing_ok=True)
    return lock


def _target(name: str, folder: Path, envs: Path, uv: Uv) -> list[str]:
    """uv's arguments for what the lock is for."""
    overrides = ["--overrides", "overrides.txt"] if (folder / "overrides.txt").is_file() else []
    if not (folder / "stack.yaml").is_file():
        return ["--python-version", CONTROLLER_PYTHON, "--universal", *overrides]
    stack = load_stack(name, envs)
    # A stack is for one kind of machine, so its pins have no markers. Source builds may resolve to an sdist. uv.toml
    # gives their dependencies: uv would otherwise run their setup.py, which may import half the stack.
    target = ["--python-version", stack.python, "--only-binary", ":all:", *overrides]
    for package in stack.source_builds:
        target += ["--no-binary", package]
    if (folder / "uv.toml").is_file():
        # uv reads the project's root by default, not this folder.
        target += ["--config-file", "uv.toml"]
    torch = _TORCH.search((folder / "requirements.in").read_text(encoding="utf-8"))
    return target + torch_arguments(uv, torch[1] if torch else None, stack.torch_backend, stack.python)


def _refresh_conda(name: str, lock: Path, envs: Path, upgrade: bool) -> Path:
    tool, conda = Path(sys.executable).with_name("conda-lock"), find_conda()
    if not tool.is_file() or conda is None:
        lacks = f"{' or '.join(PROGRAMS)} (on PATH)" if tool.is_file() else "conda-lock (make .venv/dev.stamp)"
        raise UserError(
            f"{lock} is as it was: its refresh needs {lacks}, and a conda channel; requirements.lock is made"
        )
    fresh = lock.with_name(".conda-lock.new.yml")
    command = [str(tool), "lock", "--conda", conda, "--platform", PLATFORM, "--file", "environment.yml"]
    command += ["--lockfile", fresh.name, *([] if upgrade else ["--check-input-hash"])]
    if (virtual := lock.with_name("virtual-packages.yml")).is_file():
        command += ["--virtual-package-spec", virtual.name]
    try:
        if lock.exists():
            shutil.copyfile(lock, fresh)
        status, output = run(command, os.environ, cwd=lock.parent)
        if status not in {0, 4}:  # 4: environment.yml has not changed since
            raise UserError(
                f"{lock} is as it was: conda-lock found no solution, or reached no channel (conda's own settings: "
                f".condarc); requirements.lock is made. It said:\n{end_of_output(output)}"
            )
        check_conda_lock(load_stack(name, envs), fresh)
        fresh.replace(lock)
    finally:
        fresh.unlink(missing_ok=True)
    return lock
