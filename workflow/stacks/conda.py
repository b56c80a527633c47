"""Installs a conda layer into a folder, and computes the variables of its activation."""

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
from workflow.stacks import conda_install, staging
from workflow.stacks.condalock import CondaPackage
from workflow.stacks.definition import ENVS, Stack
from workflow.stacks.uv import NO_SPACE, Uv, end_of_output, redacted, run, uv_error

PROGRAMS = ("micromamba", "mamba", "conda")
HOW_TO_INSTALL_CONDA = (
    "install micromamba, a single file that needs no special rights: "
    '`"${SHELL}" <(curl -L micro.mamba.pm/install.sh)`, or load your site\'s conda module'
)
PUBLIC_ALIAS = "https://conda.anaconda.org/"
"""conda's default `channel_alias`, which locks of public channels contain."""
INSTALLER_LOCK = ENVS / "conda-installer" / "requirements.lock"
_MISMATCH = re.compile(r"hash mismatch when extracting (?P<url>\S+) to .*: expected \w+, got (?P<got>\w+)")


def find_conda(environ: Mapping[str, str] = os.environ) -> str | None:
    """The first of micromamba, mamba and conda on PATH or in MAMBA_EXE or CONDA_EXE; None without any."""
    named = [environ[key] for key in ("MAMBA_EXE", "CONDA_EXE") if environ.get(key)]
    for name in PROGRAMS:
        for candidate in (shutil.which(name, path=environ.get("PATH", "")), *named):
            if candidate and Path(candidate).name == name and os.access(candidate, os.X_OK):
                return candidate
    return None


def installer_library(folder: Path, uv: Uv) -> Path:
    """The folder below `folder` with the locked py-rattler; uv installs it if it is missing."""
    library = folder / file_sha256(INSTALLER_LOCK)[:12]
    if not library.is_dir():
        with staging.building_folder(folder, library.name) as temporary:
            command = ["pip", "install", "--require-hashes", "--no-build", "--no-deps", "--python", sys.executable]
            status, output = uv.run([*command, *uv.arguments, "--target", str(temporary), "-r", str(INSTALLER_LOCK)])
            if status != 0:
                raise uv_error(output, "installing py-rattler, which installs conda packages", uv)
            staging.move_into_place(temporary, library)
    return library


def create_prefix(
    stack: Stack, packages: list[CondaPackage], prefix: Path, stacks_dir: Path, uv: Uv, fds: tuple[int, ...]
) -> None:
    """Downloads the packages, compares each file's sha256 with the lock's, and installs them into the new prefix.

    Unpacked packages stay in `.conda-packages` for the next build. UserError reports what failed. A conda prefix cannot
    be moved.
    """
    with staging.builder_lock(stacks_dir / ".conda-installer", f"{stack.name}: py-rattler"):
        library = installer_library(stacks_dir / ".conda-installer", uv)
    alias = channel_alias() or PUBLIC_ALIAS
    urls = [re.sub(f"^{re.escape(PUBLIC_ALIAS)}", lambda _: alias, package.url) for package in packages]
    channels = {redacted(url.rsplit("/", 2)[0]) for url in urls}
    stack.log(f"{len(packages)} conda packages from {', '.join(sorted(channels))}")
    given = {
        "library": str(library.absolute()),
        "prefix": str(prefix),
        "cache": str((stacks_dir / ".conda-packages").absolute()),
        "packages": [
            {**vars(package), "subdir": package.subdir, "url": url} for package, url in zip(packages, urls, strict=True)
        ],
    }
    command = [sys.executable, "-I", conda_install.__file__]
    status, output = run(command, uv.environ, stdin=json.dumps(given), fds=fds)
    if status != 0:
        raise _not_installed(stack, packages, output)


def _not_installed(stack: Stack, packages: list[CondaPackage], output: str) -> UserError:
    if NO_SPACE.search(output):
        return UserError(f"{stack.name}: conda packages: the disk is full (or your quota is)")
    if mismatch := _MISMATCH.search(output):
        package = next(package for package in packages if package.filename == Path(mismatch["url"]).name)
        return UserError(
            f"{package.filename} is not the file that conda-lock.yml:{package.line} names: its sha256 is "
            f"{mismatch['got']}, and {package.sha256} was expected. Either the channel serves another build of that "
            f"name, or the file was changed; find out which before you use it.\nSource: {redacted(mismatch['url'])}."
        )
    return UserError(
        f"{stack.name}: the conda packages could not be installed; py-rattler's output:\n{end_of_output(output)}\n"
        "Conda packages come from the channels in conda-lock.yml, or from the mirror in `channel_alias` (.condarc or "
        "CONDA_CHANNEL_ALIAS). Unpacked packages stay: run again to resume, or build without the conda layer "
        "(`envs.backend: uv`)."
    )


def channel_alias(environ: Mapping[str, str] = os.environ) -> str | None:
    """The mirror in conda's settings that replaces the public server, with a final `/`; None without one."""
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
            continue  # conda reports errors in its own files
        found = given.get("channel_alias") if isinstance(given, dict) else None
    return str(found).rstrip("/") + "/" if found else None


def activation(prefix: Path) -> dict[str, str]:
    """The variables except PATH that activating the conda environment sets; empty for other folders."""
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
    """`environ` with the prefix activated; unchanged if it is not a conda prefix."""
    if not (found := activation(prefix)):
        return dict(environ)
    return {**environ, **found, "PATH": f"{prefix / 'bin'}{os.pathsep}{environ.get('PATH', os.defpath)}"}
