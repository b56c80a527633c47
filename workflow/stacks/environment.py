"""Computes the environment of a process in a built stack: activation, run-time paths and caches."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.files import ROOT
from workflow.stacks.definition import SITE_PACKAGES, Stack

CACHE_VARIABLE = "ROLLOUTBENCH_CACHE_DIR"
"""The site's word for the disk of the caches: it has to lock files and to run code from them."""
CONDA = "{conda}"
"""Stands in `run_paths` for the prefix of the conda layer; without that layer such a path is left out."""
ENV = "{env}"
"""Stands in verify.json for the environment's folder, which is renamed after its check."""
_PACKAGES_PROGRAM = "import json, sys, sysconfig; print(json.dumps([sysconfig.get_path('purelib'), *sys.path]))"


def stack_environment(stack_file: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of every process in a built stack.

    `stack_file` is the stack's verify.json: its activation's variables, its run-time paths ahead of what `environ`
    has, its caches (made here, private to this user and node), and its programs first on PATH.
    """
    verdict = json.loads(stack_file.read_text(encoding="utf-8"))
    return environment_in((stack_file.parent / "env").absolute(), verdict, environ)


def run_in_stack(stack_file: Path, module: str, *arguments: str | Path) -> bool:
    """Whether `python -m module` succeeded with the stack whose verify.json is given; its output is shown."""
    python = stack_file.parent / "env" / "bin" / "python"
    env = stack_environment(stack_file, os.environ) | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([python, "-m", module, *arguments], env=env, check=False).returncode == 0


def environment_in(env: Path, verdict: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """The same for the environment in the folder `env`, with the verdict's `environment` and `run`."""
    found = {**environ, **verdict.get("environment", {})}
    run = verdict.get("run", {})
    for variable, listed in {**run.get("paths", {}), "PATH": [f"{ENV}/bin"]}.items():
        paths = [path.replace(ENV, str(env)) for path in listed]
        before = found.get(variable, os.defpath if variable == "PATH" else "")
        # An empty part means the working directory to the loader; a path that is there already stays once.
        rest = [part for part in before.split(os.pathsep) if part and part not in paths]
        found[variable] = os.pathsep.join([*paths, *rest])
    if caches := run.get("caches"):
        folder = cache_folder(run["cache"], environ)
        found |= {variable: str(folder / name) for variable, name in caches.items()}
    return found


def cache_folder(key: str, environ: Mapping[str, str]) -> Path:
    """The folder for a stack's caches, `<base>/rolloutbench-<uid>/<node>/<key>`, made if it is not there.

    The base is ROLLOUTBENCH_CACHE_DIR, else the node's own temporary folder: compiled code of another node, another
    user or another stack never meets it. UserError where the folder cannot be this user's alone.
    """
    base = Path(environ.get(CACHE_VARIABLE) or _temporary_base(environ)).absolute()
    own = base / f"rolloutbench-{os.getuid()}"
    folder = own / socket.gethostname() / key
    try:
        base.mkdir(parents=True, exist_ok=True)
        own.mkdir(mode=0o700, exist_ok=True)
        found = own.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            # Compiled code is loaded from there.
            raise UserError(f"{own} is not a folder that only you can write to; remove it, or {_NAME_A_DISK}")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the caches of {key} cannot lie in {own}: {error.strerror}; {_NAME_A_DISK}") from None
    return folder


_NAME_A_DISK = f"name a disk that locks and runs code by {CACHE_VARIABLE} (on Slurm: in setup.sh)"


def _temporary_base(environ: Mapping[str, str]) -> str:
    named = (environ.get("SLURM_TMPDIR"), environ.get("TMPDIR"))
    return next((path for path in named if path and os.access(path, os.W_OK | os.X_OK)), "/tmp")


def run_time(stack: Stack, lock: str, env: Path) -> dict[str, Any]:
    """What verify.json's `run` holds: the stack's paths, caches and needs, resolved for the environment in `env`.

    A path below `{site-packages}` is there once for every folder that the interpreter imports from and that has it: an
    interpreter that lies over another one has several.
    """
    below_packages = any(SITE_PACKAGES in path for listed in stack.run_paths.values() for path in listed)
    packages = _package_folders(env) if below_packages else []
    layer = (env / "conda-meta").is_dir()
    paths = {
        variable: [
            found
            for path in listed
            if layer or CONDA not in path
            for found in _resolved(path, env.absolute(), packages)
        ]
        for variable, listed in stack.run_paths.items()
    }
    return {
        "paths": {variable: found for variable, found in paths.items() if found},
        "caches": dict(stack.run_caches),
        "cache": f"{stack.name}-{lock}",
        "needs": list(stack.run_needs),
    }


def _resolved(path: str, env: Path, packages: list[str]) -> list[str]:
    """The path in each folder of packages that has it; where none has, in the first one, so that the check names it."""
    path = path.replace(CONDA, ENV)
    folders = packages if SITE_PACKAGES in path else [""]
    # sys.path names the environment's own folder once more.
    found = list(dict.fromkeys(path.replace(SITE_PACKAGES, folder) for folder in folders))
    return [each for each in found if Path(each.replace(ENV, str(env))).is_dir()] or found[:1]


def _package_folders(env: Path) -> list[str]:
    python = env.absolute() / "bin" / "python"
    done = subprocess.run([str(python), "-I", "-c", _PACKAGES_PROGRAM], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(f"{python} does not run: {done.stderr.strip()[-500:]}")
    folders: list[str] = json.loads(done.stdout)
    # Its own folders by the name that stays; those of an interpreter below it, and of an image, as they are.
    own = {str(env.absolute()), str(env.resolve())}
    return [
        next((ENV + folder[len(each) :] for each in own if folder.startswith(each.rstrip("/") + "/")), folder)
        for folder in folders
    ]
