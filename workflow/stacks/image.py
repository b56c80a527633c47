"""Writes the Apptainer definition of a stack, and adopts an image instead of a build."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from pathlib import Path

from packaging.version import Version

from common.errors import UserError
from workflow.stacks import staging
from workflow.stacks.definition import ENVS, load_stack, lock_id, verify_id
from workflow.stacks.lockfile import check_lock, parse_lock
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
    present = lock_id(name, envs)
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
    final = stacks_dir / name / lock_id(name, envs)
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
