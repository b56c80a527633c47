"""Checks a wheel that was built elsewhere, before it is installed in place of a source build."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.tags import compatible_tags, cpython_tags, platform_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from common.errors import UserError
from workflow.stacks.definition import Stack
from workflow.stacks.join import sha256_of
from workflow.stacks.lockfile import Pin


@dataclass(frozen=True)
class GivenWheel:
    """A file whose sha256, package, version and tags were checked."""

    package: str
    version: str
    path: Path
    sha256: str

    @property
    def requirement(self) -> str:
        """The wheel as a requirements file names it, with its hash."""
        return f"{self.package} @ {self.path.absolute().as_uri()} --hash=sha256:{self.sha256}\n"

    def record(self) -> dict[str, str]:
        """What verify.json keeps of it."""
        return {"package": self.package, "version": self.version, "file": self.path.name, "sha256": self.sha256}


def wheel_pairs(paths: Sequence[Path], hashes: Sequence[str]) -> list[tuple[Path, str]]:
    """The `--wheel PATH --sha256 HEX` pairs of a command line; UserError where one has no partner."""
    if len(paths) != len(hashes):
        raise UserError(
            f"--wheel is given {len(paths)} times and --sha256 {len(hashes)} times; give one --sha256 for each "
            "--wheel: `sha256sum FILE` on the machine that built the wheel prints it"
        )
    return list(zip(paths, hashes, strict=True))


def given_wheels(
    stack: Stack, pins: Sequence[Pin], given: Sequence[tuple[Path, str]], python: str | None = None
) -> list[GivenWheel]:
    """The files with their sha256, once each is what it is said to be.

    Each must have the given sha256, and be of a package of `source_builds`, in the lock's version, for this machine
    and for `python` (a feature release; by default the stack's). UserError names the first that is not.
    """
    found = [_checked(stack, pins, path, sha256, python or stack.python) for path, sha256 in given]
    if len({wheel.package for wheel in found}) < len(found):
        raise UserError(f"--wheel names one package twice: {', '.join(wheel.path.name for wheel in found)}; keep one")
    return found


def _checked(stack: Stack, pins: Sequence[Pin], path: Path, sha256: str, python: str) -> GivenWheel:
    if not path.is_file():
        raise UserError(f"--wheel: {path} is not there; correct the path")
    try:
        name, version, _, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename:
        raise UserError(
            f"--wheel: {path.name} is not a wheel's name; wanted NAME-VERSION-PYTHON-ABI-PLATFORM.whl, unchanged"
        ) from None
    if name not in stack.source_builds:
        raise UserError(
            f"--wheel: {stack.name} does not build {name} from source; a wheel is accepted for "
            f"{', '.join(stack.source_builds) or 'no package of it'} (source_builds in {stack.folder / 'stack.yaml'})"
        )
    pin = next(pin for pin in pins if pin.name == name)  # check_lock: every source build is pinned
    if str(version) != pin.version:
        raise UserError(f"--wheel: {path.name} is {name} {version}; {stack.lock}:{pin.line} wants {pin.version}")
    release = (int(python.split(".")[0]), int(python.split(".")[1]))
    interpreter, platforms = f"cp{release[0]}{release[1]}", list(platform_tags())
    usable = {*cpython_tags(release, platforms=platforms), *compatible_tags(release, interpreter, platforms)}
    if not tags & usable:
        raise UserError(
            f"--wheel: {path.name} does not fit Python {python} on this machine, which takes "
            f"{interpreter}-{interpreter}-{platforms[0]} and older platforms; build it for these"
        )
    got = sha256_of(path)
    if got != sha256.strip().lower():
        raise UserError(
            f"--wheel: {path.name} has sha256 {got}, and --sha256 says {sha256}; it is not the file that was built "
            "and noted: bring it again, or do not use it"
        )
    return GivenWheel(str(name), pin.version, path, got)
