"""Builds a stack's lock into a verified environment under `.stacks/`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.utils import canonicalize_name

from common.errors import UserError
from workflow.stacks import staging
from workflow.stacks.conda import PROGRAMS, CondaPackage, activated, check_conda_lock, create_prefix, find_conda
from workflow.stacks.definition import ENVS, Stack, load_stack, lock_id
from workflow.stacks.lockfile import Pin, check_lock
from workflow.stacks.needs import find_nvcc, require_needs
from workflow.stacks.source_builds import GivenWheel, build_from_source, given_wheels, wheel_records
from workflow.stacks.uv import Uv, configured_uv, torch_arguments, uv_error
from workflow.stacks.verification import BuiltEnvironment, built_by, is_ready, origin_of, verify, was_chosen

BACKENDS = ("auto", "conda", "uv")


@dataclass(frozen=True)
class PipLayer:
    """The pins of a stack's lock to install, and how to install them."""

    stack: Stack
    pins: Sequence[Pin]
    wheels: Sequence[GivenWheel]
    """Files that replace source builds."""
    uv: Uv
    fds: tuple[int, ...]
    """Locks that every started program holds too."""
    torch_index: tuple[str, ...] = ()

    @property
    def compiled(self) -> tuple[str, ...]:
        """The packages that are built from source, in the stack's order."""
        names = {pin.name for pin in self.pins} - {wheel.package for wheel in self.wheels}
        return tuple(name for name in self.stack.source_builds if name in names)

    def with_torch_index(self) -> PipLayer:
        """The layer with PyTorch's own index, if no other source has its torch."""
        torch = next((f"torch=={pin.version}" for pin in self.pins if pin.name == "torch"), None)
        return replace(
            self, torch_index=tuple(torch_arguments(self.uv, torch, self.stack.torch_backend, self.stack.python))
        )


def build(
    name: str,
    stacks_dir: Path,
    envs: Path = ENVS,
    *,
    expected: str | None = None,
    backend: str = "auto",
    wheels: Sequence[tuple[Path, str]] = (),
) -> Path:
    """Builds and verifies the stack unless it is ready; returns its folder, `<stacks_dir>/<name>/<lock_id>`.

    UserError reports what failed. A failed build leaves nothing new in the folder, and an environment that no longer
    verifies loses its verify.json.

    expected: the plan's lock_id; a lock that has changed since is rejected.
    backend: `conda` with the conda layer, `uv` without it, `auto` with it where a conda program exists. A stack with
    another backend is built again, unless it is adopted.
    wheels: files with their sha256, installed instead of source builds.
    """
    stack = load_stack(name, envs)
    if stack.found_python:
        from workflow.stacks.found import make_ready  # asks the trainers, which a builder lacks

        return make_ready(stack, expected)
    pins = check_lock(name, envs)
    present = lock_id(name, envs)
    if expected not in {None, present}:
        raise UserError(
            f"{stack.lock} changed after the plan was made: {expected} was planned, the lock is now {present}; "
            "run again to make a new plan"
        )
    given = given_wheels(stack, pins, wheels)
    final = stacks_dir / name / present
    wanted = "auto" if was_chosen(origin_of(final)) else backend if stack.conda_lock else "uv"
    if is_ready(stack, final, wanted):
        _require_wheels(stack, given, final)
        return final
    with staging.explaining_disk(name, final.parent), staging.builder_lock(final.parent, name) as fds:
        if not is_ready(stack, final, wanted) and not _verify_again(stack, final, wanted, given, fds):
            _build(stack, pins, final, wanted, given, fds)
    return final


def _require_wheels(stack: Stack, given: Sequence[GivenWheel], final: Path) -> None:
    """UserError if the existing environment was built without one of these wheels."""
    if {wheel.sha256 for wheel in given} - {wheel["sha256"] for wheel in origin_of(final).get("wheels", [])}:
        raise UserError(f"{stack.name} is already built without that wheel; remove {final} to build it with the wheel")


def _verify_again(stack: Stack, final: Path, wanted: str, wheels: list[GivenWheel], fds: tuple[int, ...]) -> bool:
    """Verifies an existing environment; True if it passes. UserError if an adopted one fails."""
    origin = origin_of(final)
    advice = (
        f"{stack.name} is {origin.get('state')} ({origin.get('image')}), and fails its verification: adopt it again "
        f"(`python -m workflow.stacks adopt {stack.name} --image …`), or remove {final} to build it"
    )
    if not (final / "env" / "bin" / "python").exists() or wanted not in {"auto", built_by(final)}:
        if was_chosen(origin):
            raise UserError(advice)
        return False
    # One rename created it, so it is complete; only its verification is missing or out of date.
    _require_wheels(stack, wheels, final)
    try:
        stack.log("verifying the existing environment")
        verify(BuiltEnvironment(stack, final / "env", final.name, check_conda_lock(stack), origin, fds), final)
    except UserError as error:
        if was_chosen(origin):
            raise UserError(f"{error}\n{advice}") from None
        (final / "verify.json").unlink(missing_ok=True)
        stack.log(f"the environment fails its verification and is built again\n{error}")
        return False
    return True


def _build(
    stack: Stack, pins: list[Pin], final: Path, wanted: str, wheels: list[GivenWheel], fds: tuple[int, ...]
) -> None:
    started = time.monotonic()
    packages = check_conda_lock(stack) if _takes_conda(stack, wanted) else None
    layer = PipLayer(stack, pins, wheels, configured_uv(), fds)
    for line in require_needs(replace(stack, source_builds=layer.compiled), pins, packages):
        stack.log(f"compute nodes need to run it, and this machine lacks: {line}")
    staging.require_space(final.parent, stack.disk_gib, stack.name)
    layer = layer.with_torch_index()
    stack.log(f"{len(pins)} packages from {layer.uv.sources}{' and PyTorch' if layer.torch_index else ''}")
    if packages is None:
        with staging.building_folder(final.parent, final.name) as temporary:
            _make_venv(stack, temporary / "env", layer.uv, fds)
            _install(layer, temporary / "env", temporary)
            _verify_and_move(layer, temporary, final)
    else:
        _build_in_place(layer, packages, final)
    stack.log(f"ready in {time.monotonic() - started:.0f} s: {final}")


def _takes_conda(stack: Stack, wanted: str) -> bool:
    """Whether to build the stack with its conda layer; logs a layer that is left out."""
    if stack.conda_lock is None:
        return False
    if wanted == "conda" or (wanted == "auto" and find_conda()):
        return True
    nvcc = f"; nvcc is {find_nvcc() or 'missing'}" if stack.cuda else ""
    missing = f"no {' or '.join(PROGRAMS)} found; `envs.backend: conda` builds with it"
    reason = "as configured" if wanted == "uv" else missing
    stack.log(f"without its conda layer ({reason}): Python and compilers are this machine's own{nvcc}")
    return False


def _verify_and_move(layer: PipLayer, temporary: Path, final: Path) -> None:
    """Verifies the environment `temporary/env`, then moves it to its final path."""
    stack = layer.stack
    if programs := staging.foreign_paths(temporary / "env" / "bin", temporary.name):
        raise UserError(
            f"{stack.name}: {', '.join(programs)} in env/bin contain the build folder's path and would break when it "
            "is renamed; their packages cannot be part of a stack"
        )
    stack.log("verifying")
    verify(
        BuiltEnvironment(stack, temporary / "env", final.name, (), wheel_records(layer.wheels), layer.fds), temporary
    )
    staging.move_into_place(temporary, final)


def _build_in_place(layer: PipLayer, packages: list[CondaPackage], final: Path) -> None:
    stack, uv = layer.stack, layer.uv
    with staging.growing_prefix(final) as prefix, staging.building_folder(final.parent, final.name) as work:
        prefix = prefix.absolute()  # the environment's files contain it
        create_prefix(stack, packages, prefix, final.parent.parent, uv, layer.fds)
        _install(replace(layer, uv=replace(uv, environ=activated(prefix, uv.environ))), prefix, work)
        stack.log("verifying")
        verify(BuiltEnvironment(stack, prefix, final.name, packages, wheel_records(layer.wheels), layer.fds), work)
        (final / "verify.json").unlink(missing_ok=True)
        staging.link_into_place(prefix, final)
        (work / "verify.json").replace(final / "verify.json")


def _make_venv(stack: Stack, env: Path, uv: Uv, fds: tuple[int, ...]) -> None:
    """Creates an empty, relocatable environment of the stack's Python."""
    python = stack.python
    command = ["venv", str(env), "--python", python, "--relocatable", "--no-python-downloads", "--no-project"]
    status, output = uv.run(command, fds=fds)
    if status != 0:
        if "No interpreter found" in output:
            raise UserError(
                f"{stack.name} needs Python {python}, which is not on this machine's PATH; install it (your "
                f"system's package, a module, or `uv python install {python}`) and build again"
            )
        raise uv_error(output, f"{stack.name}: making the environment with Python {python}", uv)


def _install(layer: PipLayer, env: Path, folder: Path) -> None:
    """Installs the pip layer into an empty or a conda environment.

    `folder` is on the environment's file system, for temporary files.
    """
    stack, uv, names = layer.stack, layer.uv, {pin.name for pin in layer.pins}
    work = folder / "work"
    work.mkdir()
    listed = work / "wheels.txt"
    wanted = [pin.requirement for pin in layer.pins if pin.name not in stack.source_builds]
    wanted += [wheel.requirement for wheel in layer.wheels if wheel.package in names]
    listed.write_text("".join(wanted), encoding="utf-8")
    # `pip sync` would remove conda's packages that the lock does not list. --no-deps: the lock is complete, and its
    # overrides exclude packages. --no-build: builds would use unpinned tools and differ between machines.
    command = ["pip", "install", "--require-hashes", "--no-build", "--no-deps"]
    command += ["--python", str(env / "bin" / "python"), "--break-system-packages"]
    infos = env.glob("lib/python*/site-packages/*.dist-info")
    for name in sorted({canonicalize_name(path.name.partition("-")[0]) for path in infos} & names):
        command += ["--reinstall-package", name]  # the lock's file replaces conda's
    if wanted:
        linking = replace(uv, environ={"UV_LINK_MODE": _link_mode(uv.cache(), env), **uv.environ})
        command += [*uv.arguments, *layer.torch_index, "-r", str(listed)]
        status, output = linking.run(command, fds=layer.fds, show=True)
        if status != 0:
            raise uv_error(output, f"{stack.name}: installing {stack.lock}", uv)
    if layer.compiled:
        pins = {pin.name: pin for pin in layer.pins}
        build_from_source(stack, [pins[name] for name in layer.compiled], env / "bin" / "python", uv, work, layer.fds)
    shutil.rmtree(work)


def _link_mode(cache: Path | None, env: Path) -> str:
    """`hardlink` if uv's cache is on the environment's file system, else `copy`, where uv would print a warning."""
    while cache is not None and not cache.exists():
        cache = cache.parent
    return "hardlink" if cache is not None and cache.stat().st_dev == env.stat().st_dev else "copy"
