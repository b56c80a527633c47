"""Which file of each pin suits a Python and a platform, and where does it lie?"""

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
                for entry in [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
            ]
            for package in pylock["packages"]
        }


def chosen(
    pins: list[Pin], files: dict[str, list[DistFile]], target: Target, from_source: Iterable[str] = ()
) -> list[DistFile]:
    """The one file of each pin that the target installs: its best wheel, or the sdist for `from_source`.

    Only files whose hash the lock has are taken. UserError tells every pin that has none, and what there is.
    """
    ranks = {tag: rank for rank, tag in enumerate(target.tags())}
    found: list[DistFile] = []
    problems: list[str] = []
    for pin in pins:
        there = files.get(pin.name, [])
        fits = [file for file in there if file.sha256 is None or file.sha256 in pin.hashes]
        if pin.name in from_source:
            sdists = [file for file in fits if not file.is_wheel]
            found += sdists[:1]
            if not sdists:
                problems.append(f"{pin.name}=={pin.version}: is built from source, and the sources have no sdist of it")
            continue
        suitable = [(rank, file.name, file) for file in there if (rank := _rank(file, ranks)) is not None]
        if wheels := sorted(entry for entry in suitable if entry[2] in fits):
            found.append(wheels[0][2])
        elif suitable:
            problems.append(
                f"{pin.name}=={pin.version}: {suitable[0][1]} is not a file that the lock names: its hash differs"
            )
        else:
            problems.append(f"{pin.name}=={pin.version}: {_what_there_is(there, target)}")
    if problems:
        raise UserError(
            f"no file for Python {target.python} on {target.platform} of {len(problems)} of {len(pins)} packages:\n"
            + "\n".join(f"  {problem}" for problem in problems)
            + "\nA newer glibc on the target: --platform manylinux_2_<minor>_<machine>. Other sources: "
            f"{HOW_TO_SET_SOURCES}"
        )
    return found


def _rank(file: DistFile, ranks: dict[Tag, int]) -> int | None:
    if not file.is_wheel:
        return None
    try:
        tags = parse_wheel_filename(file.name)[3]
    except InvalidWheelFilename:
        return None
    return min((ranks[tag] for tag in tags if tag in ranks), default=None)


def _what_there_is(there: list[DistFile], target: Target) -> str:
    wheels = [file.name.removesuffix(".whl").split("-") for file in there if file.is_wheel]
    if not wheels:
        return "there is only its source; add it to `source_builds` of stack.yaml to build it on the target"
    machine = target.platform.split("_", 3)[3]
    tags = sorted({"-".join(parts[-3:]) for parts in wheels}, key=lambda tag: (not _is_near(tag, machine), tag))
    more = f" and {len(tags) - _SHOWN_TAGS} more" if len(tags) > _SHOWN_TAGS else ""
    return f"there are wheels for {', '.join(tags[:_SHOWN_TAGS])}{more}"


def _is_near(tag: str, machine: str) -> bool:
    return "manylinux" in tag and tag.endswith(machine)


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
