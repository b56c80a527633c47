"""Builds a stack's lock into a verified environment under `.stacks/`, in place: a build that ended early goes on."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.utils import canonicalize_name

from common.errors import UserError
from common.files import write_private
from workflow.stacks.conda import PROGRAMS, activated, check_conda_lock, create_prefix, find_conda
from workflow.stacks.definition import ENVS, SITE_PACKAGES, Stack, built_dir, load_stack
from workflow.stacks.disk import builder_lock, explaining_disk, require_space
from workflow.stacks.found import make_ready
from workflow.stacks.lockfile import Pin, check_lock, torch_index
from workflow.stacks.needs import require_needs
from workflow.stacks.uv import Uv, configured_uv, end_of_output, uv_error
from workflow.stacks.verification import BuiltEnvironment, built_by, is_complete, is_ready, require_backend, verify

BACKENDS = ("auto", "conda", "uv")
GIB_PER_JOB = 8
"""Upper limit of one CUDA compiler's memory, from flash-attn's largest files."""
_CGROUPS, _OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


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

    UserError reports what failed. An environment that was complete once is only verified again: jobs may use it.

    expected: the plan's lock_id; a lock that has changed since is rejected.
    backend: `conda` with the conda layer, `uv` without it, `auto` with it where a conda program exists.
    """
    stack = load_stack(name, envs)
    if stack.found_python:
        return make_ready(stack, expected)
    pins = check_lock(name, envs)
    final = built_dir(stack, stacks_dir)
    if expected not in {None, final.name}:
        raise UserError(
            f"{stack.lock} changed after the plan was made: {expected} was planned, the lock is now {final.name}; "
            "run again to make a new plan"
        )
    require_backend(stack, final, backend)
    if is_ready(stack, final):
        return final
    with explaining_disk(name, final.parent), builder_lock(final.parent, name) as fds:
        require_backend(stack, final, backend)
        if not is_ready(stack, final):
            _finish(stack, pins, final, backend, fds)
    return final


def _finish(stack: Stack, pins: list[Pin], final: Path, backend: str, fds: tuple[int, ...]) -> None:
    started = time.monotonic()
    if complete := is_complete(final):
        stack.log("verifying the existing environment")
    else:
        _install(stack, pins, final, backend, fds)
        # The mark of a complete environment must not reach the disk before its files.
        subprocess.run(["sync", "--file-system", final], stderr=subprocess.DEVNULL, check=False)
        stack.log("verifying")
    packages = check_conda_lock(stack) if built_by(final) == "conda" else ()
    try:
        verify(BuiltEnvironment(stack, final / "env", final.name, packages, {}, fds), final)
    except UserError as error:
        if not complete:
            raise
        raise UserError(
            f"{error}\nThe environment stays as it is, since runs may use it; if none does, remove it and it is built "
            f"again: rm -r {final}"
        ) from None
    stack.log(f"ready in {time.monotonic() - started:.0f} s: {final}")


def _install(stack: Stack, pins: list[Pin], final: Path, backend: str, fds: tuple[int, ...]) -> None:
    """Makes the environment, or what an earlier build has left of it, what the locks say."""
    packages = check_conda_lock(stack) if _takes_conda(stack, backend) else None
    uv = replace(configured_uv(), fds=fds)
    for line in require_needs(stack, pins, packages):
        stack.log(f"compute nodes need to run it, and this machine lacks: {line}")
    require_space(final.parent, stack.disk_gib, stack.name)
    layer = PipLayer(stack, pins, uv, torch_index(stack, pins, uv))
    stack.log(f"{len(pins)} packages from {uv.sources}{' and PyTorch' if layer.torch_index else ''}")
    env = (final / "env").absolute()  # a conda environment's files contain it
    if env.exists() and (packages is None) != (built_by(final) == "uv"):
        shutil.rmtree(env)  # half built with the other backend
    final.mkdir(exist_ok=True)
    if packages is None:
        _make_venv(stack, env, uv)
    else:
        create_prefix(stack, packages, env, final.parent.parent, uv)
        layer = replace(layer, uv=replace(uv, environ=activated(env, uv.environ)))
    with _work_folder(final) as work:
        _install_pins(layer, env, work, with_conda=packages is not None)


@contextlib.contextmanager
def _work_folder(final: Path) -> Iterator[Path]:
    """A private folder on the environment's file system; what a killed builder left in it is removed first."""
    work = final / ".work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(mode=0o700)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _takes_conda(stack: Stack, backend: str) -> bool:
    """Whether to build the stack with its conda layer; logs a layer that is left out."""
    if stack.conda_lock is None:
        return False
    if backend == "conda" or (backend == "auto" and find_conda()):
        return True
    missing = f"no {' or '.join(PROGRAMS)} found; `envs.backend: conda` builds with it"
    reason = "as configured" if backend == "uv" else missing
    stack.log(f"without its conda layer ({reason}): Python and compilers are this machine's own")
    return False


def _make_venv(stack: Stack, env: Path, uv: Uv) -> None:
    """Creates an environment of the stack's Python; it also works where its folder is moved to."""
    python = stack.python
    command = ["venv", str(env), "--python", python, "--allow-existing", "--relocatable"]
    status, output = uv.run([*command, "--no-python-downloads", "--no-project"])
    if status != 0:
        if "No interpreter found" in output:
            raise UserError(
                f"{stack.name} needs Python {python}, which is not on this machine's PATH; install it (your "
                f"system's package, a module, or `uv python install {python}`) and build again"
            )
        raise uv_error(output, f"{stack.name}: making the environment with Python {python}", uv)


def _install_pins(layer: PipLayer, env: Path, work: Path, *, with_conda: bool) -> None:
    stack, uv, names = layer.stack, layer.uv, {pin.name for pin in layer.pins}
    infos = env.glob("lib/python*/site-packages/*.dist-info")
    there = {canonicalize_name(path.name.partition("-")[0]) for path in infos}
    # What an earlier build has compiled stays.
    to_build = [name for name in stack.source_builds if with_conda or name not in there]
    listed = work / "wheels.txt"
    listed.write_text("".join(pin.requirement for pin in layer.pins if pin.name not in to_build), encoding="utf-8")
    # The lock is complete, and its overrides exclude packages, so that dependencies do not count. --no-build: builds
    # would use unpinned tools and differ between machines. `sync` would remove what conda alone has.
    command = ["pip", "install", "--no-deps"] if with_conda else ["pip", "sync", "--allow-empty-requirements"]
    command += ["--require-hashes", "--no-build", "--python", str(env / "bin" / "python"), "--break-system-packages"]
    for name in sorted(there & names) if with_conda else []:
        command += ["--reinstall-package", name]  # the lock's file replaces conda's
    if listed.stat().st_size or not with_conda:
        command += [*uv.arguments, *layer.torch_index, "-r" if with_conda else "--", str(listed)]
        status, output = uv.run(command, show=True)
        if status != 0:
            raise uv_error(output, f"{stack.name}: installing {stack.lock}", uv)
    pins = {pin.name: pin for pin in layer.pins}
    build_from_source(stack, [pins[name] for name in to_build], env / "bin" / "python", uv, work)


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


def jobs_at_once(environ: Mapping[str, str], cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUPS) -> int:
    """Parallel compilers that the processors and memory of this machine, job or container allow; at least one."""
    processors = int(environ.get("SLURM_CPUS_PER_TASK") or len(os.sched_getaffinity(0)))
    limits_gib = [_free_gib()]
    # Of a Slurm job, by either option; usually less than the machine has free.
    if granted_mib := environ.get("SLURM_MEM_PER_NODE"):
        limits_gib.append(int(granted_mib) / 1024)
    elif granted_mib := environ.get("SLURM_MEM_PER_CPU"):
        limits_gib.append(int(granted_mib) * processors / 1024)
    limits_gib += [limit / 2**30 for limit in _cgroup_limits(cgroups, own)]
    return max(1, min(processors, int(min(limits_gib) // GIB_PER_JOB)))


def _free_gib() -> float:
    (free_kib,) = re.findall(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="utf-8"))
    return int(free_kib) / 2**20


def _cgroup_limits(cgroups: Path, own: Path) -> Iterator[int]:
    """The memory limits of this process's control groups (versions 2 and 1) in bytes; also those of a container."""
    for line in own.read_text(encoding="utf-8").splitlines():
        _, kinds, group = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        root, file = (cgroups / "memory", "memory.limit_in_bytes") if kinds else (cgroups, "memory.max")
        for folder in (Path(group.lstrip("/")), *Path(group.lstrip("/")).parents):
            with contextlib.suppress(OSError, ValueError):  # "max": without a limit
                yield int((root / folder / file).read_text(encoding="utf-8"))


def _uv_toml(name: str, settings: Mapping[str, str], uv: Uv) -> str:
    """The user's own uv.toml, if UV_CONFIG_FILE names one, with the build's variables."""
    path = Path(uv.environ.get("UV_CONFIG_FILE") or os.devnull)
    lines = [path.read_text(encoding="utf-8") if path.exists() else "", f'[extra-build-variables."{name}"]']
    lines += [f"{json.dumps(key)} = {json.dumps(value, ensure_ascii=False)}" for key, value in sorted(settings.items())]
    return "\n".join([*lines, ""])
