"""How does a conda layer come to lie in a folder, and what does `conda activate` of it set?"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from workflow.stacks.condalock import PLATFORM, CondaPackage
from workflow.stacks.sources import redacted

PROGRAMS = ("micromamba", "mamba", "conda")
HOW_TO_GET_ONE = (
    "install micromamba, which is one file and needs no rights: "
    '`"${SHELL}" <(curl -L micro.mamba.pm/install.sh)`, or load your site\'s module of conda'
)
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded|NoSpaceLeftError")
_ENDING_S = 10


@dataclass(frozen=True)
class Conda:
    """A program that installs conda packages."""

    path: str

    @property
    def name(self) -> str:
        return Path(self.path).name


def find_conda(environ: Mapping[str, str] = os.environ) -> Conda | None:
    """The first of micromamba, mamba and conda that is there, on PATH or named by MAMBA_EXE or CONDA_EXE."""
    named = [environ[key] for key in ("MAMBA_EXE", "CONDA_EXE") if environ.get(key)]
    for name in PROGRAMS:
        for candidate in (shutil.which(name, path=environ.get("PATH", "")), *named):
            if candidate and Path(candidate).name == name and os.access(candidate, os.X_OK):
                return Conda(candidate)
    return None


def explicit_file(packages: list[CondaPackage], files: list[Path]) -> str:
    """The list of files that all three programs install without solving, each with the md5 that all of them read."""
    lines = [f"# platform: {PLATFORM}", "@EXPLICIT"]
    for package, path in zip(packages, files, strict=True):
        lines.append(path.absolute().as_uri() + (f"#{package.md5}" if package.md5 else ""))
    return "\n".join(lines) + "\n"


def create_prefix(
    conda: Conda,
    packages: list[CondaPackage],
    files: list[Path],
    prefix: Path,
    work: Path,
    name: str,
    fds: tuple[int, ...],
) -> None:
    """Installs those files into the new folder `prefix`, with `work` for what the program unpacks.

    UserError with the program's last words when it fails. Conda prefixes cannot be moved afterwards.
    """
    listed = work / "explicit.txt"
    listed.write_text(explicit_file(packages, files), encoding="utf-8")
    # A cache of unpacked packages that nobody else wrote to: what was unpacked earlier is not looked at again by any
    # of the programs. It lies on the prefix's file system, so that files are linked and take no space twice.
    environ = {**os.environ, "CONDA_PKGS_DIRS": str(work / "pkgs"), "CONDA_REGISTER_ENVS": "false"}
    environ |= {"CONDA_SHORTCUTS": "false", "CONDA_ALWAYS_YES": "true"}
    environ.setdefault("MAMBA_ROOT_PREFIX", str(work / "root"))
    for key in ("CONDA_PREFIX", "CONDA_DEFAULT_ENV", "CONDA_SHLVL", "PYTHONPATH", "PYTHONHOME"):
        environ.pop(key, None)  # an activated environment, or our own Python's settings, are no part of this one
    command = [conda.path, "create", "--yes", "--quiet", "--prefix", str(prefix), "--file", str(listed)]
    status, said = _run(command, environ, fds)
    if status == 0 and (prefix / "bin" / "python").exists():
        return
    if _NO_SPACE.search(said):
        raise UserError(f"{name}: {conda.name}: the disk is full (or your quota is)")
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    last = "\n".join(f"  {line}" for line in said.strip().splitlines()[-12:])
    raise UserError(f"{name}: {conda.path} {how} and made no environment; it said last:\n{last}")


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


def _run(command: list[str], environ: Mapping[str, str], fds: tuple[int, ...]) -> tuple[int, str]:
    process = subprocess.Popen(
        command,
        env=dict(environ),
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        said, _ = process.communicate()
        return process.returncode, redacted(said)
    finally:
        # Only an interruption finds it alive here; it must not write on while its folder is removed.
        if process.poll() is None:
            process.terminate()
            deadline = time.monotonic() + _ENDING_S
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
