"""Prints what an environment has, as JSON: `python -I -B recorded.py [PACKAGE ...]`.

Runs in the environment's own Python and writes nothing. `requires` has the requirements of the packages
that the arguments name. Addresses are printed without user names, passwords and tokens.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import runpy
import shutil
import site
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any
from urllib.parse import unquote

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _verify import _normalized, conda_records, installed

_LIMIT_S = 60
# A user name and password, a channel's token of Anaconda's servers, and a query, which may be a signature.
_SECRETS = re.compile(r"(?<=://)[^/\s@]+@|/t/[^/]+(?=/)|[?#].*")


def public_address(url: str) -> str:
    """The address without what gives access to it."""
    return _SECRETS.sub("", url)


def sources() -> dict[str, str]:
    """By normalized name, where a package comes from that is not from an index: a commit, a file's hash, a folder."""
    found = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name and _normalized(name) not in found and (source := _source(distribution)):
            found[_normalized(name)] = source
    return dict(sorted(found.items()))


def _source(distribution: importlib.metadata.Distribution) -> str | None:
    path = Path(str(getattr(distribution, "_path", "")))
    if path.suffix == ".egg-info" and any((path.parent / file).is_file() for file in ("setup.py", "pyproject.toml")):
        return _editable(path.parent)  # by `setup.py develop`
    try:
        given = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return None
    url = str(given.get("url", ""))
    if vcs := given.get("vcs_info"):
        return f"{vcs.get('vcs')}+{public_address(url)}@{vcs.get('commit_id')}"
    if given.get("dir_info", {}).get("editable"):
        return _editable(Path(unquote(url.removeprefix("file://"))))
    if (archive := given.get("archive_info")) is not None:
        sha256 = archive.get("hashes", {}).get("sha256") or str(archive.get("hash", "")).removeprefix("sha256=")
        if url.startswith("file:"):  # a path of this machine says nothing about the content
            return f"a file, sha256={sha256}" if sha256 else None
        return f"{public_address(url)} sha256={sha256}" if sha256 else public_address(url)
    return "a folder, copied" if url else None


def _editable(folder: Path) -> str:
    """The commit of an editable installation, and the hash of its uncommitted changes and new Python files."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return "editable, of an unknown commit"
    url = public_address(_git(folder, "config", "--get", "remote.origin.url"))
    changes = _git(folder, "diff", "HEAD", "--no-ext-diff", "--no-textconv").encode()
    # What a training writes beside its code (logs, checkpoints) is no change of it.
    for file in _git(folder, "ls-files", "--others", "--exclude-standard", "-z", "--", "*.py", "*.so").split("\0"):
        changes += b"\0" + file.encode() + (folder / file).read_bytes() if file and (folder / file).is_file() else b""
    changed = f", changed: sha256={hashlib.sha256(changes).hexdigest()[:12]}" if changes else ""
    return f"editable, git+{url or 'no-remote'}@{commit}{changed}"


def _git(folder: Path, *arguments: str) -> str:
    # A tree of another user is as good; no program that its settings name is started.
    command = ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def torch_build() -> dict[str, Any] | None:
    """`cuda` and `hip` of torch's build, without importing it; None without torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    found = runpy.run_path(str(Path(next(iter(spec.submodule_search_locations))) / "version.py"))
    return {name: found.get(name) for name in ("cuda", "hip")}


def conda_packages() -> list[str]:
    """The lines of `conda list --explicit` with md5: the address of each package of this conda prefix."""
    lines = []
    for record in conda_records():
        file = record.get("fn") or f"{record['name']}-{record['version']}-{record['build']}"
        address = public_address(str(record.get("url") or file))
        lines.append(f"{address}#{record['md5']}" if record.get("md5") else address)
    return lines


def _requires(package: str) -> list[str]:
    try:
        listed = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    # Those of an extra need not be there.
    return [_normalized(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in listed if "extra ==" not in line]


def _packages_of_user() -> str | None:
    """The folder of `pip install --user` if it has packages that this Python would see without -I."""
    folder = Path(site.getusersitepackages())
    seen = sys.prefix == sys.base_prefix and any(folder.glob("*.dist-info"))
    return str(folder) if seen else None


def main() -> None:
    folders = [folder for folder in site.getsitepackages() if Path(folder).exists()]
    print(
        json.dumps(
            {
                "implementation": sys.implementation.name,
                "release": ".".join(platform.python_version_tuple()[:2]),
                "python": sys.executable,
                "prefix": sys.prefix,
                "programs": sysconfig.get_path("scripts"),
                "packages": installed(),
                "sources": sources(),
                "requires": {package: _requires(package) for package in sys.argv[1:]},
                "torch": torch_build(),
                "conda": conda_packages(),
                "unreadable": [folder for folder in folders if not os.access(folder, os.R_OK | os.X_OK)],
                "of_user": _packages_of_user(),
                "git": shutil.which("git") is not None,
            }
        )
    )


if __name__ == "__main__":
    main()
