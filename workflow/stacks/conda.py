"""Reads and checks a conda-lock.yml, installs its packages, and computes the variables of the activation."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from common.errors import UserError
from common.files import file_sha256
from common.redaction import without_secrets
from workflow.stacks import conda_install
from workflow.stacks.definition import ENVS, Stack
from workflow.stacks.disk import builder_lock
from workflow.stacks.uv import NO_SPACE, Uv, end_of_output, run, uv_error

PLATFORM = "linux-64"
_AGAIN = "make it again: `make lock STACK=` and the stack's name"
_SHA256 = re.compile(r"[0-9a-f]{64}")
PROGRAMS = ("micromamba", "mamba", "conda")
PUBLIC_ALIAS = "https://conda.anaconda.org/"
"""conda's default `channel_alias`, which locks of public channels contain."""
INSTALLER_LOCK = ENVS / "conda-installer" / "requirements.lock"
_MISMATCH = re.compile(r"hash mismatch when extracting (?P<url>\S+) to .*: expected \w+, got (?P<got>\w+)")


@dataclass(frozen=True)
class CondaPackage:
    """One package of a conda lock, with its hashes and its line (from 1)."""

    name: str
    version: str
    build: str
    url: str
    sha256: str
    line: int
    needs: tuple[str, ...] = ()

    @property
    def filename(self) -> str:
        return PurePosixPath(self.url).name

    @property
    def subdir(self) -> str:
        """The channel's folder, `linux-64` or `noarch`."""
        return PurePosixPath(self.url).parent.name


def parse_conda_lock(path: Path) -> list[CondaPackage]:
    """All packages of a conda-lock.yml (format 1), in order; UserError names a wrong line."""
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        given: Any = None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {error}") from None
    valid = isinstance(given, dict) and given.get("version") == 1 and isinstance(given.get("package"), list)
    if node is None or not valid:
        raise UserError(f"{path} is not a conda-lock file of format 1; {_AGAIN}")
    (entries,) = [value for key, value in node.value if key.value == "package"]
    packages = []
    for item, entry in zip(given["package"], entries.value, strict=True):
        line = entry.start_mark.line + 1
        try:
            packages.append(_package(item, line))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            what = str(error) if isinstance(error, ValueError) else f"{error} is missing or not understood"
            raise UserError(f"{path}:{line}: {what}; {_AGAIN}") from None
    return packages


def check_conda_lock(stack: Stack, lock: Path | None = None) -> list[CondaPackage]:
    """The packages of the stack's conda lock; empty without a lock. Of an environment as found: what was recorded.

    `lock` replaces conda-lock.yml, to check a new one. UserError if Python has another release than the stack's; that
    the rest fits is conda-lock's work.
    """
    if stack.found_python:
        return explicit_packages(stack.found_conda)
    path = lock or stack.conda_lock
    if path is None:
        return []
    packages = parse_conda_lock(path)
    python = next((package for package in packages if package.name == "python"), None)
    if python is None or not python.version.startswith(f"{stack.python}."):
        got = "none" if python is None else f"{python.version} (line {python.line})"
        raise UserError(f"{path} must have Python {stack.python}, as in stack.yaml (got {got}); {_AGAIN}")
    return packages


def explicit_packages(path: Path) -> list[CondaPackage]:
    """The packages of a file as `conda list --explicit` writes it; none without the file."""
    found = []
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        if line and not line.startswith(("#", "@")):
            url = line.partition("#")[0]
            stem = re.sub(r"\.(conda|tar\.bz2)$", "", PurePosixPath(url).name)
            name, version, build = stem.rsplit("-", 2)
            found.append(CondaPackage(name, version, build, url, "", number))
    return found


def _package(item: dict[str, Any], line: int) -> CondaPackage:
    name, url, hashes = str(item["name"]), str(item["url"]), dict(item["hash"])
    if item["manager"] != "conda":
        raise ValueError(f"{name} is a {item['manager']} package; move it to requirements.lock, with its hashes")
    if item["platform"] != PLATFORM:
        raise ValueError(f"{name} is for {item['platform']}; stacks are for {PLATFORM}")
    if not _SHA256.fullmatch(str(hashes.get("sha256"))):
        raise ValueError(f"{name} has no sha256")
    version, filename = str(item["version"]), PurePosixPath(url).name
    stem = f"{name}-{version}-"
    suffix = next((end for end in (".conda", ".tar.bz2") if filename.endswith(end)), None)
    if suffix is None or not filename.startswith(stem):
        raise ValueError(f"the file of {name} {version} is called {filename}")
    # The file name contains the build; older locks have no key `build`.
    build = filename.removeprefix(stem).removesuffix(suffix)
    needs = tuple(str(need) for need in item.get("dependencies") or {})
    return CondaPackage(name, version, build, url, hashes["sha256"], line, needs)


def find_conda() -> str | None:
    """The first of micromamba, mamba and conda on PATH or in MAMBA_EXE or CONDA_EXE; None without any."""
    named = [os.environ.get(key) for key in ("MAMBA_EXE", "CONDA_EXE")]
    for name in PROGRAMS:
        for candidate in (shutil.which(name), *named):
            if candidate and Path(candidate).name == name and os.access(candidate, os.X_OK):
                return candidate
    return None


def installer_library(folder: Path, uv: Uv) -> Path:
    """The folder with the locked py-rattler, which uv installs if it is missing."""
    done = folder / f"installed-{file_sha256(INSTALLER_LOCK)[:12]}"
    with builder_lock(folder, "py-rattler"):
        if done.exists():
            return folder
        command = ["pip", "sync", "--require-hashes", "--no-build", "--python", sys.executable, "--target", str(folder)]
        status, output = uv.run([*command, *uv.arguments, str(INSTALLER_LOCK)])
        if status != 0:
            raise uv_error(output, "installing py-rattler, which installs conda packages", uv)
        done.touch()
    return folder


def create_prefix(stack: Stack, packages: list[CondaPackage], prefix: Path, stacks_dir: Path, uv: Uv) -> None:
    """Downloads the packages, compares each file's sha256 with the lock's, and makes the prefix have these packages.

    Unpacked packages stay in `.conda-packages` for the next build. UserError reports what failed. A conda prefix cannot
    be moved.
    """
    library = installer_library(stacks_dir / ".conda-installer", uv)
    alias = channel_alias() or PUBLIC_ALIAS
    urls = [re.sub(f"^{re.escape(PUBLIC_ALIAS)}", lambda _: alias, package.url) for package in packages]
    channels = {without_secrets(url.rsplit("/", 2)[0]) for url in urls}
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
    status, output = run(command, uv.environ, stdin=json.dumps(given), fds=uv.fds)
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
            f"name, or the file was changed; find out which before you use it.\n"
            f"Source: {without_secrets(mismatch['url'])}."
        )
    return UserError(
        f"{stack.name}: the conda packages could not be installed; py-rattler's output:\n{end_of_output(output)}\n"
        "Conda packages come from the channels in conda-lock.yml, or from the mirror in `channel_alias` (.condarc or "
        "CONDA_CHANNEL_ALIAS). Unpacked packages stay: run again to resume, or build without the conda layer "
        "(`envs.backend: uv`)."
    )


def channel_alias() -> str | None:
    """The mirror in conda's settings that replaces the public server, with a final `/`; None without one."""
    found: Any = os.environ.get("CONDA_CHANNEL_ALIAS")
    home = Path.home()
    for path in (os.environ.get("CONDARC"), home / ".condarc", home / ".mambarc", "/etc/conda/.condarc"):
        with suppress(OSError, yaml.YAMLError):  # conda reports errors in its own files
            given = yaml.safe_load(Path(path).read_text(encoding="utf-8")) if path and not found else None
            found = given.get("channel_alias") if isinstance(given, dict) else found
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
        raise UserError(f"activating {prefix} failed:\n{without_secrets(done.stderr.strip()[-500:])}")
    found = dict(pair.split("=", 1) for pair in done.stdout.split("\0") if "=" in pair)
    for key in ("_", "SHLVL", "PWD", "OLDPWD", "PATH"):
        found.pop(key, None)
    if (prefix / "bin" / "nvcc").exists():
        found.setdefault("CUDA_HOME", str(prefix))
    return {key: value for key, value in sorted(found.items()) if base.get(key) != value}


def activated(prefix: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with the conda prefix activated."""
    path = f"{prefix / 'bin'}{os.pathsep}{environ.get('PATH', os.defpath)}"
    return {**environ, **activation(prefix), "PATH": path}
