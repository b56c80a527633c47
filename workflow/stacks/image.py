"""Writes the Apptainer definition of a stack, and adopts an image in place of a stack that is built here."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

from common.errors import UserError
from workflow.stacks import staging as place
from workflow.stacks.definition import ENVS, Stack, load_stack, lock_id, verify_id
from workflow.stacks.lockfile import Pin, check_lock, parse_lock
from workflow.stacks.verification import Environment, require_free, verify

BUILDER = ("packaging", "pyyaml", "uv")
"""What `python -m workflow.stacks build` imports beside the standard library, from the controller's lock."""

_BASES = {
    None: "docker://debian:12",
    "12.4": "docker://nvidia/cuda:12.4.1-devel-ubuntu22.04",
    "13.0": "docker://nvidia/cuda:13.0.1-devel-ubuntu24.04",
}
"""Base images by CUDA's release; `devel` since nvcc compiles source builds, and kernels while a job runs."""

ADOPTED = "adopted, not built"
_PROGRAMS = ("apptainer", "singularity")
_OLDEST_BUILDER = (3, 11)
_BASE = re.compile(r"(?P<agent>docker|oras|library|localimage)(://|:)(?P<name>\S+)$")

_TEMPLATE = Path(__file__).with_name("image.def")


def definition(name: str, envs: Path = ENVS, base: str | None = None) -> str:
    """The text of an Apptainer definition; equal locks give equal text.

    It installs nothing by itself but what `build` needs, and then runs `build`, so that flags, hashes, source builds
    and verification are written down in one place. `base` replaces the base image, as in `docker://name@sha256:…`.
    """
    stack = load_stack(name, envs)
    check_lock(name, envs)
    found = _BASE.match(base or _usual_base(stack))
    if found is None:
        raise UserError(f"--base: {base!r} is not understood; wanted docker://name:tag, or localimage:path.sif")
    pins = _builder_pins(envs)
    builder_python = stack.python if _release(stack.python) >= _OLDEST_BUILDER else "3.11"
    present = lock_id(name, envs)
    return _TEMPLATE.read_text(encoding="utf-8").format(
        name=name,
        lock_id=present,
        verify_id=verify_id(stack),
        agent=found["agent"],
        base=found["name"],
        description=" ".join(stack.description.split()),
        python=stack.python,
        pythons=" ".join(sorted({stack.python, builder_python}, key=_release)),
        builder_python=builder_python,
        uv=pins["uv"].requirement,
        uv_version=pins["uv"].version,
        builder="".join(pins[package].requirement for package in BUILDER),
        built=f"/opt/stacks/{name}/{present}/env",
    )


def _usual_base(stack: Stack) -> str:
    if stack.cuda not in _BASES:
        known = ", ".join(release for release in _BASES if release)
        raise UserError(
            f"{stack.folder / 'stack.yaml'} asks for CUDA {stack.cuda}, and base images are known for {known}; "
            "name one with --base, such as docker://nvidia/cuda:<release>-devel-ubuntu24.04"
        )
    return _BASES[stack.cuda]


def _builder_pins(envs: Path) -> dict[str, Pin]:
    lock = envs / "controller" / "requirements.lock"
    pins = {pin.name: pin for pin in parse_lock(lock)}
    if missing := [name for name in BUILDER if name not in pins]:
        raise UserError(
            f"{lock} pins no {', '.join(missing)}, which builds the image; run `make locks STACK=controller`"
        )
    return {name: pins[name] for name in BUILDER}


def _release(python: str) -> tuple[int, ...]:
    return tuple(int(part) for part in python.split("."))


def adopt(name: str, image: Path, stacks_dir: Path, envs: Path = ENVS) -> Path:
    """The stack's folder, `<stacks_dir>/<name>/<lock_id>`, whose `env/bin/python` runs the image's interpreter.

    It takes its place only after verify.py has passed in the image: the image has what the present lock says.
    UserError otherwise, and for a stack that is there and not adopted; then what was at that path before is as it was.
    """
    stack = load_stack(name, envs)
    check_lock(name, envs)
    if not image.exists():
        raise UserError(f"{image} is not there; `make container STACK={name}` writes what it is built from")
    program = next((found for known in _PROGRAMS if (found := shutil.which(known))), None)
    if program is None:
        raise UserError("neither apptainer nor singularity is on PATH; install it, or load its module, and try again")
    final = stacks_dir / name / lock_id(name, envs)
    require_free(stack, final, ADOPTED, f"adopt {image}")
    with (
        place.builder_lock(final.parent, name) as fds,
        place.building_folder(final.parent, final.name) as temporary,
    ):
        python = temporary / "env" / "bin" / "python"
        python.parent.mkdir(parents=True)
        binds = [envs.absolute().parent, stacks_dir.absolute()]
        python.write_text(wrapper(program, image.absolute(), binds, gpu=stack.cuda is not None), encoding="utf-8")
        python.chmod(0o755)
        origin = {"state": ADOPTED, "image": str(image.absolute())}
        stack.say(f"verifying {image}")
        verify(Environment(stack, temporary / "env", final.name, (), origin, fds), temporary)
        place.move_into_place(temporary, final)
    return final


def wrapper(program: str, image: Path, binds: list[Path], *, gpu: bool) -> str:
    """A shell script that runs the image's interpreter; `binds` are the folders that it sees beside Apptainer's own."""
    command = [program, "exec", *(["--nv"] if gpu else []), *(f"--bind={bind}" for bind in binds), str(image)]
    return (
        "#!/bin/sh\n# The interpreter of an image; more folders of this machine: APPTAINER_BIND.\n"
        # Both programs keep this variable out of the image unless it comes by this name.
        # An empty one would hide the image's own.
        'if [ -n "${LD_LIBRARY_PATH:-}" ]; then\n'
        '  for name in APPTAINERENV SINGULARITYENV; do export "${name}_LD_LIBRARY_PATH=$LD_LIBRARY_PATH"; done\n'
        "fi\n"
        f'exec {shlex.join(command)} /opt/stack/bin/python "$@"\n'
    )
