"""How do a conda lock's packages come here, each of them the very file that the lock names?

The hashes are checked here and not left to the program that installs: some read md5 only in a list of files, and some
compare nothing of a file on disk.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from common.errors import UserError
from workflow.stacks.condalock import CondaPackage
from workflow.stacks.fetch import fetched
from workflow.stacks.sources import redacted

PUBLIC_ALIAS = "https://conda.anaconda.org/"
"""conda's own default of `channel_alias`: what locks of the public channels name."""


def fetch_packages(packages: list[CondaPackage], folder: Path, name: str) -> list[Path]:
    """The packages' files below `folder`, in order; those that are there already are checked and not asked for again.

    A download that broke off goes on where it ended. UserError when a file is not the lock's or a channel does not
    answer; then nothing wrong lies under a package's name. OSError when the disk is full.
    """
    missing = [package for package in packages if not _is_whole(package, folder)]
    alias = channel_alias()
    if missing:
        places = {redacted(_address(package, alias).rpartition(f"/{package.subdir}/")[0]) for package in missing}
        _say(name, f"{len(missing)} of {len(packages)} conda packages from {', '.join(sorted(places))}")
    again = _fetch(missing, folder, alias)
    # What an earlier attempt left may be of another file: those are fetched anew, once.
    for package, found in _fetch(list(again), folder, alias).items():
        raise UserError(
            f"{package.filename} is not the file that conda-lock.yml:{package.line} names: its sha256 is {found}, "
            f"and {package.sha256} was expected. Either the channel serves another build of that name, or the file "
            f"was changed; do not use it before you know which.\nIt came from {redacted(_address(package, alias))}."
        )
    return [place_of(package, folder) for package in packages]


def place_of(package: CondaPackage, folder: Path) -> Path:
    """Where the package's file lies: by its hash, so that two channels' files of one name are kept apart."""
    return folder / package.sha256[:16] / package.subdir / package.filename


def channel_alias(environ: Mapping[str, str] = os.environ) -> str | None:
    """The mirror that conda's own settings name instead of the public server, with `/` at its end; None without one."""
    home = Path(environ.get("HOME", "~")).expanduser()
    files = [Path(environ["CONDARC"])] if environ.get("CONDARC") else []
    files += [home / ".condarc", home / ".mambarc", home / ".conda/.condarc", home / ".config/conda/.condarc"]
    files += [Path("/etc/conda/.condarc"), Path("/opt/conda/.condarc")]
    found: Any = environ.get("CONDA_CHANNEL_ALIAS")
    for path in files:
        if found:
            break
        try:
            given = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError):
            continue  # conda tells of its own files
        found = given.get("channel_alias") if isinstance(given, dict) else None
    return str(found).rstrip("/") + "/" if found else None


def _fetch(packages: list[CondaPackage], folder: Path, alias: str | None) -> dict[CondaPackage, str]:
    """Fetches the packages; those whose files are not the lock's are put away again and returned with their sha256."""
    wrong: dict[CondaPackage, str] = {}
    jobs = []
    for package in packages:
        partial = _partial(package, folder)
        partial.parent.mkdir(parents=True, exist_ok=True)
        jobs.append((_address(package, alias), partial))
    try:
        for number in fetched(jobs):
            package, partial = packages[number], jobs[number][1]
            found = _sha256(partial)
            if found == package.sha256:
                partial.replace(place_of(package, folder))
            else:
                partial.unlink()
                wrong[package] = found
    except UserError as error:
        raise UserError(
            f"{error}\nConda packages come from where conda-lock.yml says, or from the mirror that `channel_alias` "
            "names (.condarc, or CONDA_CHANNEL_ALIAS)."
        ) from None
    except OSError:
        for _, partial in jobs:
            partial.unlink(missing_ok=True)  # the disk is full: half a package only keeps others from the room
        raise
    return wrong


def _is_whole(package: CondaPackage, folder: Path) -> bool:
    path = place_of(package, folder)
    if not path.exists():
        return False
    if _sha256(path) == package.sha256:
        return True
    path.unlink()  # damaged since: it was right when it was put there
    return False


def _partial(package: CondaPackage, folder: Path) -> Path:
    path = place_of(package, folder)
    return path.with_name(path.name + ".part")


def _address(package: CondaPackage, alias: str | None) -> str:
    if alias and package.url.startswith(PUBLIC_ALIAS):
        return alias + package.url.removeprefix(PUBLIC_ALIAS)
    return package.url


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _say(name: str, text: str) -> None:
    print(f"{name}: {text}", file=sys.stderr, flush=True)
