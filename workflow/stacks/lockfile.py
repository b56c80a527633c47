"""Reads, checks and refreshes a stack's locks.

A requirements.lock must meet its requirements.in, and have hashes and no addresses.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from packaging.markers import Marker, default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from common.errors import UserError
from common.messages import unknown_name
from workflow.stacks.definition import ENVS, Stack, found_names, load_stack
from workflow.stacks.uv import Uv, configured_uv, torch_arguments, uv_error

CONTROLLER_PYTHON = "3.11"
"""The oldest Python that the controller supports; its locks are valid for later ones too."""
_TORCH = re.compile(r"^(torch==[^\s;#]+)", re.MULTILINE)
_PIN = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[^\s;\\]+)\s*(;(?P<marker>[^\\]+))?\\?$")
_HASH = re.compile(r"\s+--hash=sha256:(?P<hex>[0-9a-f]{64})\s*\\?$")
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


@dataclass(frozen=True)
class WantedPackage:
    """A requirement, constraint or override, with its file and line."""

    requirement: Requirement
    source: str

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    def applies(self, environment: dict[str, str]) -> bool:
        return self.requirement.marker is None or self.requirement.marker.evaluate(environment)


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
        raise UserError(f"{path} is missing; make it with `{_make(path)}`") from None
    for number, line in enumerate(lines, start=1):
        if _ADDRESS.search(line) or _ABSOLUTE_PATH.search(line):
            raise UserError(
                f"{path.name}:{number} of {path.parent.name} has an address or a path; a lock has names, versions "
                f"and hashes only, and pip's settings name the sources. Make it again: `{_make(path)}`"
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
                f"or an indented `--hash=sha256:…`. Make it again: `{_make(path)}`"
            )
    return pins


def check_lock(name: str, envs: Path = ENVS, lock: Path | None = None) -> list[Pin]:
    """Checks the lock against the requirements, overrides and constraints beside it and returns its pins.

    `lock` replaces requirements.lock, to check a new lock before it is used. UserError names the requirement, the pin
    and the command that makes the lock again.
    """
    folder = env_folder(name, envs)
    lock = lock or folder / "requirements.lock"
    is_stack = (folder / "stack.yaml").is_file()
    pins = parse_lock(lock)
    for pin in pins:
        if not pin.hashes:
            raise UserError(f"{lock}:{pin.line}: {pin.name}=={pin.version} has no hash; run `{_make(lock)}`")
        if is_stack and pin.marker:
            # verify.py expects every pin to be installed.
            raise UserError(f"{lock}:{pin.line}: {pin.name} depends on a marker; run `{_make(lock)}`")
    stack = load_stack(name, envs) if is_stack else None
    if stack is not None:
        _check_declared(stack, pins, lock)
    environment: dict[str, str] = {key: str(value) for key, value in default_environment().items()}
    if stack:
        environment |= {"python_version": stack.python, "python_full_version": f"{stack.python}.0"}
    pinned = {pin.name: pin for pin in pins if not pin.marker or Marker(pin.marker).evaluate(environment)}
    requirements, constraints = _read(folder / "requirements.in")
    overrides = _read(folder / "overrides.txt")[0] if (folder / "overrides.txt").is_file() else []
    overridden = {item.name for item in overrides}
    for item in requirements:
        if item.name not in overridden and item.applies(environment):
            _require(item, pinned.get(item.name), lock)
    for item in overrides + constraints:
        found = pinned.get(item.name)
        if found and item.applies(environment):
            _require(item, found, lock)
        elif found and item in overrides:
            raise UserError(f"{lock}:{found.line} pins {found.name}, which {item.source} excludes; run `{_make(lock)}`")
    return pins


def torch_index(stack: Stack, pins: Iterable[Pin], uv: Uv) -> list[str]:
    """The arguments that make uv use PyTorch's own index, if no other source has the pinned torch."""
    torch = next((f"torch=={pin.version}" for pin in pins if pin.name == "torch"), None)
    return torch_arguments(uv, torch, stack.torch_backend, stack.python)


def _check_declared(stack: Stack, pins: list[Pin], lock: Path) -> None:
    """UserError if stack.yaml and the lock disagree about packages."""
    pinned = {pin.name: pin.version for pin in pins}
    if pinned.get(stack.trainer, stack.trainer_version) != stack.trainer_version:
        raise UserError(
            f"{stack.folder / 'stack.yaml'} has trainer_version {stack.trainer_version}, but {lock} pins "
            f"{stack.trainer}=={pinned[stack.trainer]}; correct one of them"
        )
    for package in stack.source_builds:
        if package not in pinned:
            raise UserError(f"{stack.folder / 'stack.yaml'} builds {package} from source, but {lock} does not pin it")


def _require(item: WantedPackage, pin: Pin | None, lock: Path) -> None:
    if pin is None:
        raise UserError(f"{item.source} wants {item.requirement}, which {lock} does not pin; run `{_make(lock)}`")
    try:
        met = item.requirement.specifier.contains(Version(pin.version), prereleases=True)
    except InvalidVersion:
        met = False
    if not met:
        raise UserError(
            f"{item.source} wants {item.requirement}, but {lock}:{pin.line} pins {pin.name}=={pin.version}; "
            f"run `{_make(lock)}`"
        )


def _read(path: Path) -> tuple[list[WantedPackage], list[WantedPackage]]:
    """The requirements and constraints of a requirements.in and of its -r and -c lines."""
    wanted: list[WantedPackage] = []
    constraints: list[WantedPackage] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    for number, line in enumerate(lines, start=1):
        text, source = re.sub(r"(^|\s)#.*", "", line).strip(), f"{path}:{number}"
        if not text:
            continue
        option, _, rest = text.partition(" ")
        if option in {"-r", "--requirement"}:
            more, bounds = _read(path.parent / rest.strip())
            wanted, constraints = wanted + more, constraints + bounds
        elif option in {"-c", "--constraint"}:
            constraints += _constraints(path.parent / rest.strip())
        else:
            try:
                wanted.append(WantedPackage(Requirement(text), source))
            except InvalidRequirement as error:
                raise UserError(f"{source}: {text!r} is not a requirement: {error}") from None
    return wanted, constraints


def _constraints(path: Path) -> list[WantedPackage]:
    if path.suffix != ".lock":
        return _read(path)[0]
    return [
        WantedPackage(
            Requirement(f"{pin.name}=={pin.version}" + (f" ; {pin.marker}" if pin.marker else "")), f"{path}:{pin.line}"
        )
        for pin in parse_lock(path)
    ]


def _make(lock: Path) -> str:
    return f"make locks STACK={lock.parent.name}"


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
