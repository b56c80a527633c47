"""Locates the files of a lock's pins, and chooses the one that suits a Python and a platform."""

from __future__ import annotations

import re
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from common.errors import UserError
from workflow.stacks.lockfile import Pin
from workflow.stacks.uv import HOW_TO_SET_SOURCES, Uv, explained, torch_arguments

_RELEASE = re.compile(r"3\.(\d+)$")
_PLATFORM = re.compile(r"manylinux_2_(?P<minor>\d+)_(?P<machine>x86_64|aarch64)$")
_OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_OLDEST_GLIBC = {"x86_64": 5, "aarch64": 17}
_NO_VERSION = re.compile(r"there is no version of ([\w.+=-]+)|([\w.+=-]+) was not found")
_SHOWN_TAGS = 8


@dataclass(frozen=True)
class Target:
    """The machine that the files are for: CPython's feature release and the newest manylinux it runs."""

    python: str
    platform: str

    def __post_init__(self) -> None:
        if not _RELEASE.match(self.python):
            raise UserError(f"a Python's feature release is wanted, as in 3.12 (got {self.python!r})")
        if not _PLATFORM.match(self.platform):
            raise UserError(
                f"a platform is written manylinux_2_<glibc's minor version>_<x86_64 or aarch64>, as in "
                f"manylinux_2_28_x86_64 (got {self.platform!r}); `ldd --version` on the target tells its glibc"
            )

    def __str__(self) -> str:
        return f"for Python {self.python} on {self.platform}"

    def tags(self) -> list[Tag]:
        """What pip on that machine would take, the best first."""
        match = _PLATFORM.match(self.platform)
        release = (3, int(self.python.partition(".")[2]))
        assert match is not None
        machine, platforms = match["machine"], []
        for minor in range(int(match["minor"]), _OLDEST_GLIBC[machine] - 1, -1):
            platforms.append(f"manylinux_2_{minor}_{machine}")
            if minor in _OLD_NAMES:
                platforms.append(f"{_OLD_NAMES[minor]}_{machine}")
        platforms.append(f"linux_{machine}")
        interpreter = f"cp{release[0]}{release[1]}"
        return [*cpython_tags(release, platforms=platforms), *compatible_tags(release, interpreter, platforms)]


@dataclass(frozen=True)
class DistFile:
    """One file of a pin: its name, address, size in bytes and sha256, each None where the source does not tell."""

    pin: Pin
    name: str
    url: str
    size: int | None
    sha256: str | None

    @property
    def is_wheel(self) -> bool:
        return self.name.endswith(".whl")

    @property
    def hashes(self) -> list[str]:
        """The sha256 that the file may have: the source's, which the lock names, or any of the lock's for its pin."""
        return [self.sha256] if self.sha256 else self.pin.hashes


def located(pins: list[Pin], uv: Uv, python: str, torch_backend: str | None = None) -> dict[str, list[DistFile]]:
    """All files that the configured sources have of each pin, by the pin's name; nothing is downloaded or built.

    uv resolves, since it knows PyTorch's own index and reads the project's sources as the build does. UserError
    names the pin that no source has.
    """
    torch = next((f"torch=={pin.version}" for pin in pins if pin.name == "torch"), None)
    backend = torch_arguments(uv, torch, torch_backend, python)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "pins.txt").write_text("".join(f"{pin.name}=={pin.version}\n" for pin in pins), encoding="utf-8")
        # With its metadata told, uv asks the indexes for lists of files only, and runs no setup.py of an sdist.
        (folder / "uv.toml").write_text(
            "".join(
                f'[[dependency-metadata]]\nname = "{pin.name}"\nversion = "{pin.version}"\nrequires-dist = []\n'
                for pin in pins
            ),
            encoding="utf-8",
        )
        # --universal: every platform's files, so that a message can say for which ones there are wheels.
        command = ["pip", "compile", "pins.txt", "--no-deps", "--universal", "--python-version", python, "--no-header"]
        command += ["--quiet", "--output-file", "pylock.toml", *uv.arguments, *backend]
        status, said = uv.run(command, cwd=folder)
        if status != 0:
            raise _not_located(said, pins, uv)
        pylock = tomllib.loads((folder / "pylock.toml").read_text(encoding="utf-8"))
        by_name = {pin.name: pin for pin in pins}
        return {
            package["name"]: [
                _dist_file(by_name[package["name"]], entry, folder)
                for entry in [*package.get("wheels", []), package.get("sdist")]
                if entry is not None
            ]
            for package in pylock["packages"]
        }


def chosen(
    pins: list[Pin], files: dict[str, list[DistFile]], target: Target, from_source: Iterable[str] = ()
) -> list[DistFile]:
    """The one file of each pin that the target installs: its best wheel, or the sdist for `from_source`.

    Only files whose hash the lock has are taken. UserError lists every pin that has none, and what there is.
    """
    ranks = {tag: rank for rank, tag in enumerate(target.tags())}
    outcomes = [_chosen_of(pin, files.get(pin.name, []), ranks, target, pin.name in from_source) for pin in pins]
    if problems := [
        f"  {pin.name}=={pin.version}: {why}" for pin, why in zip(pins, outcomes, strict=True) if isinstance(why, str)
    ]:
        raise UserError(
            "\n".join([f"no file {target} of {len(problems)} of {len(pins)} packages:", *problems])
            + "\nA newer glibc on the target: --platform manylinux_2_<minor>_<machine>. Other sources: "
            f"{HOW_TO_SET_SOURCES}"
        )
    return [file for file in outcomes if isinstance(file, DistFile)]


def _chosen_of(
    pin: Pin, files: list[DistFile], ranks: dict[Tag, int], target: Target, from_source: bool
) -> DistFile | str:
    """The pin's file, or why there is none."""
    locked = [file for file in files if file.sha256 is None or file.sha256 in pin.hashes]
    if from_source:
        sdist = next((file for file in locked if not file.is_wheel), None)
        return sdist or "is built from source, and the sources have no sdist of it"
    suitable = [(rank, file.name, file) for file in files if (rank := _rank(file, ranks)) is not None]
    if wheels := sorted(entry for entry in suitable if entry[2] in locked):
        return wheels[0][2]
    if suitable:
        return f"{suitable[0][1]} is not a file that the lock names: its hash differs"
    return _what_there_is(files, target)


def _rank(file: DistFile, ranks: dict[Tag, int]) -> int | None:
    try:
        tags = parse_wheel_filename(file.name)[3]
    except InvalidWheelFilename:  # an sdist's, too
        return None
    return min((ranks[tag] for tag in tags if tag in ranks), default=None)


def _what_there_is(files: list[DistFile], target: Target) -> str:
    tags = {"-".join(file.name.removesuffix(".whl").split("-")[-3:]) for file in files if file.is_wheel}
    if not tags:
        return "there is only its source; add it to `source_builds` of stack.yaml to build it on the target"
    machine = target.platform.split("_", 3)[3]
    # Those that differ in the glibc or the Python only come first.
    near = sorted(tags, key=lambda tag: (not ("manylinux" in tag and tag.endswith(machine)), tag))
    more = f" and {len(near) - _SHOWN_TAGS} more" if len(near) > _SHOWN_TAGS else ""
    return f"there are wheels for {', '.join(near[:_SHOWN_TAGS])}{more}"


def _dist_file(pin: Pin, entry: dict[str, Any], folder: Path) -> DistFile:
    url = entry["url"] if "url" in entry else (folder / entry["path"]).resolve().as_uri()
    name = entry.get("name") or unquote(urlsplit(url).path).rpartition("/")[2]
    size = entry.get("size")
    if size is None and url.startswith("file:"):
        size = Path(url2pathname(urlsplit(url).path)).stat().st_size
    return DistFile(pin, name, url, size, entry.get("hashes", {}).get("sha256"))


def _not_located(said: str, pins: list[Pin], uv: Uv) -> UserError:
    error = explained(said, "looking for the stack's files", uv)
    if missing := _NO_VERSION.search(said):
        name, _, version = (missing[1] or missing[2]).partition("==")
        pin = next((pin for pin in pins if pin.name == name and version in {"", pin.version}), None)
        if pin is not None and "+" in pin.version:
            return UserError(
                f"{error}\n{pin.name}=={pin.version} is a build with a local version (+{pin.version.split('+')[1]}), "
                "which common indexes do not carry: name its own index (PIP_EXTRA_INDEX_URL) or a folder with its "
                "wheel (PIP_FIND_LINKS)."
            )
    return error
