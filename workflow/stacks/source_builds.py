"""Builds a stack's packages that have no wheel, or checks a wheel of one that was built elsewhere."""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.tags import compatible_tags, cpython_tags, platform_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from common.errors import UserError
from common.files import file_sha256
from workflow.stacks.definition import SITE_PACKAGES, Stack, site_folders
from workflow.stacks.lockfile import Pin
from workflow.stacks.uv import Uv, end_of_output, uv_error

GIB_PER_JOB = 8
"""Memory that one of CUDA's compilers may take at flash-attn's largest files, with room."""

_NEWS_S = 60.0
_DEAD_END = "http://127.0.0.1:9"


def build_from_source(stack: Stack, pins: list[Pin], python: Path, uv: Uv, work: Path, fds: tuple[int, ...]) -> None:
    """Builds and installs those pins from source, one after another, with what the environment already holds.

    `work` is a folder for uv's cache, on the environment's file system: a cache that lives on would give a package
    compiled against another torch for this one.
    """
    for pin in pins:
        name, wanted = pin.name, work / f"{pin.name}.txt"
        wanted.write_text(pin.requirement, encoding="utf-8")
        folders = site_folders(python.absolute().parents[1])
        settings = {key: _in_each(value, folders) for key, value in build_settings(stack, uv.environ).items()}
        # Only the build sees these, and not uv itself, which has to reach the sources.
        (work / "uv.toml").write_text(_users_settings(uv) + _as_toml(name, settings), encoding="utf-8")
        limit = f", {settings['MAX_JOBS']} compilers at once" if "MAX_JOBS" in settings else ""
        stack.say(f"building {name} {pin.version} from source{limit}: 10-60 minutes where it is CUDA code")
        command = ["pip", "install", "--require-hashes", "--no-deps", "--no-build-isolation", "--no-binary", name]
        command += ["--python", str(python), "--break-system-packages", *uv.arguments]
        command += ["--cache-dir", str(work / "cache"), "-r", wanted.name]
        environ = {key: value for key, value in uv.environ.items() if key not in {"UV_CONFIG_FILE", "UV_NO_CONFIG"}}
        with _news(stack, name):
            status, said = replace(uv, environ=environ).run(command, cwd=work, fds=fds)
        if status != 0:
            if "Failed to build" in said or "build backend" in said:
                what = f"{stack.name}: {name} {pin.version} could not be built"
                raise UserError(f"{what}; it said last:\n{end_of_output(said, 30)}")
            raise uv_error(said, f"{stack.name}: building {name}", uv)


def build_settings(stack: Stack, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that a source build sees beside the environment's own."""
    settings = dict(stack.source_environment)
    if "MAX_JOBS" in environ:
        settings["MAX_JOBS"] = environ["MAX_JOBS"]
    elif stack.cuda is not None:
        settings.setdefault("MAX_JOBS", str(jobs_at_once(environ)))
    # A setup.py may fetch a binary made elsewhere instead of building (flash-attn's does): nothing answers it.
    settings |= dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"), _DEAD_END)
    settings |= {"no_proxy": "", "NO_PROXY": "", "PIP_NO_INDEX": "1"}
    return settings


def jobs_at_once(environ: Mapping[str, str]) -> int:
    """Compilers that processors and memory allow at the same time, at least one: this machine's, or a Slurm job's."""
    processors = int(environ.get("SLURM_CPUS_PER_TASK") or len(os.sched_getaffinity(0)))
    granted_mib = environ.get("SLURM_MEM_PER_NODE")  # less than the machine has free, as a rule
    memory_gib = min(_free_gib(), int(granted_mib) / 1024 if granted_mib else math.inf)
    return max(1, min(processors, int(memory_gib // GIB_PER_JOB)))


def _free_gib() -> float:
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
    except OSError:
        return float(GIB_PER_JOB)
    found = re.search(r"MemAvailable:\s+(\d+) kB", text)
    return int(found[1]) / 2**20 if found else float(GIB_PER_JOB)


def _in_each(value: str, folders: Sequence[Path]) -> str:
    """The value with the folder put in; where packages lie in several, a list of paths as PATH has it."""
    if SITE_PACKAGES not in value:
        return value
    return os.pathsep.join(value.replace(SITE_PACKAGES, str(folder)) for folder in folders)


def _users_settings(uv: Uv) -> str:
    path = uv.environ.get("UV_CONFIG_FILE")
    return Path(path).read_text(encoding="utf-8") + "\n" if path and Path(path).is_file() else ""


def _as_toml(name: str, settings: Mapping[str, str]) -> str:
    quoted = "".join(
        f"{json.dumps(key)} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in sorted(settings.items())
    )
    return f'[extra-build-variables."{name}"]\n{quoted}'


@contextmanager
def _news(stack: Stack, name: str) -> Iterator[None]:
    """Says every now and then that a long build goes on."""
    done, started = threading.Event(), time.monotonic()

    def tell() -> None:
        while not done.wait(_NEWS_S):
            stack.say(f"still building {name} ({(time.monotonic() - started) / 60:.0f} min)")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@dataclass(frozen=True)
class GivenWheel:
    """A file whose sha256, package, version and tags were checked."""

    package: str
    version: str
    path: Path
    sha256: str

    @property
    def requirement(self) -> str:
        """The wheel as a requirements file names it, with its hash."""
        return f"{self.package} @ {self.path.absolute().as_uri()} --hash=sha256:{self.sha256}\n"

    def record(self) -> dict[str, str]:
        """What verify.json keeps of it."""
        return {"package": self.package, "version": self.version, "file": self.path.name, "sha256": self.sha256}


def wheel_records(wheels: Sequence[GivenWheel]) -> dict[str, list[dict[str, str]]]:
    """The part of an origin that names the given wheels; empty without any."""
    return {"wheels": [wheel.record() for wheel in wheels]} if wheels else {}


def wheel_pairs(paths: Sequence[Path], hashes: Sequence[str]) -> list[tuple[Path, str]]:
    """The `--wheel PATH --sha256 HEX` pairs of a command line; UserError where one has no partner."""
    if len(paths) != len(hashes):
        raise UserError(
            f"--wheel is given {len(paths)} times and --sha256 {len(hashes)} times; give one --sha256 for each "
            "--wheel: `sha256sum FILE` on the machine that built the wheel prints it"
        )
    return list(zip(paths, hashes, strict=True))


def given_wheels(
    stack: Stack, pins: Sequence[Pin], given: Sequence[tuple[Path, str]], python: str | None = None
) -> list[GivenWheel]:
    """The files with their sha256, once each is what it is said to be.

    Each must have the given sha256, and be of a package of `source_builds`, in the lock's version, for this machine
    and for `python` (a feature release; by default the stack's). UserError names the first that is not.
    """
    found = [_checked(stack, pins, path, sha256, python or stack.python) for path, sha256 in given]
    if len({wheel.package for wheel in found}) < len(found):
        raise UserError(f"--wheel names one package twice: {', '.join(wheel.path.name for wheel in found)}; keep one")
    return found


def _checked(stack: Stack, pins: Sequence[Pin], path: Path, sha256: str, python: str) -> GivenWheel:
    if not path.is_file():
        raise UserError(f"--wheel: {path} is not there; correct the path")
    try:
        name, version, _, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename:
        raise UserError(
            f"--wheel: {path.name} is not a wheel's name; wanted NAME-VERSION-PYTHON-ABI-PLATFORM.whl, unchanged"
        ) from None
    if name not in stack.source_builds:
        raise UserError(
            f"--wheel: {stack.name} does not build {name} from source; a wheel is accepted for "
            f"{', '.join(stack.source_builds) or 'no package of it'} (source_builds in {stack.folder / 'stack.yaml'})"
        )
    pin = next(pin for pin in pins if pin.name == name)  # check_lock: every source build is pinned
    if str(version) != pin.version:
        raise UserError(f"--wheel: {path.name} is {name} {version}; {stack.lock}:{pin.line} wants {pin.version}")
    release = (int(python.split(".")[0]), int(python.split(".")[1]))
    interpreter, platforms = f"cp{release[0]}{release[1]}", list(platform_tags())
    usable = {*cpython_tags(release, platforms=platforms), *compatible_tags(release, interpreter, platforms)}
    if not tags & usable:
        raise UserError(
            f"--wheel: {path.name} does not fit Python {python} on this machine, which takes "
            f"{interpreter}-{interpreter}-{platforms[0]} and older platforms; build it for these"
        )
    got = file_sha256(path)
    if got != sha256.strip().lower():
        raise UserError(
            f"--wheel: {path.name} has sha256 {got}, and --sha256 says {sha256}; it is not the file that was built "
            "and noted: bring it again, or do not use it"
        )
    return GivenWheel(str(name), pin.version, path, got)
