"""How is a requirements.lock made anew from its requirements.in?"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from workflow.stacks.definition import ENVS, load_stack
from workflow.stacks.lockfile import check_lock, env_folder
from workflow.stacks.uv import configured_uv, explained, torch_arguments

CONTROLLER_PYTHON = "3.11"
"""The oldest Python that the controller runs on; its locks serve every later one too."""

_TORCH = re.compile(r"^(torch==[^\s;#]+)", re.MULTILINE)


def refresh_lock(name: str, envs: Path = ENVS, *, upgrade: bool = False) -> Path:
    """The lock, resolved anew; pins that still fit stay unless `upgrade` is given.

    The new lock replaces the old one only after `check_lock` has accepted it.
    """
    folder = env_folder(name, envs)
    lock = folder / "requirements.lock"
    backend: list[str] = []
    uv = configured_uv(main_index_first=True)
    if (folder / "stack.yaml").is_file():
        stack = load_stack(name, envs)
        # A stack is installed on one kind of machine; no marker may leave a pin out of it.
        target = ["--python-version", stack.python, "--no-build"]
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
            raise explained(said, f"{name}: resolving {folder / 'requirements.in'}", uv)
        check_lock(name, envs, fresh)
        fresh.replace(lock)
    finally:
        fresh.unlink(missing_ok=True)
    return lock
