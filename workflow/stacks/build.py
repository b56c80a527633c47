"""Builds a stack's lock into a verified environment under `.stacks/`."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from common.errors import UserError
from workflow.stacks import staging as place
from workflow.stacks.compile import build_from_source, requirement
from workflow.stacks.conda import HOW_TO_GET_ONE, PROGRAMS, Conda, activated, create_prefix, find_conda
from workflow.stacks.condafetch import fetch_packages
from workflow.stacks.condalock import CondaPackage, check_conda_lock
from workflow.stacks.definition import ENVS, Stack, load_stack, lock_id
from workflow.stacks.lockfile import Pin, check_lock
from workflow.stacks.needs import find_nvcc, require_needs
from workflow.stacks.sources import redacted
from workflow.stacks.uv import Uv, configured_uv, explained, torch_arguments
from workflow.stacks.verification import built_by, is_ready, origin_of, verify, was_chosen
from workflow.stacks.wheels import GivenWheel, given_wheels

BACKENDS = ("auto", "conda", "uv")
_CONDA_FILES = ".conda-packages"
"""Folder beside the stacks in which conda's packages stay once they were fetched."""


def build(
    name: str,
    stacks_dir: Path,
    envs: Path = ENVS,
    *,
    expected: str | None = None,
    backend: str = "auto",
    wheels: Sequence[tuple[Path, str]] = (),
) -> Path:
    """The folder of the built and verified stack, `<stacks_dir>/<name>/<lock_id>`; built if it is not there.

    A stack that is ready costs one look at its files. UserError says what failed; then nothing is left at that
    path that was not there before, and an environment that no longer verifies has no verify.json. `expected` is the
    lock_id that the plan was made with: a lock changed since then is refused. `backend`: with conda's layer, without
    it, or `auto`: with it where a program is there that installs it. One that is asked for and is not what the
    stack was built with builds it anew, unless it is registered or adopted. `wheels`: files with their sha256 that are
    installed in place of source builds.
    """
    stack = load_stack(name, envs)
    pins = check_lock(name, envs)
    present = lock_id(name, envs)
    if expected not in {None, present}:
        raise UserError(
            f"{stack.lock} changed after the plan was made: {expected} was planned, the lock is now {present}; "
            "run again, and the plan is made anew"
        )
    given = given_wheels(stack, pins, wheels)
    final = stacks_dir / name / present
    wanted = backend if stack.conda_lock else "uv"  # nothing of such a stack is conda's
    if was_chosen(origin_of(final)):
        wanted = "auto"
    if is_ready(stack, final, wanted):
        _require_wheels(stack, given, final)
        return final
    try:
        with place.builder_lock(final.parent, name) as fds:
            place.remove_leftovers(final.parent)
            if not is_ready(stack, final, wanted):
                _verify_or_build(stack, pins, final, wanted, given, fds)
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise UserError(f"{name}: {redacted(str(error))}") from error
        raise UserError(f"{name}: the disk of {final.parent.resolve()} is full (or your quota is)") from None
    return final


def _require_wheels(stack: Stack, given: Sequence[GivenWheel], final: Path) -> None:
    """UserError if the environment that is there was made without one of these wheels."""
    if {wheel.sha256 for wheel in given} - {wheel["sha256"] for wheel in origin_of(final).get("wheels", [])}:
        raise UserError(f"{stack.name} is built already, without that wheel; to build it with the wheel remove {final}")


def _verify_or_build(
    stack: Stack, pins: list[Pin], final: Path, wanted: str, wheels: list[GivenWheel], fds: tuple[int, ...]
) -> None:
    packages = check_conda_lock(stack)
    origin = origin_of(final)
    if (final / "env" / "bin" / "python").exists() and wanted in {"auto", built_by(final)}:
        # It came by one rename and so was whole: only its verification is missing or out of date.
        _require_wheels(stack, wheels, final)
        try:
            _say(stack, "verifying the environment that is there")
            verify(stack, final / "env", final, final.name, packages, fds, origin)
            return
        except UserError as error:
            if was_chosen(origin):
                raise UserError(f"{error}\n{_not_replaced(stack, origin, final)}") from None
            (final / "verify.json").unlink(missing_ok=True)
            _say(stack, f"it does not verify any more and is built anew\n{error}")
    elif was_chosen(origin):
        raise UserError(_not_replaced(stack, origin, final))
    started = time.monotonic()
    conda = _chosen(stack, wanted)
    for line in require_needs(without(stack, wheels), pins, packages if conda else None):
        _say(stack, f"to run it, compute nodes need what is not here: {line}")
    place.require_space(final.parent, stack.disk_gib, stack.name)
    uv = configured_uv()
    torch = next((f"torch=={pin.version}" for pin in pins if pin.name == "torch"), None)
    torch_index = torch_arguments(uv, torch, stack.torch_backend, stack.python)
    _say(stack, f"{len(pins)} packages from {uv.sources}{' and PyTorch' if torch_index else ''}")
    if conda is None:
        _build_beside(stack, pins, final, uv, torch_index, wheels, fds)
    else:
        _build_in_place(stack, pins, packages, final, conda, uv, torch_index, wheels, fds)
    _say(stack, f"ready in {time.monotonic() - started:.0f} s: {final}")


def _not_replaced(stack: Stack, origin: dict[str, Any], final: Path) -> str:
    verb, option = ("register", "python") if "python" in origin else ("adopt", "image")
    return (
        f"{stack.name} is {origin['state']} ({origin.get(option)}), and does not verify any more: {verb} it again "
        f"(`python -m workflow.stacks {verb} {stack.name} --{option} …`), or remove {final} to build it"
    )


def _chosen(stack: Stack, wanted: str) -> Conda | None:
    """The program that installs the conda layer; None where there is no such layer, or it is left out."""
    if wanted == "uv":
        _say_left_out(stack, "as asked for")
        return None
    conda = find_conda()
    if conda is None and wanted == "conda":
        raise UserError(
            f"{stack.name} is to be built with its conda layer, and none of {', '.join(PROGRAMS)} is on PATH: "
            f"{HOW_TO_GET_ONE}. `envs.backend: uv` builds it without that layer, on the Python and the compilers that "
            "are here"
        )
    if conda is None:
        _say_left_out(stack, f"none of {', '.join(PROGRAMS)} is here")
    return conda


def _say_left_out(stack: Stack, why: str) -> None:
    if stack.conda_lock is None:
        return
    nvcc = f"; nvcc is {find_nvcc() or 'not here'}" if stack.cuda else ""
    _say(stack, f"without its conda layer ({why}): Python and compilers are this machine's own{nvcc}")


def _build_beside(
    stack: Stack,
    pins: list[Pin],
    final: Path,
    uv: Uv,
    torch_index: list[str],
    wheels: list[GivenWheel],
    fds: tuple[int, ...],
) -> None:
    with place.building_folder(final.parent, final.name) as temporary:
        env = temporary / "env"
        make_venv(stack, env, uv, stack.python, fds)
        install(stack, pins, env, uv, torch_index, wheels, temporary, fds)
        verify_and_move(stack, temporary, final, with_wheels({}, wheels), fds)


def verify_and_move(stack: Stack, temporary: Path, final: Path, origin: dict[str, Any], fds: tuple[int, ...]) -> None:
    """Puts the environment `temporary/env` at its final place once verify.py has passed in it."""
    if programs := place.foreign_paths(temporary / "env" / "bin", temporary.name):
        raise UserError(
            f"{stack.name}: {', '.join(programs)} in env/bin name the folder of the build and would break "
            "when it is renamed; the packages that made them cannot be part of a stack"
        )
    _say(stack, "verifying")
    verify(stack, temporary / "env", temporary, final.name, [], fds, origin)
    place.move_into_place(temporary, final)


def _build_in_place(
    stack: Stack,
    pins: list[Pin],
    packages: list[CondaPackage],
    final: Path,
    conda: Conda,
    uv: Uv,
    torch_index: list[str],
    wheels: list[GivenWheel],
    fds: tuple[int, ...],
) -> None:
    store = final.parent.parent / _CONDA_FILES
    with place.builder_lock(store, f"{stack.name}: conda's packages"):
        files = fetch_packages(packages, store, stack.name)
    with place.growing_prefix(final) as prefix, place.building_folder(final.parent, final.name) as work:
        prefix = prefix.absolute()  # it is written into the environment's files
        _say(stack, f"{len(packages)} conda packages, installed by {conda.name}")
        create_prefix(conda, packages, files, prefix, work, stack.name, fds)
        active = Uv(uv.binary, activated(prefix, uv.environ), uv.arguments)
        install(stack, pins, prefix, active, torch_index, wheels, work, fds)
        _say(stack, "verifying")
        verify(stack, prefix, work, final.name, packages, fds, with_wheels({}, wheels))
        (final / "verify.json").unlink(missing_ok=True)
        place.link_into_place(prefix, final)
        (work / "verify.json").replace(final / "verify.json")


def make_venv(stack: Stack, env: Path, uv: Uv, python: str, fds: tuple[int, ...]) -> None:
    """A bare environment of that interpreter, a feature release or a path, that can be renamed."""
    status, said = uv.run(
        ["venv", str(env), "--python", python, "--relocatable", "--no-python-downloads", "--no-project"],
        fds=fds,
    )
    if status != 0:
        if "No interpreter found" in said:
            raise UserError(
                f"{stack.name} needs Python {python}, which is not on this machine's PATH; install it (your "
                f"system's package, a module, or `uv python install {python}`) and build again"
            )
        raise explained(said, f"{stack.name}: making the environment with Python {python}", uv)


def install(
    stack: Stack,
    pins: Sequence[Pin],
    env: Path,
    uv: Uv,
    torch_index: list[str],
    wheels: Sequence[GivenWheel],
    folder: Path,
    fds: tuple[int, ...],
) -> None:
    """The pip layer: these pins of the lock, the same in a bare environment and in one that conda made.

    `folder` is on the environment's file system; what is needed there meanwhile is removed.
    """
    work = folder / "work"
    work.mkdir()
    linking = Uv(uv.binary, {"UV_LINK_MODE": _link_mode(uv, env), **uv.environ}, uv.arguments)
    ready = [requirement(pin) for pin in pins if pin.name not in stack.source_builds]
    given = [wheel for wheel in wheels if wheel.package in {pin.name for pin in pins}]
    listed = work / "wheels.txt"
    listed.write_text("".join([*ready, *(wheel.requirement for wheel in given)]), encoding="utf-8")
    # Not `pip sync`, which would take away what conda installed and the lock does not list. --no-deps: the lock is
    # complete, and what its overrides leave out stays out. Wheels only: building from source would run unpinned
    # build tools and give another result on every machine.
    command = ["pip", "install", "--require-hashes", "--no-build", "--no-deps"]
    command += ["--python", str(env / "bin" / "python"), "--break-system-packages"]
    for name in sorted(_python_packages(env) & {pin.name for pin in pins}):
        command += ["--reinstall-package", name]  # of what both layers have, the lock's file is installed
    if ready or given:
        status, said = linking.run([*command, *uv.arguments, *torch_index, "-r", str(listed)], fds=fds, show=True)
        if status != 0:
            raise explained(said, f"{stack.name}: installing {stack.lock}", uv)
    building = [pin for pin in pins if pin.name in without(stack, given).source_builds]
    if building:
        names = tuple(name for name in stack.source_builds if name in {pin.name for pin in building})
        build_from_source(replace(stack, source_builds=names), building, env / "bin" / "python", uv, work, fds)
    shutil.rmtree(work)


def without(stack: Stack, wheels: Sequence[GivenWheel]) -> Stack:
    """The stack with those packages off its source builds."""
    given = {wheel.package for wheel in wheels}
    return replace(stack, source_builds=tuple(name for name in stack.source_builds if name not in given))


def with_wheels(origin: dict[str, Any], wheels: Sequence[GivenWheel]) -> dict[str, Any]:
    """The origin with the record of given wheels, if there are any."""
    return {**origin, "wheels": [wheel.record() for wheel in wheels]} if wheels else origin


def _python_packages(env: Path) -> set[str]:
    """Normalized names of the Python packages that are there already."""
    found = env.glob("lib/python*/site-packages/*.dist-info")
    return {canonicalize_name(path.name.partition("-")[0]) for path in found}


def _link_mode(uv: Uv, env: Path) -> str:
    """hardlink where uv's cache shares the environment's file system, else copy: uv warns when it finds out."""
    told = subprocess.run([uv.binary, "cache", "dir"], env=uv.environ, capture_output=True, text=True, check=False)
    cache = Path(told.stdout.strip() or ".").absolute()
    while not cache.exists():
        cache = cache.parent
    return "hardlink" if cache.stat().st_dev == env.stat().st_dev else "copy"


def _say(stack: Stack, text: str) -> None:
    print(f"{stack.name}: {text}", file=sys.stderr, flush=True)
