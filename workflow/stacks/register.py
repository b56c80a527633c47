"""Registers an interpreter that is already there as a stack: what is missing is laid over it, and it never changes."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from common.errors import UserError
from common.messages import did_you_mean, join_first
from workflow.stacks import programs
from workflow.stacks import staging as place
from workflow.stacks.build import PipLayer, install, make_venv, verify_and_move
from workflow.stacks.definition import ENVS, LAID_OVER, Stack, load_stack, lock_id
from workflow.stacks.lockfile import Pin, check_lock, is_pinned
from workflow.stacks.needs import require_needs
from workflow.stacks.source_builds import GivenWheel, given_wheels, wheel_records
from workflow.stacks.uv import Uv, configured_uv
from workflow.stacks.verification import is_ready, origin_of, require_free

REGISTERED = "registered, not built"
_SHOWN_EXTRAS = 12
# Compiled modules of the interpreter below are kept here: nothing is written there.
_OWN_CACHE = "import sys; sys.pycache_prefix = sys.pycache_prefix or sys.prefix + '/pycache'\n"
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


@dataclass(frozen=True)
class Choice:
    """What becomes of each difference."""

    accepted: dict[str, str]
    """What stays though the lock says otherwise: what is there, or NOT_INSTALLED, by name."""
    laid_over: dict[str, str]
    """The lock's versions that are installed over the interpreter, by name."""


def register(
    name: str,
    python: Path,
    stacks_dir: Path,
    envs: Path = ENVS,
    *,
    accept: Sequence[str] = (),
    overlay: Sequence[str] = (),
    leave_out: Sequence[str] = (),
    find_links: Path | None = None,
    wheels: Sequence[tuple[Path, str]] = (),
) -> Path:
    """The stack's folder, `<stacks_dir>/<name>/<lock_id>`, whose `env` sees that interpreter's packages.

    Every difference from the lock has to be named: `accept` keeps what is there, `overlay` installs the lock's version
    over it, and what is missing is installed unless `leave_out` names it (`find_links`: from that folder alone).
    UserError lists what was not named; then nothing is written. Registering the same again costs seconds.
    """
    stack = load_stack(name, envs)
    pins = check_lock(name, envs)
    final = stacks_dir / name / lock_id(name, envs)
    require_free(stack, final, REGISTERED, f"register {python}")
    there = read_interpreter(python)
    found = differences(pins, stack.python, there)
    locked = {pin.name for pin in pins}
    choice = chosen(
        stack,
        there,
        found,
        read_names("--accept", accept, ":extra:", {"python", *locked, *there.packages}),
        read_names("--overlay", overlay, ":all:", locked),
        read_names("--leave-out", leave_out, ":none:", locked),
    )
    given = _used_wheels(stack, given_wheels(stack, pins, wheels, there.release), choice)
    origin = _origin(there, found, choice, given)
    if is_ready(stack, final, "auto") and origin_of(final) == origin:
        return final
    uv = _sources(find_links)
    with place.builder_lock(final.parent, name) as fds:
        missing = [pin for pin in pins if pin.name in choice.laid_over]
        layer = PipLayer(stack, missing, given, uv, fds)
        # What runs need is looked for by verify.py, with this interpreter.
        require_needs(replace(stack, source_builds=layer.compiled, run_needs=()), pins, None)
        kept = [pin.name for pin in pins if pin.name not in choice.laid_over and pin.name in there.packages]
        stack.say(f"{there.path} has {len(kept)} of {len(pins)} packages; {len(missing)} are laid over it")
        _lay_over(layer.with_torch_index(there.release), there, kept, origin, final)
    return final


def _origin(
    there: Interpreter, found: Sequence[Difference], choice: Choice, wheels: Sequence[GivenWheel]
) -> dict[str, Any]:
    """What verify.json tells of the registered stack."""
    return {
        "state": REGISTERED,
        "python": str(there.path),
        "accepted": choice.accepted,
        "differences": {one.name: one.wanted for one in found if one.name in choice.accepted},
        "laid_over": choice.laid_over,
        **wheel_records(wheels),
    }


def chosen(
    stack: Stack, there: Interpreter, found: Sequence[Difference], accept: Names, overlay: Names, leave_out: Names
) -> Choice:
    """What becomes of each difference; UserError lists all that the command does not name."""
    accepted: dict[str, str] = {}
    laid_over: dict[str, str] = {}
    open_ones: list[Difference] = []
    for one in found:
        if one.kind == "missing":
            if one.name in leave_out.versions:
                accepted[one.name] = NOT_INSTALLED
            else:
                laid_over[one.name] = one.wanted
        elif accept.has(one) or (accept.every and one.kind == "extra"):
            accepted[one.name] = one.there
        # A wheelhouse has no other build of the lock's version (0.26.0+cu130): it counts there as the lock's.
        elif (
            one.kind == "different"
            and one.name != "python"
            and (overlay.has(one) or (overlay.every and not is_pinned(one.wanted, one.there)))
        ):
            laid_over[one.name] = one.wanted
        else:
            open_ones.append(one)
    if open_ones:
        raise UserError(_refusal(stack, there, open_ones))
    return Choice(accepted, laid_over)


def _refusal(stack: Stack, there: Interpreter, open_ones: Sequence[Difference]) -> str:
    extras = [one for one in open_ones if one.kind == "extra"]
    others = [one for one in open_ones if one.kind != "extra"]
    lines = [f"{stack.name}: {there.path} differs from {stack.lock}, and the command does not say what becomes of:"]
    lines += [f"  {one.name}: the lock has {one.wanted}, there is {one.there}" for one in others]
    if extras:
        shown = join_first([f"{one.name} {one.there}" for one in extras], _SHOWN_EXTRAS)
        lines += [f"  {len(extras)} packages that the lock does not have: {shown}"]
    keep = [*(f"{one.name}=={one.there}" for one in others), *([":extra:"] if extras else [])]
    lines += [f'Keep what is there: --accept "{" ".join(keep)}" (make: ACCEPT)']
    if over := [one.name for one in others if one.name != "python"]:
        lines += [f'Install the lock\'s version over it: --overlay "{" ".join(over)}" (make: OVERLAY)']
    return "\n".join(lines)


def _sources(find_links: Path | None) -> Uv:
    uv = configured_uv()
    if find_links is None:
        return uv
    if not find_links.is_dir():
        raise UserError(f"--find-links: {find_links} is not a folder; join the wheelhouse's parts first")
    return Uv(uv.binary, {**uv.environ, "UV_FIND_LINKS": str(find_links.absolute())}, ("--no-index",))


def _used_wheels(stack: Stack, given: list[GivenWheel], choice: Choice) -> list[GivenWheel]:
    for wheel in given:
        if wheel.package not in choice.laid_over:
            stack.say(f"{wheel.path.name} is not used: the interpreter's {wheel.package} stays")
    return [wheel for wheel in given if wheel.package in choice.laid_over]


def _lay_over(layer: PipLayer, there: Interpreter, kept: list[str], origin: dict[str, Any], final: Path) -> None:
    stack = layer.stack
    with place.building_folder(final.parent, final.name) as temporary:
        env = temporary / "env"
        make_venv(stack, env, layer.uv, str(there.path), layer.fds)
        (packages,) = env.glob("lib/python*/site-packages")
        # Not --system-site-packages: of an interpreter that is itself an environment it would show the system's.
        lines = [_OWN_CACHE, *(f"import site; site.addsitedir({folder!r})\n" for folder in there.folders)]
        (packages / LAID_OVER).write_text("".join(lines), encoding="utf-8")
        install(layer, env, temporary)
        subprocess.run(
            [env / "bin" / "python", "-I", "-B", programs.__file__],
            input=json.dumps([kept, there.programs]),
            text=True,
            check=True,
        )
        verify_and_move(layer, temporary, final, origin)
    stack.say(f"registered: {final}")
