"""Installs a conda layer into a folder, and computes the variables that activating it sets."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from common.errors import UserError
from common.files import file_sha256
from workflow.stacks import conda_install
from workflow.stacks import staging as place
from workflow.stacks.condalock import CondaPackage
from workflow.stacks.definition import ENVS, Stack
from workflow.stacks.uv import NO_SPACE, Uv, end_of_output, redacted, run, uv_error

PROGRAMS = ("micromamba", "mamba", "conda")
HOW_TO_INSTALL_CONDA = (
    "install micromamba, which is one file and needs no rights: "
    '`"${SHELL}" <(curl -L micro.mamba.pm/install.sh)`, or load your site\'s module of conda'
)
PUBLIC_ALIAS = "https://conda.anaconda.org/"
"""conda's own default of `channel_alias`: what locks of the public channels name."""
INSTALLER_LOCK = ENVS / "conda-installer" / "requirements.lock"
_MISMATCH = re.compile(r"hash mismatch when extracting (?P<url>\S+) to .*: expected \w+, got (?P<got>\w+)")


def find_conda(environ: Mapping[str, str] = os.environ) -> str | None:
    """The first of micromamba, mamba and conda that is there, on PATH or named by MAMBA_EXE or CONDA_EXE."""
    named = [environ[key] for key in ("MAMBA_EXE", "CONDA_EXE") if environ.get(key)]
    for name in PROGRAMS:
        for candidate in (shutil.which(name, path=environ.get("PATH", "")), *named):
            if candidate and Path(candidate).name == name and os.access(candidate, os.X_OK):
                return candidate
    return None


def installer_library(folder: Path, uv: Uv) -> Path:
    """The folder below `folder` that holds py-rattler as its lock says; installed there by uv if it is not."""
    library = folder / file_sha256(INSTALLER_LOCK)[:12]
    if not library.is_dir():
        with place.building_folder(folder, library.name) as temporary:
            command = ["pip", "install", "--require-hashes", "--no-build", "--no-deps", "--python", sys.executable]
            status, said = uv.run([*command, *uv.arguments, "--target", str(temporary), "-r", str(INSTALLER_LOCK)])
            if status != 0:
                raise uv_error(said, "installing py-rattler, which installs conda packages", uv)
            place.move_into_place(temporary, library)
    return library


def create_prefix(
    stack: Stack, packages: list[CondaPackage], prefix: Path, stacks_dir: Path, uv: Uv, fds: tuple[int, ...]
) -> None:
    """Fetches those packages, compares each file's sha256 with the lock's and installs them into the new folder.

    What was unpacked stays in `.conda-packages` for the next build. UserError says what failed. Conda prefixes cannot
    be moved afterwards.
    """
    with place.builder_lock(stacks_dir / ".conda-installer", f"{stack.name}: py-rattler"):
        library = installer_library(stacks_dir / ".conda-installer", uv)
    alias = channel_alias() or PUBLIC_ALIAS
    urls = [re.sub(f"^{re.escape(PUBLIC_ALIAS)}", lambda _: alias, package.url) for package in packages]
    channels = {redacted(url.rsplit("/", 2)[0]) for url in urls}
    stack.say(f"{len(packages)} conda packages from {', '.join(sorted(channels))}")
    given = {
        "library": str(library.absolute()),
        "prefix": str(prefix),
        "cache": str((stacks_dir / ".conda-packages").absolute()),
        "packages": [
            {**vars(package), "subdir": package.subdir, "url": url} for package, url in zip(packages, urls, strict=True)
        ],
    }
    command = [sys.executable, "-I", conda_install.__file__]
    status, said = run(command, uv.environ, stdin=json.dumps(given), fds=fds)
    if status != 0:
        raise _not_installed(stack, packages, said)


def _not_installed(stack: Stack, packages: list[CondaPackage], said: str) -> UserError:
    if NO_SPACE.search(said):
        return UserError(f"{stack.name}: conda packages: the disk is full (or your quota is)")
    if wrong := _MISMATCH.search(said):
        package = next(package for package in packages if package.filename == Path(wrong["url"]).name)
        return UserError(
            f"{package.filename} is not the file that conda-lock.yml:{package.line} names: its sha256 is "
            f"{wrong['got']}, and {package.sha256} was expected. Either the channel serves another build of that name, "
            "or the file was changed; do not use it before you know which.\n"
            f"It came from {redacted(wrong['url'])}."
        )
    return UserError(
        f"{stack.name}: the conda packages could not be installed; py-rattler said last:\n{end_of_output(said)}\n"
        "Conda packages come from where conda-lock.yml says, or from the mirror that `channel_alias` names (.condarc, "
        "or CONDA_CHANNEL_ALIAS). What was unpacked stays: run again to go on, or build without the conda layer "
        "(`envs.backend: uv`)."
    )


def channel_alias(environ: Mapping[str, str] = os.environ) -> str | None:
    """The mirror that conda's own settings name instead of the public server, with `/` at its end; None without one."""
    home = Path(environ.get("HOME", "~")).expanduser()
    files = [Path(environ["CONDARC"])] if environ.get("CONDARC") else []
    files += [home / name for name in (".condarc", ".mambarc", ".conda/.condarc", ".config/conda/.condarc")]
    files += [Path("/etc/conda/.condarc"), Path("/opt/conda/.condarc")]
    found: Any = environ.get("CONDA_CHANNEL_ALIAS")
    for path in files:
        if found:
            break
        try:
            given = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError):
            continue  # conda reports its own files
        found = given.get("channel_alias") if isinstance(given, dict) else None
    return str(found).rstrip("/") + "/" if found else None


def activation(prefix: Path) -> dict[str, str]:
    """The variables, PATH left out, that activating the conda environment sets; empty for any other folder."""
    if not (prefix / "conda-meta").is_dir():
        return {}
    base = {"PATH": f"{prefix / 'bin'}{os.pathsep}{os.defpath}", "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"}
    script = (
        'for script in "$CONDA_PREFIX"/etc/conda/activate.d/*.sh; do [ -e "$script" ] && . "$script" >&2; done; '
        "exec env -0"
    )
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-c", script],
        env={**base, "CONDA_PREFIX": str(prefix)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        raise UserError(f"activating {prefix} failed:\n{redacted(done.stderr.strip()[-500:])}")
    found = dict(pair.split("=", 1) for pair in done.stdout.split("\0") if "=" in pair)
    for key in ("_", "SHLVL", "PWD", "OLDPWD", "PATH"):
        found.pop(key, None)
    if (prefix / "bin" / "nvcc").exists():
        found.setdefault("CUDA_HOME", str(prefix))
    return {key: value for key, value in sorted(found.items()) if base.get(key) != value}


def activated(prefix: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a process that runs as if the prefix were activated; unchanged where it is none of conda's."""
    found = activation(prefix)
    if not found:
        return dict(environ)
    path = f"{prefix / 'bin'}{os.pathsep}{environ.get('PATH', os.defpath)}"
    return {**environ, **found, "PATH": path}
