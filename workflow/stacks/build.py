"""Builds a stack's lock into a verified environment under `.stacks/`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from common.errors import UserError
from workflow.stacks import bytecode
from workflow.stacks import staging as place
from workflow.stacks.conda import PROGRAMS, activated, create_prefix, find_conda
from workflow.stacks.condalock import CondaPackage, check_conda_lock
from workflow.stacks.definition import ENVS, Stack, load_stack, lock_id
from workflow.stacks.lockfile import Pin, check_lock
from workflow.stacks.needs import find_nvcc, require_needs
from workflow.stacks.source_builds import GivenWheel, build_from_source, given_wheels, wheel_records
from workflow.stacks.uv import Uv, configured_uv, torch_arguments, uv_error
from workflow.stacks.verification import Environment, built_by, is_ready, origin_of, verify, was_chosen

BACKENDS = ("auto", "conda", "uv")


@dataclass(frozen=True)
class PipLayer:
    """Pins of a stack's lock that are to be installed, and how."""

    stack: Stack
    pins: Sequence[Pin]
    wheels: Sequence[GivenWheel]
    """Files that take the place of source builds."""
    uv: Uv
    fds: tuple[int, ...]
    """Locks that every program started holds too."""
    torch_index: tuple[str, ...] = ()

    @property
    def compiled(self) -> tuple[str, ...]:
        """The packages that are built from source, in the stack's order."""
        names = {pin.name for pin in self.pins} - {wheel.package for wheel in self.wheels}
        return tuple(name for name in self.stack.source_builds if name in names)

    def with_torch_index(self, python: str) -> PipLayer:
        """The layer with PyTorch's own index, if no other source has this torch for that Python release."""
        torch = next((f"torch=={pin.version}" for pin in self.pins if pin.name == "torch"), None)
        return replace(self, torch_index=tuple(torch_arguments(self.uv, torch, self.stack.torch_backend, python)))


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
    it, or `auto`: with it where a conda program is. One that is asked for and is not what the stack was built with
    builds it anew, unless it is registered or adopted. `wheels`: files with their sha256 that are installed in place
    of source builds.
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
    with place.explaining_disk(name, final.parent), place.builder_lock(final.parent, name) as fds:
        if not is_ready(stack, final, wanted) and not _verified_again(stack, final, wanted, given, fds):
            _build(stack, pins, final, wanted, given, fds)
    return final


def _require_wheels(stack: Stack, given: Sequence[GivenWheel], final: Path) -> None:
    """UserError if the environment that is there was made without one of these wheels."""
    if {wheel.sha256 for wheel in given} - {wheel["sha256"] for wheel in origin_of(final).get("wheels", [])}:
        raise UserError(f"{stack.name} is built already, without that wheel; to build it with the wheel remove {final}")


def _verified_again(stack: Stack, final: Path, wanted: str, wheels: list[GivenWheel], fds: tuple[int, ...]) -> bool:
    """Whether an environment is there that passes; UserError for a registered or adopted one that does not."""
    origin = origin_of(final)
    verb, option = ("register", "python") if "python" in origin else ("adopt", "image")
    advice = (
        f"{stack.name} is {origin.get('state')} ({origin.get(option)}), and does not verify any more: {verb} it again "
        f"(`python -m workflow.stacks {verb} {stack.name} --{option} …`), or remove {final} to build it"
    )
    if not (final / "env" / "bin" / "python").exists() or wanted not in {"auto", built_by(final)}:
        if was_chosen(origin):
            raise UserError(advice)
        return False
    # It came by one rename and so was whole: only its verification is missing or out of date.
    _require_wheels(stack, wheels, final)
    try:
        stack.say("verifying the environment that is there")
        verify(Environment(stack, final / "env", final.name, check_conda_lock(stack), origin, fds), final)
    except UserError as error:
        if was_chosen(origin):
            raise UserError(f"{error}\n{advice}") from None
        (final / "verify.json").unlink(missing_ok=True)
        stack.say(f"it does not verify any more and is built anew\n{error}")
        return False
    return True


def _build(
    stack: Stack, pins: list[Pin], final: Path, wanted: str, wheels: list[GivenWheel], fds: tuple[int, ...]
) -> None:
    started = time.monotonic()
    packages = check_conda_lock(stack) if _takes_conda(stack, wanted) else None
    layer = PipLayer(stack, pins, wheels, configured_uv(), fds)
    for line in require_needs(replace(stack, source_builds=layer.compiled), pins, packages):
        stack.say(f"to run it, compute nodes need what is not here: {line}")
    place.require_space(final.parent, stack.disk_gib, stack.name)
    layer = layer.with_torch_index(stack.python)
    stack.say(f"{len(pins)} packages from {layer.uv.sources}{' and PyTorch' if layer.torch_index else ''}")
    if packages is None:
        with place.building_folder(final.parent, final.name) as temporary:
            make_venv(stack, temporary / "env", layer.uv, stack.python, fds)
            install(layer, temporary / "env", temporary)
            verify_and_move(layer, temporary, final, wheel_records(layer.wheels))
    else:
        _build_in_place(layer, packages, final)
    stack.say(f"ready in {time.monotonic() - started:.0f} s: {final}")


def _takes_conda(stack: Stack, wanted: str) -> bool:
    """Whether the stack is built with its conda layer; says so where it has one and it is left out."""
    if stack.conda_lock is None:
        return False
    if wanted == "conda" or (wanted == "auto" and find_conda()):
        return True
    nvcc = f"; nvcc is {find_nvcc() or 'not here'}" if stack.cuda else ""
    why = "as asked for" if wanted == "uv" else f"none of {', '.join(PROGRAMS)} is here; `envs.backend: conda` takes it"
    stack.say(f"without its conda layer ({why}): Python and compilers are this machine's own{nvcc}")
    return False


def verify_and_move(layer: PipLayer, temporary: Path, final: Path, origin: dict[str, Any]) -> None:
    """Puts the environment `temporary/env` at its final place once verify.py has passed in it."""
    stack = layer.stack
    if programs := place.foreign_paths(temporary / "env" / "bin", temporary.name):
        raise UserError(
            f"{stack.name}: {', '.join(programs)} in env/bin name the folder of the build and would break "
            "when it is renamed; the packages that made them cannot be part of a stack"
        )
    stack.say("verifying")
    verify(Environment(stack, temporary / "env", final.name, (), origin, layer.fds), temporary)
    place.move_into_place(temporary, final)
    _keep_bytecode(layer, final)


def _build_in_place(layer: PipLayer, packages: list[CondaPackage], final: Path) -> None:
    stack, uv = layer.stack, layer.uv
    with place.growing_prefix(final) as prefix, place.building_folder(final.parent, final.name) as work:
        prefix = prefix.absolute()  # it is written into the environment's files
        create_prefix(stack, packages, prefix, final.parent.parent, uv, layer.fds)
        install(replace(layer, uv=replace(uv, environ=activated(prefix, uv.environ))), prefix, work)
        stack.say("verifying")
        verify(Environment(stack, prefix, final.name, packages, wheel_records(layer.wheels), layer.fds), work)
        (final / "verify.json").unlink(missing_ok=True)
        place.link_into_place(prefix, final)
        (work / "verify.json").replace(final / "verify.json")
    _keep_bytecode(layer, final)


def make_venv(stack: Stack, env: Path, uv: Uv, python: str, fds: tuple[int, ...]) -> None:
    """A bare environment of that interpreter, a feature release or a path, that can be renamed."""
    command = ["venv", str(env), "--python", python, "--relocatable", "--no-python-downloads", "--no-project"]
    status, said = uv.run(command, fds=fds)
    if status != 0:
        if "No interpreter found" in said:
            raise UserError(
                f"{stack.name} needs Python {python}, which is not on this machine's PATH; install it (your "
                f"system's package, a module, or `uv python install {python}`) and build again"
            )
        raise uv_error(said, f"{stack.name}: making the environment with Python {python}", uv)


def install(layer: PipLayer, env: Path, folder: Path) -> None:
    """Installs the pip layer, the same in a bare environment and in one that conda made.

    `folder` is on the environment's file system; what is needed there meanwhile is removed.
    """
    stack, uv, names = layer.stack, layer.uv, {pin.name for pin in layer.pins}
    work = folder / "work"
    work.mkdir()
    listed = work / "wheels.txt"
    wanted = [pin.requirement for pin in layer.pins if pin.name not in stack.source_builds]
    wanted += [wheel.requirement for wheel in layer.wheels if wheel.package in names]
    listed.write_text("".join(wanted), encoding="utf-8")
    # Not `pip sync`, which would take away what conda installed and the lock does not list. --no-deps: the lock is
    # complete, and what its overrides leave out stays out. Wheels only: building from source would run unpinned
    # build tools and give another result on every machine.
    command = ["pip", "install", "--require-hashes", "--no-build", "--no-deps"]
    command += ["--python", str(env / "bin" / "python"), "--break-system-packages"]
    for name in sorted(_python_packages(env) & names):
        command += ["--reinstall-package", name]  # of what both layers have, the lock's file is installed
    if wanted:
        cache = uv.cache()
        linking = replace(uv, environ={"UV_LINK_MODE": _link_mode(cache, env), **uv.environ})
        command += [*uv.arguments, *layer.torch_index, "-r", str(listed)]
        status, said = linking.run(command, fds=layer.fds, show=True)
        if status != 0:
            raise uv_error(said, f"{stack.name}: installing {stack.lock}", uv)
        bytecode.reuse(bytecode.cache_beside(cache, env), env)
    if layer.compiled:
        pins = {pin.name: pin for pin in layer.pins}
        build_from_source(stack, [pins[name] for name in layer.compiled], env / "bin" / "python", uv, work, layer.fds)
    shutil.rmtree(work)


def _python_packages(env: Path) -> set[str]:
    """Normalized names of the Python packages that are there already."""
    found = env.glob("lib/python*/site-packages/*.dist-info")
    return {canonicalize_name(path.name.partition("-")[0]) for path in found}


def _keep_bytecode(layer: PipLayer, final: Path) -> None:
    """Shares what verify.py made Python compile; the environment is in its place, and on the disk."""
    env = final / "env"
    bytecode.keep(bytecode.cache_beside(layer.uv.cache(), env), env)


def _link_mode(cache: Path | None, env: Path) -> str:
    """hardlink where uv's cache shares the environment's file system, else copy: uv warns when it finds out."""
    while cache is not None and not cache.exists():
        cache = cache.parent
    return "hardlink" if cache is not None and cache.stat().st_dev == env.stat().st_dev else "copy"
