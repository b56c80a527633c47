"""Reads a requirements.lock, and checks that it fulfils its requirements.in with hashes and without addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packaging.markers import Marker, default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from common.errors import UserError
from common.messages import unknown_name
from workflow.stacks.definition import ENVS, Stack, load_stack

_PIN = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[^\s;\\]+)\s*(;(?P<marker>[^\\]+))?\\?$")
_HASH = re.compile(r"\s+--hash=sha256:(?P<hex>[0-9a-f]{64})\s*\\?$")
_ADDRESS = re.compile(r"://|\s@\s|(^|\s)-{1,2}(i|f|e|index-url|extra-index-url|find-links|trusted-host|editable)\b")
_ABSOLUTE_PATH = re.compile(r"(^|[\s=\"'])(~?/|[A-Za-z]:\\)\S")


@dataclass(frozen=True)
class Pin:
    """One `name==version` of a lock, with the line that holds it (from 1) and its sha256 hashes."""

    name: str
    version: str
    line: int
    marker: str | None = None
    hashes: list[str] = field(default_factory=list)

    @property
    def requirement(self) -> str:
        """The pin as a requirements file holds it, with its hashes."""
        return " \\\n    ".join([f"{self.name}=={self.version}", *(f"--hash=sha256:{x}" for x in self.hashes)]) + "\n"


@dataclass(frozen=True)
class WantedPackage:
    """One requirement of a requirements.in, a constraint or an override, and where it stands."""

    requirement: Requirement
    source: str


def env_names(envs: Path = ENVS) -> list[str]:
    """Names of everything that has a lock: the stacks, the controller and the developer's tools."""
    return sorted(path.parent.name for path in envs.glob("*/requirements.in"))


def env_folder(name: str, envs: Path = ENVS) -> Path:
    """The folder of that environment; UserError when it has no requirements.in."""
    if not (envs / name / "requirements.in").is_file():
        raise UserError(f"{unknown_name('environment', name, env_names(envs))} (folders of {envs})")
    return envs / name


def parse_lock(path: Path) -> list[Pin]:
    """All pins of a lock in its order; UserError names the line that is neither pin, hash nor comment."""
    pins: list[Pin] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise UserError(f"{path} is missing; make it with `{_make(path)}`") from None
    for number, line in enumerate(lines, start=1):
        if _ADDRESS.search(line) or _ABSOLUTE_PATH.search(line):
            raise UserError(
                f"{path.name}:{number} of {path.parent.name} holds an address or a path; a lock holds names, "
                f"versions and hashes only, and sources come from pip's settings. Make it anew: `{_make(path)}`"
            )
        text = line.split(" #")[0].rstrip() if not line.lstrip().startswith("#") else ""
        if not text:
            continue
        if pin := _PIN.match(text):
            marker = pin["marker"].strip() if pin["marker"] else None
            pins.append(Pin(canonicalize_name(pin["name"]), pin["version"], number, marker))
        elif (found := _HASH.match(text)) and pins:
            pins[-1].hashes.append(found["hex"])
        else:
            raise UserError(
                f"{path.name}:{number} of {path.parent.name} is not understood: {text!r}; wanted `name==version` "
                f"or an indented `--hash=sha256:…`. Make it anew: `{_make(path)}`"
            )
    return pins


def check_lock(name: str, envs: Path = ENVS, lock: Path | None = None) -> list[Pin]:
    """The pins of the lock, once it fulfils the requirements, overrides and constraints beside it.

    `lock` stands in for requirements.lock, as a new one does before it replaces the old. UserError names the
    requirement, the pin and the command that makes the lock anew.
    """
    folder = env_folder(name, envs)
    lock = lock or folder / "requirements.lock"
    is_stack = (folder / "stack.yaml").is_file()
    pins = parse_lock(lock)
    for pin in pins:
        if not pin.hashes:
            raise UserError(f"{lock}:{pin.line}: {pin.name}=={pin.version} has no hash; run `{_make(lock)}`")
        if is_stack and pin.marker:
            # One stack is one environment: verify.py counts on every pin being installed.
            raise UserError(f"{lock}:{pin.line}: {pin.name} depends on a marker; run `{_make(lock)}`")
    stack = load_stack(name, envs) if is_stack else None
    if stack is not None:
        _check_declared(stack, pins, lock)
    environment = _environment(stack.python if stack else None)
    pinned = {pin.name: pin for pin in pins if not pin.marker or Marker(pin.marker).evaluate(environment)}
    wanted, constraints = _read(folder / "requirements.in")
    overrides = _read(folder / "overrides.txt")[0] if (folder / "overrides.txt").is_file() else []
    overridden = {canonicalize_name(item.requirement.name) for item in overrides}
    wanted = [item for item in wanted if canonicalize_name(item.requirement.name) not in overridden]

    for item in wanted:
        if _applies(item, environment):
            _require(item, pinned.get(canonicalize_name(item.requirement.name)), lock)
    for item in overrides + constraints:
        if bound := pinned.get(canonicalize_name(item.requirement.name)):
            if _applies(item, environment):
                _require(item, bound, lock)
            elif item in overrides:
                raise UserError(
                    f"{lock}:{bound.line} pins {bound.name}, which {item.source} leaves out; run `{_make(lock)}`"
                )
    return pins


def is_pinned(pinned: str, there: str) -> bool:
    """Whether pip takes that version for the pinned one: a 2.11.0+cu130 is a 2.11.0, but not the other way round."""
    try:
        return SpecifierSet(f"=={pinned}").contains(Version(there), prereleases=True)
    except InvalidVersion:
        return False


def _check_declared(stack: Stack, pins: list[Pin], lock: Path) -> None:
    """What stack.yaml says of packages is what the lock pins."""
    pinned = {pin.name: pin.version for pin in pins}
    if pinned.get(stack.trainer, stack.trainer_version) != stack.trainer_version:
        raise UserError(
            f"{stack.folder / 'stack.yaml'} says trainer_version {stack.trainer_version}, and {lock} pins "
            f"{stack.trainer}=={pinned[stack.trainer]}; make them agree"
        )
    for package in stack.source_builds:
        if package not in pinned:
            raise UserError(f"{stack.folder / 'stack.yaml'} builds {package} from source, which {lock} does not pin")


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


def _applies(item: WantedPackage, environment: dict[str, str]) -> bool:
    return item.requirement.marker is None or item.requirement.marker.evaluate(environment)


def _environment(python: str | None) -> dict[str, str]:
    environment: dict[str, str] = {key: str(value) for key, value in default_environment().items()}
    if python is not None:
        environment |= {"python_version": python, "python_full_version": f"{python}.0"}
    return environment


def _read(path: Path) -> tuple[list[WantedPackage], list[WantedPackage]]:
    """Requirements and constraints of a requirements.in, those of its -r and -c lines included."""
    wanted: list[WantedPackage] = []
    constraints: list[WantedPackage] = []
    for number, text in _lines(path):
        source = f"{path}:{number}"
        option, _, rest = text.partition(" ")
        if option in {"-r", "--requirement"}:
            more, bounds = _read(path.parent / rest.strip())
            wanted += more
            constraints += bounds
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


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    for number, line in enumerate(lines, start=1):
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        if text:
            yield number, text


def _make(lock: Path) -> str:
    return f"make locks STACK={lock.parent.name}"
