"""Reads, checks and makes the locks of a folder of envs/.

requirements.lock must be made of its requirements.in, and have hashes and no addresses; uv makes it, and conda-lock
the lock of a conda layer.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from packaging.utils import canonicalize_name

from common.errors import UserError
from common.messages import unknown_name
from engines import engines
from trainers.registry import trainers
from workflow.stacks.conda import PLATFORM, PROGRAMS, check_conda_lock, find_conda
from workflow.stacks.definition import ENVS, Stack, found_names, load_stack
from workflow.stacks.uv import Uv, configured_uv, end_of_output, run, torch_arguments, uv_error

CONTROLLER_PYTHON = "3.11"
"""The oldest Python that the controller supports; its locks are valid for later ones too."""
_TORCH = re.compile(r"^(torch==[^\s;#]+)", re.MULTILINE)
_PIN = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[^\s;\\]+)\s*(;(?P<marker>[^\\]+))?\\?$")
_HASH = re.compile(r"\s+--hash=sha256:(?P<hex>[0-9a-f]{64})\s*\\?$")
_MADE_OF = re.compile(r"^#    make lock STACK=\S+ of (\w{12})$", re.MULTILINE)
_ADDRESS = re.compile(r"://|\s@\s|(^|\s)-{1,2}(i|f|e|index-url|extra-index-url|find-links|trusted-host|editable)\b")
_ABSOLUTE_PATH = re.compile(r"(^|[\s=\"'])(~?/|[A-Za-z]:\\)\S")


@dataclass(frozen=True)
class Pin:
    """One `name==version` of a lock, with its line (from 1) and sha256 hashes."""

    name: str
    version: str
    line: int
    marker: str | None = None
    hashes: list[str] = field(default_factory=list)

    @property
    def requirement(self) -> str:
        """The pin with its hashes, in the format of a requirements file."""
        return " \\\n    ".join([f"{self.name}=={self.version}", *(f"--hash=sha256:{x}" for x in self.hashes)]) + "\n"


def env_names(envs: Path = ENVS) -> list[str]:
    """Names of all environments with a lock: the stacks, the controller and the developers' tools."""
    return sorted(path.parent.name for path in envs.glob("*/requirements.in"))


def env_folder(name: str, envs: Path = ENVS) -> Path:
    """The folder of that environment; UserError if it has no requirements.in."""
    if name in found_names():
        raise UserError(f"{name} was recorded as found: it has no lock. Record another state of it with `found`")
    if not (envs / name / "requirements.in").is_file():
        raise UserError(f"{unknown_name('environment', name, env_names(envs))} (folders of {envs})")
    return envs / name


def parse_lock(path: Path) -> list[Pin]:
    """All pins of a lock, in order; UserError names a line that is no pin, hash or comment."""
    pins: list[Pin] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise UserError(f"{path} is missing; make it with `{how_to_make(path)}`") from None
    for number, line in enumerate(lines, start=1):
        if _ADDRESS.search(line) or _ABSOLUTE_PATH.search(line):
            raise UserError(
                f"{path.name}:{number} of {path.parent.name} has an address or a path; a lock has names, versions "
                f"and hashes only, and pip's settings name the sources. Make it again: `{how_to_make(path)}`"
            )
        text = line.split(" #")[0].rstrip() if not line.lstrip().startswith("#") else ""
        if not text:
            continue
        if pin := _PIN.match(text):
            marker = pin["marker"].strip() if pin["marker"] else None
            pins.append(Pin(canonicalize_name(pin["name"]), pin["version"], number, marker))
        elif (match := _HASH.match(text)) and pins:
            pins[-1].hashes.append(match["hex"])
        else:
            raise UserError(
                f"{path.name}:{number} of {path.parent.name} is not understood: {text!r}; wanted `name==version` "
                f"or an indented `--hash=sha256:…`. Make it again: `{how_to_make(path)}`"
            )
    return pins


def check_lock(name: str, envs: Path = ENVS, lock: Path | None = None) -> list[Pin]:
    """Checks that the lock was made of the requirements beside it, and returns its pins.

    `lock` replaces requirements.lock, to check a new lock before it is used. UserError names the command that makes the
    lock again.
    """
    folder = env_folder(name, envs)
    lock = lock or folder / "requirements.lock"
    is_stack = (folder / "stack.yaml").is_file()
    pins = parse_lock(lock)
    for pin in pins:
        if not pin.hashes:
            raise UserError(f"{lock}:{pin.line}: {pin.name}=={pin.version} has no hash; run `{how_to_make(lock)}`")
        if is_stack and pin.marker:
            # verify.py expects every pin to be installed.
            raise UserError(f"{lock}:{pin.line}: {pin.name} depends on a marker; run `{how_to_make(lock)}`")
    made_of = _MADE_OF.search(lock.read_text(encoding="utf-8"))
    if made_of and made_of[1] != requirements_id(folder):
        raise UserError(
            f"{folder / 'requirements.in'} (or what it includes, or overrides.txt) has changed since {lock} was made; "
            f"run `{how_to_make(lock)}`"
        )
    if is_stack:
        _check_declared(load_stack(name, envs), pins, lock)
    return pins


def requirements_id(folder: Path) -> str:
    """12 hex digits for the requirements and overrides of that folder, without comments; a lock's header has them."""
    return hashlib.sha256(
        "\n".join(_lines(folder / "requirements.in") + _lines(folder / "overrides.txt")).encode()
    ).hexdigest()[:12]


def _lines(path: Path) -> list[str]:
    """The lines of a file of requirements and of those that it includes."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    texts = [text for line in lines if (text := re.sub(r"(^|\s)#.*", "", line).strip())]
    included = [text.split()[1] for text in texts if text.startswith(("-r ", "--requirement "))]
    return texts + [line for file in included for line in _lines(path.parent / file)]


def torch_index(stack: Stack, pins: Iterable[Pin], uv: Uv) -> list[str]:
    """The arguments that make uv use PyTorch's own index, if no other source has the pinned torch."""
    torch = next((f"torch=={pin.version}" for pin in pins if pin.name == "torch"), None)
    return torch_arguments(uv, torch, stack.torch_backend, stack.python)


def _check_declared(stack: Stack, pins: list[Pin], lock: Path) -> None:
    """UserError if stack.yaml and the lock disagree about the trainer, the engine or what is built from source."""
    declared, pinned = stack.folder / "stack.yaml", {pin.name: pin.version for pin in pins}
    of_trainers = {one.name: [canonicalize_name(one.distribution)] for one in trainers() if one.trains}
    of_engines = {one.name: [canonicalize_name(package) for package in one.packages] for one in engines()}
    for key, name, known in (("trainer", stack.trainer, of_trainers), ("engine", stack.engine, of_engines)):
        other = next((one for packages in known.values() for one in packages if one in pinned), None)
        if name in known and other and not set(known[name]) & set(pinned):
            raise UserError(f"{declared} has {key} {name}, but {lock} pins {other} and no {' or '.join(known[name])}")
    (package,) = of_trainers.get(stack.trainer, [stack.trainer])
    if pinned.get(package, stack.trainer_version) != stack.trainer_version:
        raise UserError(
            f"{declared} has trainer_version {stack.trainer_version}, but {lock} pins {package}=={pinned[package]}; "
            "correct one of them"
        )
    for package in stack.source_builds:
        if package not in pinned:
            raise UserError(f"{declared} builds {package} from source, but {lock} does not pin it")


def how_to_make(lock: Path) -> str:
    """The command that makes this lock again."""
    return f"make lock STACK={lock.parent.name}"


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
