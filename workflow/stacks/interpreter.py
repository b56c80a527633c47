"""Reads what an interpreter that is already there has, and compares it with a lock."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from common.errors import UserError
from common.messages import did_you_mean
from workflow.stacks.lockfile import Pin

_ASK = """
import json, platform, site, sys, sysconfig
from importlib.metadata import distributions
packages = {}
for one in distributions():
    name = one.metadata["Name"]
    if name:
        packages.setdefault(name, one.version or "no version")
folders = [folder for folder in site.getsitepackages() if folder in sys.path]
print(json.dumps({
    "release": ".".join(platform.python_version_tuple()[:2]),
    "implementation": sys.implementation.name, "packages": packages, "folders": folders,
    "programs": sysconfig.get_path("scripts"),
}))
"""
_LIMIT_S = 300
NOT_INSTALLED = "not installed"
"""What verify.py, too, says of a package that is not there."""


@dataclass(frozen=True)
class Interpreter:
    """A Python that somebody else has installed, with what it imports from its own folders."""

    path: Path
    release: str
    """Feature release, as in "3.12"."""
    packages: dict[str, str]
    """Version by normalized name, of what an import finds."""
    folders: list[str]
    """Its site-packages, in the order of sys.path."""
    programs: str
    """The folder of its console scripts."""


@dataclass(frozen=True)
class Difference:
    """One package (or `python`) that is not as the lock says."""

    name: str
    wanted: str
    """The lock's version, or NOT_INSTALLED."""
    there: str

    @property
    def kind(self) -> str:
        """`missing`, `extra` or `different`."""
        if self.there == NOT_INSTALLED:
            return "missing"
        return "extra" if self.wanted == NOT_INSTALLED else "different"


def read_interpreter(path: Path) -> Interpreter:
    """What that Python is and has; UserError when it does not start or is no CPython.

    Neither PYTHONPATH nor the user's own packages (`pip install --user`) count: no job would see them.
    """
    if not path.is_file() or not os.access(path, os.X_OK):
        raise UserError(
            f"--python: {path} is not a program; give the path that `python3 -c 'import sys; "
            "print(sys.executable)'` prints there"
        )
    try:
        done = subprocess.run(
            [path.absolute(), "-I", "-B", "-c", _ASK], capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
        told = json.loads(done.stdout.splitlines()[-1])
        implementation = told.pop("implementation")
    except (OSError, ValueError, IndexError, KeyError, subprocess.TimeoutExpired):
        raise UserError(f"--python: {path} does not answer as a Python does; give the path of a working one") from None
    if implementation != "cpython":
        raise UserError(f"--python: {path} is {implementation}; the stacks' wheels are for CPython")
    packages = {canonicalize_name(name): str(version) for name, version in told["packages"].items()}
    return Interpreter(path.absolute(), **{**told, "packages": dict(sorted(packages.items()))})


def is_pinned(pinned: str, there: str) -> bool:
    """Whether pip takes that version for the pinned one: a 2.11.0+cu130 is a 2.11.0, but not the other way round."""
    try:
        return SpecifierSet(f"=={pinned}").contains(Version(there), prereleases=True)
    except InvalidVersion:
        return False


def differences(pins: Sequence[Pin], python: str, there: Interpreter) -> list[Difference]:
    """What is not as the lock says, Python's feature release first, then by name."""
    wanted = {pin.name: pin.version for pin in pins}
    found = [] if there.release == python else [Difference("python", python, there.release)]
    return found + [
        Difference(name, wanted.get(name, NOT_INSTALLED), there.packages.get(name, NOT_INSTALLED))
        for name in sorted({*wanted, *there.packages})
        if wanted.get(name) != there.packages.get(name)
    ]


@dataclass(frozen=True)
class Names:
    """Packages as an option names them: `name`, `name==version`, or a word for all of a kind (`:all:`)."""

    versions: dict[str, str | None]
    every: bool = False

    def has(self, difference: Difference) -> bool:
        """Whether the difference is named, and with no other version than the one that is there."""
        return difference.name in self.versions and self.versions[difference.name] in {None, difference.there}


def read_names(option: str, texts: Iterable[str], every: str, known: Collection[str]) -> Names:
    """The names of an option that may be given several times, split at blanks and commas; `every`: its own word.

    UserError for a word that is no name, and for a name that is not `known`.
    """
    versions: dict[str, str | None] = {}
    words = [word for text in texts for word in re.split(r"[,\s]+", text.strip()) if word]
    for word in words:
        name, equals, version = word.partition("==")
        if word == every:
            continue
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) or bool(equals) != bool(version):
            raise UserError(f"{option}: {word!r} is not understood; wanted name, name==version or {every}")
        if canonicalize_name(name) not in known:
            near = did_you_mean(canonicalize_name(name), known)
            raise UserError(f"{option}: {name!r} is neither in the lock nor in the interpreter{near}; correct the name")
        versions[canonicalize_name(name)] = version or None
    return Names(versions, every in words)
