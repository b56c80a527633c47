"""Adopts an Apptainer image in place of a stack that is built here."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from common.errors import UserError
from workflow.stacks import staging as place
from workflow.stacks.definition import ENVS, load_stack, lock_id
from workflow.stacks.lockfile import check_lock
from workflow.stacks.verification import verify

_PROGRAMS = ("apptainer", "singularity")


def adopt(name: str, image: Path, stacks_dir: Path, envs: Path = ENVS) -> Path:
    """The stack's folder, `<stacks_dir>/<name>/<lock_id>`, whose `env/bin/python` runs the image's interpreter.

    It takes its place only after verify.py has passed in the image: the image has what the present lock says.
    UserError otherwise; then what was at that path before is as it was.
    """
    stack = load_stack(name, envs)
    check_lock(name, envs)
    if not image.exists():
        raise UserError(f"{image} is not there; `make container STACK={name}` writes what it is built from")
    program = next((found for known in _PROGRAMS if (found := shutil.which(known))), None)
    if program is None:
        raise UserError("neither apptainer nor singularity is on PATH; install it, or load its module, and try again")
    final = stacks_dir / name / lock_id(name, envs)
    with place.builder_lock(final.parent, name) as fds:
        place.remove_leftovers(final.parent)
        with place.building_folder(final.parent, final.name) as temporary:
            python = temporary / "env" / "bin" / "python"
            python.parent.mkdir(parents=True)
            binds = [envs.absolute().parent, stacks_dir.absolute()]
            python.write_text(wrapper(program, image.absolute(), binds, gpu=stack.cuda is not None), encoding="utf-8")
            python.chmod(0o755)
            origin = {"state": "adopted, not built", "image": str(image.absolute())}
            print(f"{name}: verifying {image}", file=sys.stderr, flush=True)
            verify(stack, temporary / "env", temporary, final.name, [], fds, origin)
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
