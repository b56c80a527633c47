"""Registers an existing interpreter as a stack.

Missing packages are installed in an environment on top of it; the interpreter itself never changes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from common.errors import UserError
from common.messages import did_you_mean, join_first
from workflow.stacks import programs, staging
from workflow.stacks.build import PipLayer, install, make_venv, verify_and_move
from workflow.stacks.definition import ENVS, LAID_OVER, Stack, load_stack, lock_id
from workflow.stacks.lockfile import Pin, check_lock, is_pinned
from workflow.stacks.needs import require_needs
from workflow.stacks.source_builds import given_wheels, wheel_records
from workflow.stacks.uv import Uv, configured_uv
from workflow.stacks.verification import is_ready, origin_of, require_free

REGISTERED = "registered, not built"
_SHOWN_EXTRAS = 12
# Bytecode of the interpreter's modules is written to the new environment.
_OWN_CACHE = "import sys; sys.pycache_prefix = sys.pycache_prefix or sys.prefix + '/pycache'\n"
_ASK = """
import json, platform, site, sys, sysconfig
from importlib.metadata import distributions
packages = {}
for found in distributions():
    name = found.metadata["Name"]
    if name:
        packages.setdefault(name, found.version or "no version")
folders = [folder for folder in site.getsitepackages() if folder in sys.path]
print(json.dumps({
    "release": ".".join(platform.python_version_tuple()[:2]),
    "implementation": sys.implementation.name, "packages": packages, "folders": folders,
    "programs": sysconfig.get_path("scripts"),
}))
"""
_LIMIT_S = 300
NOT_INSTALLED = "not installed"
"""The version that we and verify.py report for a missing package."""


@dataclass(frozen=True)
class Interpreter:
    """A Python that somebody else installed, and what it imports from its own folders."""

    path: Path
    release: str
    """Feature release, such as "3.12"."""
    packages: dict[str, str]
    """Version of each importable package, by normalized name."""
    folders: list[str]
    """Its site-packages, in the order of sys.path."""
    programs: str
    """The folder of its console scripts."""


@dataclass(frozen=True)
class Difference:
    """A package (or `python`) whose version differs from the lock's."""

    name: str
    locked: str
    """The lock's version, or NOT_INSTALLED."""
    installed: str

    @property
    def kind(self) -> str:
        """`missing`, `extra` or `different`."""
        if self.installed == NOT_INSTALLED:
            return "missing"
        return "extra" if self.locked == NOT_INSTALLED else "different"


def read_interpreter(path: Path) -> Interpreter:
    """Reads that Python's release and packages; UserError if it does not start or is not CPython.

    PYTHONPATH and the user's own packages (`pip install --user`) do not count: jobs would not see them.
    """
    if not path.is_file() or not os.access(path, os.X_OK):
        raise UserError(
            f"--python: {path} is not a program; give the path that `python3 -c 'import sys; "
            "print(sys.executable)'` prints there"
        )
    done = None
    try:
        done = subprocess.run(
            [path.absolute(), "-I", "-B", "-c", _ASK], capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
        answer = json.loads(done.stdout.splitlines()[-1])
        implementation = answer.pop("implementation")
    except (OSError, ValueError, IndexError, KeyError, subprocess.TimeoutExpired):
        last = f" (it says: {done.stderr.strip().splitlines()[-1][:200]})" if done and done.stderr.strip() else ""
        raise UserError(f"--python: {path} does not answer like Python{last}; give the path of a working one") from None
    if implementation != "cpython":
        raise UserError(f"--python: {path} is {implementation}; the stacks' wheels are for CPython")
    packages = {canonicalize_name(name): str(version) for name, version in answer["packages"].items()}
    return Interpreter(path.absolute(), **{**answer, "packages": dict(sorted(packages.items()))})


def differences(pins: Sequence[Pin], python: str, present: Interpreter) -> list[Difference]:
    """All differences from the lock: Python's feature release first, then packages by name."""
    locked = {pin.name: pin.version for pin in pins}
    found = [] if present.release == python else [Difference("python", python, present.release)]
    return found + [
        Difference(name, locked.get(name, NOT_INSTALLED), present.packages.get(name, NOT_INSTALLED))
        for name in sorted({*locked, *present.packages})
        if locked.get(name) != present.packages.get(name)
    ]


def read_names(option: str, texts: Iterable[str], keyword: str, known: Collection[str]) -> dict[str, str | None]:
    """The packages of a repeatable option, split at blanks and commas: each name with its version or None.

    The option's keyword (`:all:`) stays as it is. UserError for an invalid or unknown name.
    """
    versions: dict[str, str | None] = {}
    for item in [item for text in texts for item in re.split(r"[,\s]+", text.strip()) if item]:
        name, equals, version = item.partition("==")
        if item == keyword:
            versions[keyword] = None
            continue
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) or bool(equals) != bool(version):
            raise UserError(f"{option}: {item!r} is not understood; wanted name, name==version or {keyword}")
        if canonicalize_name(name) not in known:
            near = did_you_mean(canonicalize_name(name), known)
            raise UserError(f"{option}: {name!r} is neither in the lock nor in the interpreter{near}; correct the name")
        versions[canonicalize_name(name)] = version or None
    return versions


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
    """Creates the stack's folder, `<stacks_dir>/<name>/<lock_id>`; its `env` imports that interpreter's packages.

    The options decide about every difference from the lock: `accept` keeps the installed version, `overlay` installs
    the lock's version on top. Missing packages are installed unless `leave_out` names them; `find_links` is then their
    only source. UserError lists undecided differences; nothing is written. A repeated registration takes seconds.
    """
    stack = load_stack(name, envs)
    pins = check_lock(name, envs)
    final = stacks_dir / name / lock_id(name, envs)
    require_free(stack, final, REGISTERED, f"register {python}")
    present = read_interpreter(python)
    accepted, over = decide(stack, pins, present, accept, overlay, leave_out)
    laid_over = {each.name: each.locked for each in over}
    given = given_wheels(stack, pins, wheels, present.release)
    used = [wheel for wheel in given if wheel.package in laid_over]
    for wheel in given:
        if wheel not in used:
            stack.log(f"{wheel.path.name} is not used: the interpreter's {wheel.package} stays")
    origin = {
        "state": REGISTERED,
        "python": str(present.path),
        "accepted": {each.name: each.installed for each in accepted},
        "differences": {each.name: each.locked for each in accepted},
        "laid_over": laid_over,
        **wheel_records(used),
    }
    if is_ready(stack, final, "auto") and origin_of(final) == origin:
        return final
    uv = _sources(find_links)
    with staging.builder_lock(final.parent, name) as fds:
        layer = PipLayer(stack, [pin for pin in pins if pin.name in laid_over], used, uv, fds)
        # verify.py checks the run-time needs with this interpreter.
        require_needs(replace(stack, source_builds=layer.compiled, run_needs=()), pins, None)
        kept = [pin.name for pin in pins if pin.name not in laid_over and pin.name in present.packages]
        stack.log(f"{present.path} has {len(kept)} of {len(pins)} packages; installing {len(over)} on top of it")
        _lay_over(layer.with_torch_index(present.release), present, kept, origin, final)
    return final


def decide(
    stack: Stack,
    pins: Sequence[Pin],
    present: Interpreter,
    accept: Iterable[str],
    overlay: Iterable[str],
    leave_out: Iterable[str],
) -> tuple[list[Difference], list[Difference]]:
    """The accepted differences from the lock, and those for which the lock's version is installed.

    UserError lists all differences that the options do not name.
    """
    locked = {pin.name for pin in pins}
    kept = read_names("--accept", accept, ":extra:", {"python", *locked, *present.packages})
    replaced = read_names("--overlay", overlay, ":all:", locked)
    omitted = read_names("--leave-out", leave_out, ":none:", locked)
    accepted: list[Difference] = []
    laid_over: list[Difference] = []
    undecided: list[Difference] = []

    def names(option: Mapping[str, str | None], each: Difference) -> bool:
        return each.name in option and option[each.name] in {None, each.installed}

    for each in differences(pins, stack.python, present):
        if each.kind == "missing":
            (accepted if each.name in omitted else laid_over).append(each)
        elif names(kept, each) or (":extra:" in kept and each.kind == "extra"):
            accepted.append(each)
        # A wheelhouse has no local build of the lock's version (0.26.0+cu130), so :all: skips those.
        elif (
            each.kind == "different"
            and each.name != "python"
            and (names(replaced, each) or (":all:" in replaced and not is_pinned(each.locked, each.installed)))
        ):
            laid_over.append(each)
        else:
            undecided.append(each)
    if undecided:
        raise UserError(_refusal(stack, present, undecided))
    return accepted, laid_over


def _refusal(stack: Stack, present: Interpreter, undecided: Sequence[Difference]) -> str:
    extras = [each for each in undecided if each.kind == "extra"]
    others = [each for each in undecided if each.kind != "extra"]
    lines = [f"{stack.name}: {present.path} differs from {stack.lock}, and no option decides about:"]
    lines += [f"  {each.name}: the lock has {each.locked}, installed is {each.installed}" for each in others]
    if extras:
        shown = join_first([f"{each.name} {each.installed}" for each in extras], _SHOWN_EXTRAS)
        lines += [f"  {len(extras)} packages that the lock does not have: {shown}"]
    keep = [*(f"{each.name}=={each.installed}" for each in others), *([":extra:"] if extras else [])]
    lines += [f'Keep the installed versions: --accept "{" ".join(keep)}" (make: ACCEPT)']
    if over := [each.name for each in others if each.name != "python"]:
        lines += [f'Install the lock\'s versions on top: --overlay "{" ".join(over)}" (make: OVERLAY)']
    return "\n".join(lines)


def _sources(find_links: Path | None) -> Uv:
    uv = configured_uv()
    if find_links is None:
        return uv
    if not find_links.is_dir():
        raise UserError(f"--find-links: {find_links} is not a folder; join the wheelhouse's parts first")
    return Uv(uv.binary, {**uv.environ, "UV_FIND_LINKS": str(find_links.absolute())}, ("--no-index",))


def _lay_over(layer: PipLayer, present: Interpreter, kept: list[str], origin: dict[str, Any], final: Path) -> None:
    stack = layer.stack
    with staging.building_folder(final.parent, final.name) as temporary:
        env = temporary / "env"
        make_venv(stack, env, layer.uv, str(present.path), layer.fds)
        (packages,) = env.glob("lib/python*/site-packages")
        # --system-site-packages would show the system's packages if the interpreter is itself in an environment.
        lines = [_OWN_CACHE, *(f"import site; site.addsitedir({folder!r})\n" for folder in present.folders)]
        (packages / LAID_OVER).write_text("".join(lines), encoding="utf-8")
        install(layer, env, temporary)
        subprocess.run(
            [env / "bin" / "python", "-I", "-B", programs.__file__],
            input=json.dumps([kept, present.programs]),
            text=True,
            check=True,
        )
        verify_and_move(layer, temporary, final, origin)
    stack.log(f"registered: {final}")
