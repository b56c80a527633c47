"""Builds a stack's lock into a verified environment under `.stacks/`."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.utils import canonicalize_name

from common.errors import UserError
from common.files import write_private
from workflow.stacks import staging
from workflow.stacks.conda import PROGRAMS, CondaPackage, activated, check_conda_lock, create_prefix, find_conda
from workflow.stacks.definition import ENVS, SITE_PACKAGES, Stack, built_dir, load_stack
from workflow.stacks.lockfile import Pin, check_lock, torch_index
from workflow.stacks.needs import require_needs
from workflow.stacks.uv import Uv, configured_uv, end_of_output, uv_error
from workflow.stacks.verification import BuiltEnvironment, built_by, is_ready, origin_of, verify, was_chosen

BACKENDS = ("auto", "conda", "uv")
GIB_PER_JOB = 8
"""Upper limit of one CUDA compiler's memory, from flash-attn's largest files."""


@dataclass(frozen=True)
class PipLayer:
    """The pins of a stack's lock to install, and how to install them."""

    stack: Stack
    pins: Sequence[Pin]
    uv: Uv
    torch_index: Sequence[str]


def build(
    name: str,
    stacks_dir: Path,
    envs: Path = ENVS,
    *,
    expected: str | None = None,
    backend: str = "auto",
) -> Path:
    """Builds and verifies the stack unless it is ready; returns its folder, `<stacks_dir>/<name>/<lock_id>`.

    UserError reports what failed. A failed build leaves nothing new in the folder, and an environment that no longer
    verifies loses its verify.json.

    expected: the plan's lock_id; a lock that has changed since is rejected.
    backend: `conda` with the conda layer, `uv` without it, `auto` with it where a conda program exists. A stack with
    another backend is built again, unless it is adopted.
    """
    stack = load_stack(name, envs)
    if stack.found_python:
        from workflow.stacks.found import make_ready  # asks the trainers, which a builder lacks

        return make_ready(stack, expected)
    pins = check_lock(name, envs)
    final = built_dir(stack, stacks_dir)
    if expected not in {None, final.name}:
        raise UserError(
            f"{stack.lock} changed after the plan was made: {expected} was planned, the lock is now {final.name}; "
            "run again to make a new plan"
        )
    wanted = "auto" if was_chosen(origin_of(final)) else backend if stack.conda_lock else "uv"
    if is_ready(stack, final, wanted):
        return final
    with staging.explaining_disk(name, final.parent), staging.builder_lock(final.parent, name) as fds:
        if not is_ready(stack, final, wanted) and not _verify_again(stack, final, wanted, fds):
            _build(stack, pins, final, wanted, fds)
    return final


def _verify_again(stack: Stack, final: Path, wanted: str, fds: tuple[int, ...]) -> bool:
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


def _build(stack: Stack, pins: list[Pin], final: Path, wanted: str, fds: tuple[int, ...]) -> None:
    started = time.monotonic()
    packages = check_conda_lock(stack) if _takes_conda(stack, wanted) else None
    uv = replace(configured_uv(), fds=fds)
    for line in require_needs(stack, pins, packages):
        stack.log(f"compute nodes need to run it, and this machine lacks: {line}")
    staging.require_space(final.parent, stack.disk_gib, stack.name)
    layer = PipLayer(stack, pins, uv, torch_index(stack, pins, uv))
    stack.log(f"{len(pins)} packages from {uv.sources}{' and PyTorch' if layer.torch_index else ''}")
    if packages is None:
        with staging.building_folder(final.parent, final.name) as temporary:
            _make_venv(stack, temporary / "env", uv)
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
    missing = f"no {' or '.join(PROGRAMS)} found; `envs.backend: conda` builds with it"
    reason = "as configured" if wanted == "uv" else missing
    stack.log(f"without its conda layer ({reason}): Python and compilers are this machine's own")
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
    verify(BuiltEnvironment(stack, temporary / "env", final.name, (), {}, layer.uv.fds), temporary)
    staging.move_into_place(temporary, final)


def _build_in_place(layer: PipLayer, packages: list[CondaPackage], final: Path) -> None:
    stack, uv = layer.stack, layer.uv
    with staging.growing_prefix(final) as prefix, staging.building_folder(final.parent, final.name) as work:
        prefix = prefix.absolute()  # the environment's files contain it
        create_prefix(stack, packages, prefix, final.parent.parent, uv)
        _install(replace(layer, uv=replace(uv, environ=activated(prefix, uv.environ))), prefix, work)
        stack.log("verifying")
        verify(BuiltEnvironment(stack, prefix, final.name, packages, {}, uv.fds), work)
        (final / "verify.json").unlink(missing_ok=True)
        staging.link_into_place(prefix, final)
        (work / "verify.json").replace(final / "verify.json")


def _make_venv(stack: Stack, env: Path, uv: Uv) -> None:
    """Creates an empty, relocatable environment of the stack's Python."""
    python = stack.python
    command = ["venv", str(env), "--python", python, "--relocatable", "--no-python-downloads", "--no-project"]
    status, output = uv.run(command)
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
    listed.write_text("".join(wanted), encoding="utf-8")
    # `pip sync` would remove conda's packages that the lock does not list. --no-deps: the lock is complete, and its
    # overrides exclude packages. --no-build: builds would use unpinned tools and differ between machines.
    command = ["pip", "install", "--require-hashes", "--no-build", "--no-deps"]
    command += ["--python", str(env / "bin" / "python"), "--break-system-packages"]
    infos = env.glob("lib/python*/site-packages/*.dist-info")
    for name in sorted({canonicalize_name(path.name.partition("-")[0]) for path in infos} & names):
        command += ["--reinstall-package", name]  # the lock's file replaces conda's
    if wanted:
        command += [*uv.arguments, *layer.torch_index, "-r", str(listed)]
        status, output = uv.run(command, show=True)
        if status != 0:
            raise uv_error(output, f"{stack.name}: installing {stack.lock}", uv)
    pins = {pin.name: pin for pin in layer.pins}
    build_from_source(stack, [pins[name] for name in stack.source_builds], env / "bin" / "python", uv, work)
    shutil.rmtree(work)


def build_from_source(stack: Stack, pins: list[Pin], python: Path, uv: Uv, work: Path) -> None:
    """Builds and installs those pins from source, one after another, with the environment's packages.

    `work`, on the environment's file system, has uv's cache for this build alone: a permanent cache could return a
    package that was compiled against another torch.
    """
    for pin in pins:
        name, wanted = pin.name, work / f"{pin.name}.txt"
        wanted.write_text(pin.requirement, encoding="utf-8")
        (packages,) = python.absolute().parents[1].glob("lib/python*/site-packages")
        settings = build_settings(stack, uv.environ)
        settings = {key: value.replace(SITE_PACKAGES, str(packages)) for key, value in settings.items()}
        limit = f", {settings['MAX_JOBS']} compilers at once" if "MAX_JOBS" in settings else ""
        stack.log(f"building {name} {pin.version} from source{limit}: 10-60 minutes where it is CUDA code")
        command = ["pip", "install", "--require-hashes", "--no-deps", "--no-build-isolation", "--no-binary", name]
        command += ["--python", str(python), "--break-system-packages", *uv.arguments]
        command += ["--cache-dir", str(work / "cache"), "-r", wanted.name]
        environ = {key: value for key, value in uv.environ.items() if key not in {"UV_CONFIG_FILE", "UV_NO_CONFIG"}}
        # uv.toml limits these variables to the build: uv itself must reach the sources. It may have their passwords.
        own = work / "uv.toml"
        try:
            write_private(own, _uv_toml(name, settings, uv).encode())
            status, output = replace(uv, environ=environ).run(command, cwd=work)
        finally:
            own.unlink(missing_ok=True)
        if status != 0:
            if "Failed to build" in output or "build backend" in output:
                end = end_of_output(output, 30)
                raise UserError(f"{stack.name}: {name} {pin.version} could not be built; end of its output:\n{end}")
            raise uv_error(output, f"{stack.name}: building {name}", uv)


def build_settings(stack: Stack, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The additional environment variables of a source build."""
    settings = dict(stack.source_environment)
    if "MAX_JOBS" in environ:
        settings["MAX_JOBS"] = environ["MAX_JOBS"]
    elif stack.cuda is not None:
        settings.setdefault("MAX_JOBS", str(jobs_at_once(environ)))
    # flash-attn's setup.py downloads a prebuilt binary if it can; a dead proxy prevents that.
    proxies = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy")
    settings |= dict.fromkeys(proxies, "http://127.0.0.1:9")
    settings |= {"no_proxy": "", "NO_PROXY": "", "PIP_NO_INDEX": "1"}
    return settings


def jobs_at_once(environ: Mapping[str, str]) -> int:
    """Parallel compilers that the processors and memory of this machine or Slurm job allow; at least one."""
    processors = int(environ.get("SLURM_CPUS_PER_TASK") or len(os.sched_getaffinity(0)))
    meminfo = Path("/proc/meminfo").read_text(encoding="utf-8")
    limits_gib = [int(free_kib) / 2**20 for free_kib in re.findall(r"MemAvailable:\s+(\d+) kB", meminfo)]
    if granted_mib := environ.get("SLURM_MEM_PER_NODE"):  # usually less than the machine has free
        limits_gib.append(int(granted_mib) / 1024)
    return max(1, min(processors, int(min(limits_gib) // GIB_PER_JOB)))


def _uv_toml(name: str, settings: Mapping[str, str], uv: Uv) -> str:
    """The user's own uv.toml, if UV_CONFIG_FILE names one, with the build's variables."""
    path = Path(uv.environ.get("UV_CONFIG_FILE") or os.devnull)
    lines = [path.read_text(encoding="utf-8") if path.exists() else "", f'[extra-build-variables."{name}"]']
    lines += [f"{json.dumps(key)} = {json.dumps(value, ensure_ascii=False)}" for key, value in sorted(settings.items())]
    return "\n".join([*lines, ""])
