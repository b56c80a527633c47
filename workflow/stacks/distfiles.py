"""Locates the files of a lock's pins, chooses those for a Python and a platform, and downloads them.

Downloads use pip's own session, with its proxies, certificates, passwords and retries.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from common.errors import UserError
from common.messages import join_first
from workflow.stacks.lockfile import Pin
from workflow.stacks.uv import HOW_TO_SET_SOURCES, Uv, redacted, torch_arguments, uv_error

# Creates pip's session as `pip download` does. That command runs an sdist's setup.py, stops at the first missing file,
# and starts a partial file again (docs/decisions.md).
_ASK_PIP = """
import json, os, sys
from pip._internal.commands import create_command
from pip._vendor.requests.exceptions import RequestException
from pip._vendor.urllib3.exceptions import HTTPError
PLAIN = {"Accept-Encoding": "identity"}
def size(session, url):
    answer = session.head(url, headers=PLAIN, allow_redirects=True)
    length = answer.headers.get("Content-Length")
    return {"size": int(length) if answer.status_code == 200 and length else None}
def fetch(session, url, path):
    for _ in range(5):
        have = os.path.getsize(path) if os.path.exists(path) else 0
        answer = session.get(url, headers={**PLAIN, "Range": f"bytes={have}-"} if have else PLAIN, stream=True)
        resumed = answer.status_code == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if answer.status_code not in {200, 206, 416}:
            return {"problem": f"{answer.status_code} {answer.reason}"}
        if answer.status_code != 200 and not resumed:
            os.unlink(path)
            continue
        length = answer.headers.get("Content-Length")
        expected = None if length is None else int(length) + (have if resumed else 0)
        problem = "the connection ended early"
        with open(path, "ab" if resumed else "wb") as file:
            try:
                for block in iter(lambda: answer.raw.read(1 << 20), b""):
                    file.write(block)
            except (RequestException, HTTPError) as error:
                problem, expected = str(error), expected or -1
        if expected is None or os.path.getsize(path) == expected:
            return {}
    return {"problem": problem}
command = create_command("download")
with command.main_context():
    session = command.get_default_session(command.parse_args(["--no-cache-dir"])[0])
    for number, (url, path) in enumerate(json.load(sys.stdin)):
        try:
            outcome = fetch(session, url, path) if path else size(session, url)
        except Exception as error:
            outcome = {"problem": f"{type(error).__name__}: {error}", "errno": getattr(error, "errno", None)}
        print(json.dumps({"number": number, **outcome}), flush=True)
"""

_RELEASE = re.compile(r"3\.(\d+)$")
_PLATFORM = re.compile(r"manylinux_2_(?P<minor>\d+)_(?P<machine>x86_64|aarch64)$")
_OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_OLDEST_GLIBC = {"x86_64": 5, "aarch64": 17}
_NO_VERSION = re.compile(r"there is no version of ([\w.+=-]+)|([\w.+=-]+) was not found")
_SHOWN_TAGS = 8


@dataclass(frozen=True)
class Target:
    """The machine that installs the files: CPython's feature release and the newest manylinux platform it supports."""

    python: str
    platform: str

    def __post_init__(self) -> None:
        if not _RELEASE.match(self.python):
            raise UserError(f"--python must be a feature release such as 3.12 (got {self.python!r})")
        if not _PLATFORM.match(self.platform):
            raise UserError(
                f"--platform must be manylinux_2_<glibc's minor version>_<x86_64 or aarch64>, such as "
                f"manylinux_2_28_x86_64 (got {self.platform!r}); `ldd --version` on the target prints its glibc version"
            )

    def __str__(self) -> str:
        return f"for Python {self.python} on {self.platform}"

    def tags(self) -> list[Tag]:
        """The wheel tags that pip accepts on that machine, best first."""
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
    """One file of a pin. Size in bytes and sha256 are None where the source does not give them."""

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
        """The accepted sha256 values: the source's if it gives one, else all that the lock has for the pin."""
        return [self.sha256] if self.sha256 else self.pin.hashes


def locate_files(pins: list[Pin], uv: Uv, python: str, torch_backend: str | None = None) -> dict[str, list[DistFile]]:
    """All files that the configured sources have of each pin, by the pin's name; downloads and builds nothing.

    uv resolves them: it knows PyTorch's own index, and the build reads the same sources. UserError names a pin that no
    source has.
    """
    torch = next((f"torch=={pin.version}" for pin in pins if pin.name == "torch"), None)
    backend = torch_arguments(uv, torch, torch_backend, python)
    by_name = {pin.name: pin for pin in pins}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "pins.txt").write_text("".join(f"{pin.name}=={pin.version}\n" for pin in pins), encoding="utf-8")
        # With this metadata uv asks the indexes for file lists only, and does not run an sdist's setup.py.
        metadata = '[[dependency-metadata]]\nname = "{}"\nversion = "{}"\nrequires-dist = []\n'
        tables = "".join(metadata.format(pin.name, pin.version) for pin in pins)
        (folder / "uv.toml").write_text(tables, encoding="utf-8")
        # --universal lists the files of all platforms, so that an error can name the platforms that have wheels.
        command = ["pip", "compile", "pins.txt", "--no-deps", "--universal", "--python-version", python, "--no-header"]
        command += ["--quiet", "--output-file", "pylock.toml", *uv.arguments, *backend]
        status, output = uv.run(command, cwd=folder)
        if status != 0:
            raise _not_located(output, pins, uv)
        pylock = tomllib.loads((folder / "pylock.toml").read_text(encoding="utf-8"))
        located = {}
        for package in pylock["packages"]:
            entries = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
            located[package["name"]] = [_dist_file(by_name[package["name"]], entry, folder) for entry in entries]
        return located


def choose_files(
    pins: list[Pin], files: dict[str, list[DistFile]], target: Target, from_source: Iterable[str] = ()
) -> list[DistFile]:
    """One file for each pin: the target's best wheel, or the sdist of a package in `from_source`.

    Only files with a hash of the lock are chosen. UserError lists every pin without such a file, and the reason.
    """
    ranks = {tag: rank for rank, tag in enumerate(target.tags())}
    chosen, problems = [], []
    for pin in pins:
        found = _choose(pin, files.get(pin.name, []), ranks, target, pin.name in from_source)
        if isinstance(found, str):
            problems.append(f"  {pin.name}=={pin.version}: {found}")
        else:
            chosen.append(found)
    if problems:
        raise UserError(
            "\n".join([f"no file {target} of {len(problems)} of {len(pins)} packages:", *problems])
            + "\nA newer glibc on the target: --platform manylinux_2_<minor>_<machine>. Other sources: "
            f"{HOW_TO_SET_SOURCES}"
        )
    return chosen


def _choose(
    pin: Pin, files: list[DistFile], ranks: dict[Tag, int], target: Target, from_source: bool
) -> DistFile | str:
    """The pin's file, or the reason why there is none."""
    locked = [file for file in files if file.sha256 is None or file.sha256 in pin.hashes]
    if from_source:
        sdist = next((file for file in locked if not file.is_wheel), None)
        return sdist or "is built from source, and no source has its sdist"
    ranked = [(rank, file.name, file) for file in files if (rank := _rank(file, ranks)) is not None]
    if wheels := sorted(entry for entry in ranked if entry[2] in locked):
        return wheels[0][2]
    if ranked:
        return f"{ranked[0][1]} is not a file that the lock names: its hash differs"
    tags = {"-".join(file.name.removesuffix(".whl").split("-")[-3:]) for file in files if file.is_wheel}
    if not tags:
        return "there is only its source; add it to `source_builds` of stack.yaml to build it on the target"
    # Wheels that differ only in glibc or Python come first.
    machine = target.platform.split("_", 3)[3]
    near = sorted(tags, key=lambda tag: (not ("manylinux" in tag and tag.endswith(machine)), tag))
    return f"there are wheels for {join_first(near, _SHOWN_TAGS)}"


def _rank(file: DistFile, ranks: dict[Tag, int]) -> int | None:
    try:
        tags = parse_wheel_filename(file.name)[3]
    except InvalidWheelFilename:  # an sdist
        return None
    return min((ranks[tag] for tag in tags if tag in ranks), default=None)


def _dist_file(pin: Pin, entry: dict[str, Any], folder: Path) -> DistFile:
    url = entry["url"] if "url" in entry else (folder / entry["path"]).resolve().as_uri()
    name = entry.get("name") or unquote(urlsplit(url).path).rpartition("/")[2]
    size = entry.get("size")
    if size is None and url.startswith("file:"):
        size = Path(url2pathname(urlsplit(url).path)).stat().st_size
    return DistFile(pin, name, url, size, entry.get("hashes", {}).get("sha256"))


def _not_located(output: str, pins: list[Pin], uv: Uv) -> UserError:
    error = uv_error(output, "looking for the stack's files", uv)
    if missing := _NO_VERSION.search(output):
        name, _, version = (missing[1] or missing[2]).partition("==")
        pin = next((pin for pin in pins if pin.name == name and version in {"", pin.version}), None)
        if pin is not None and "+" in pin.version:
            return UserError(
                f"{error}\n{pin.name}=={pin.version} has a local version (+{pin.version.split('+')[1]}), which common "
                "indexes do not carry; name its own index (PIP_EXTRA_INDEX_URL) or a folder with its wheel "
                "(PIP_FIND_LINKS)."
            )
    return error


def file_sizes(urls: list[str]) -> list[int | None]:
    """The size in bytes of the file at each address; None where the server does not report it."""
    return [result.get("size") for result in _ask_pip([(url, None) for url in urls])]


def download(files: list[tuple[str, Path]]) -> Iterator[int]:
    """Downloads each address to its path and resumes partial files; yields the number of each complete file.

    UserError names the file that failed, OSError reports a full disk. Earlier files stay.
    """
    for result in _ask_pip([(url, str(path)) for url, path in files]):
        if result.get("errno") in {errno.ENOSPC, errno.EDQUOT}:
            raise OSError(result["errno"], result["problem"])
        if "problem" in result:
            raise UserError(
                f"{redacted(files[result['number']][0])} could not be downloaded: {redacted(result['problem'])}\n"
                "Downloaded data stays: run again to resume. Proxy, certificates and passwords are pip's own settings "
                f"(`{sys.executable} -m pip config debug`)."
            )
        yield result["number"]


def _ask_pip(jobs: list[tuple[str, str | None]]) -> Iterator[dict[str, Any]]:
    if not jobs:
        return
    with tempfile.TemporaryFile("w+") as errors:
        command = [sys.executable, "-I", "-c", _ASK_PIP]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8"
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # pip ended at once; its status and output give the reason
                process.stdin.write(json.dumps(jobs))
                process.stdin.close()
            for line in process.stdout:
                yield json.loads(line)
            if process.wait() != 0:
                errors.seek(0)
                last = redacted(errors.read()).strip().splitlines()[-1:] or ["no message"]
                raise UserError(f"pip's network settings cannot be used: {last[0]}")
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()
