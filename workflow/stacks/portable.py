"""Takes a stack to another machine: as the wheels of its lock, or as an Apptainer image that is adopted there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from packaging.version import Version

from common.errors import UserError
from common.redaction import without_secrets
from workflow.stacks import staging
from workflow.stacks.definition import ENVS, built_dir, load_stack, lock_id, verify_id
from workflow.stacks.lockfile import Pin, check_lock, parse_lock, torch_index
from workflow.stacks.uv import HOW_TO_SET_SOURCES, configured_uv, end_of_output
from workflow.stacks.verification import BuiltEnvironment, origin_of, verify

BUILDER = (
    *("packaging", "pyyaml", "uv"),
    *("pydantic", "pydantic-core", "annotated-types", "typing-extensions", "typing-inspection"),
)
"""The packages of the controller's lock that `python -m workflow.stacks build` imports."""

_BASES = {
    None: "docker://debian:12",
    "12.4": "docker://nvidia/cuda:12.4.1-devel-ubuntu22.04",
    "13.0": "docker://nvidia/cuda:13.0.1-devel-ubuntu24.04",
}
"""Base images by CUDA release; `devel` images have nvcc, for source builds and for kernels that jobs compile."""

_PLATFORM = re.compile(r"manylinux_2_(?P<minor>\d+)_(?P<machine>x86_64|aarch64)")
_TORCH_INDEX = "https://download.pytorch.org/whl/"
_OLDEST_GLIBC = 17
ADOPTED = "adopted, not built"
_PROGRAMS = ("apptainer", "singularity")
_OLDEST_BUILDER = "3.11"
_BASE = re.compile(r"(?P<agent>docker|oras|library|localimage)(://|:)(?P<name>\S+)$")

_TEMPLATE = Path(__file__).with_name("image.def")


def container_definition(name: str, envs: Path = ENVS, base: str | None = None) -> str:
    """The text of an Apptainer definition; equal locks give equal text.

    It installs only what `build` needs and then runs `build`, so all flags and checks are in one place. `base` replaces
    the base image, such as `docker://name@sha256:…`.
    """
    stack = load_stack(name, envs)
    check_lock(name, envs)
    if base is None and stack.cuda not in _BASES:
        known = ", ".join(release for release in _BASES if release)
        raise UserError(
            f"{stack.folder / 'stack.yaml'} has CUDA {stack.cuda}, and base images are known for {known}; name one "
            "with --base, such as docker://nvidia/cuda:<release>-devel-ubuntu24.04"
        )
    match = _BASE.match(base or _BASES[stack.cuda])
    if match is None:
        raise UserError(f"--base: {base!r} is not understood; wanted docker://name:tag, or localimage:path.sif")
    lock = envs / "controller" / "requirements.lock"
    pins = {pin.name: pin for pin in parse_lock(lock)}
    if missing := [package for package in BUILDER if package not in pins]:
        raise UserError(f"{lock} pins no {', '.join(missing)} for the build; run `make locks STACK=controller`")
    builder_python = max(stack.python, _OLDEST_BUILDER, key=Version)
    present = lock_id(stack)
    return _TEMPLATE.read_text(encoding="utf-8").format(
        name=name,
        lock_id=present,
        verify_id=verify_id(stack),
        agent=match["agent"],
        base=match["name"],
        description=" ".join(stack.description.split()),
        python=stack.python,
        pythons=" ".join(sorted({stack.python, builder_python}, key=Version)),
        builder_python=builder_python,
        uv=pins["uv"].requirement,
        uv_version=pins["uv"].version,
        builder="".join(pins[package].requirement for package in BUILDER),
        built=f"/opt/stacks/{name}/{present}/env",
    )


def adopt(name: str, image: Path, stacks_dir: Path, envs: Path = ENVS) -> Path:
    """Creates the stack's folder, `<stacks_dir>/<name>/<lock_id>`; its `env/bin/python` runs the image's interpreter.

    The folder appears only after verify.py has passed in the image. UserError if it fails, or if the stack exists and
    is not adopted; then the old folder does not change.
    """
    stack = load_stack(name, envs)
    check_lock(name, envs)
    if not image.exists():
        raise UserError(f"{image} does not exist; `make container STACK={name}` writes the definition to build it from")
    program = next((found for known in _PROGRAMS if (found := shutil.which(known))), None)
    if program is None:
        raise UserError("neither apptainer nor singularity is on PATH; install it, or load its module, and try again")
    final = built_dir(stack, stacks_dir)
    present = origin_of(final).get("state", "built")
    if os.path.lexists(final / "env") and present != ADOPTED:
        raise UserError(f"{name} already exists, {present}; to adopt {image}, remove that folder first: {final}")
    with (
        staging.builder_lock(final.parent, name) as fds,
        staging.building_folder(final.parent, final.name) as temporary,
    ):
        python = temporary / "env" / "bin" / "python"
        python.parent.mkdir(parents=True)
        binds = [envs.absolute().parent, stacks_dir.absolute()]
        python.write_text(wrapper(program, image.absolute(), binds, gpu=stack.cuda is not None), encoding="utf-8")
        python.chmod(0o755)
        origin = {"state": ADOPTED, "image": str(image.absolute())}
        stack.log(f"verifying {image}")
        verify(BuiltEnvironment(stack, temporary / "env", final.name, (), origin, fds), temporary)
        staging.move_into_place(temporary, final)
    return final


def wrapper(program: str, image: Path, binds: list[Path], *, gpu: bool) -> str:
    """A shell script that runs the image's interpreter; `binds` are folders to mount in addition to Apptainer's own."""
    command = [program, "exec", *(["--nv"] if gpu else []), *(f"--bind={bind}" for bind in binds), str(image)]
    return (
        "#!/bin/sh\n# Runs the interpreter of an image; set APPTAINER_BIND to mount more folders of this machine.\n"
        # Apptainer and Singularity pass this variable on only under these names; an empty value would replace the
        # image's own.
        'if [ -n "${LD_LIBRARY_PATH:-}" ]; then\n'
        '  for name in APPTAINERENV SINGULARITYENV; do export "${name}_LD_LIBRARY_PATH=$LD_LIBRARY_PATH"; done\n'
        "fi\n"
        f'exec {shlex.join(command)} /opt/stack/bin/python "$@"\n'
    )


def collect(name: str, out: Path, platform: str, envs: Path = ENVS) -> Path:
    """Downloads the wheels of the stack's lock for that platform to `out/wheels`; returns `out`.

    Files that are there with the right hash are kept. UserError quotes pip if a wheel is missing.
    """
    stack, wheels = load_stack(name, envs), out / "wheels"
    every = check_lock(name, envs)
    pins = [pin for pin in every if pin.name not in stack.source_builds]
    uv = configured_uv()
    elsewhere = bool(torch_index(stack, pins, uv))
    index = ["--extra-index-url", f"{_TORCH_INDEX}{stack.torch_backend}"] if elsewhere else []
    stack.log(f"downloading {len(pins)} packages from {uv.sources}")
    download(pins, wheels, stack.python, platform, index)
    megabytes = sum(path.stat().st_size for path in wheels.iterdir()) / 1e6
    stack.log(f"{len(pins)} packages, {megabytes:.1f} MB, for Python {stack.python} on {platform}: {wheels}")
    for pin in every:
        if pin not in pins:
            stack.log(f"{pin.name} {pin.version} has no wheel: carry an image of the stack instead (docs/offline.md)")
    stack.log(f"there: PIP_NO_INDEX=1 PIP_FIND_LINKS={wheels} python -m workflow.stacks build {name}")
    return out


def download(pins: Sequence[Pin], folder: Path, python: str, platform: str, options: Sequence[str] = ()) -> None:
    """Downloads a wheel of each pin, by its hash, for a feature release of CPython and a platform.

    `options` are further ones of `pip download`; index, proxy, certificates and passwords are pip's own settings.
    """
    target = _PLATFORM.fullmatch(platform)
    if target is None or int(target["minor"]) < _OLDEST_GLIBC:
        raise UserError(
            f"--platform must be manylinux_2_<glibc's minor version, at least 17>_<x86_64 or aarch64>, such as "
            f"manylinux_2_28_x86_64 (got {platform!r}); `ldd --version` on the target prints its glibc version"
        )
    folder.mkdir(parents=True, exist_ok=True)
    # pip takes only the platforms that are named; manylinux2014, which is 2_17, includes the older names.
    names = [f"manylinux_2_{minor}" for minor in range(int(target["minor"]), _OLDEST_GLIBC, -1)]
    platforms = [f"--platform={each}_{target['machine']}" for each in (*names, "manylinux2014", "linux")]
    with staging.explaining_disk("pip download", folder), tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
        listed.write("".join(pin.requirement for pin in pins))
        listed.flush()
        # Without a source archive no setup.py runs.
        command = [sys.executable, "-P", "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--require-hashes", "--implementation=cp", f"--python-version={python}"]
        command += ["--no-cache-dir", *platforms, *options, "--dest", str(folder), "-r", listed.name]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        raise UserError(
            f"a wheel for Python {python} on {platform} could not be downloaded; pip said:\n"
            f"{end_of_output(without_secrets(done.stderr), 6)}\n"
            f"A newer glibc on the target: --platform manylinux_2_<minor>_<machine>. {HOW_TO_SET_SOURCES}"
        )
