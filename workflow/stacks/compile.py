"""Builds a stack's packages that have no wheel."""

from __future__ import annotations

import math
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from common.errors import UserError
from workflow.stacks.definition import SITE_PACKAGES, Stack, site_folders
from workflow.stacks.lockfile import Pin
from workflow.stacks.uv import Uv, explained

GIB_PER_JOB = 8
"""Memory that one of CUDA's compilers may take at flash-attn's largest files, with room."""

_NEWS_S = 60.0
_DEAD_END = "http://127.0.0.1:9"


def build_from_source(stack: Stack, pins: list[Pin], python: Path, uv: Uv, work: Path, fds: tuple[int, ...]) -> None:
    """Builds and installs the stack's source builds, one after another, with what the environment already holds.

    `work` is a folder for uv's cache, on the environment's file system: a cache that lives on would give a package
    compiled against another torch for this one.
    """
    by_name = {pin.name: pin for pin in pins}
    for name in stack.source_builds:
        pin = by_name[name]
        wanted = work / f"{name}.txt"
        wanted.write_text(requirement(pin), encoding="utf-8")
        folders = site_folders(python.absolute().parents[1])
        settings = {key: _in_each(value, folders) for key, value in build_settings(stack, uv.environ).items()}
        # Only the build sees these, and not uv itself, which has to reach the sources.
        (work / "uv.toml").write_text(_users_settings(uv) + _as_toml(name, settings), encoding="utf-8")
        limit = f", {settings['MAX_JOBS']} compilers at once" if "MAX_JOBS" in settings else ""
        _say(stack, f"building {name} {pin.version} from source{limit}: 10-60 minutes where it is CUDA code")
        command = ["pip", "install", "--require-hashes", "--no-deps", "--no-build-isolation", "--no-binary", name]
        command += ["--python", str(python), "--break-system-packages", *uv.arguments]
        command += ["--cache-dir", str(work / "cache"), "-r", wanted.name]
        with _news(stack, name):
            status, said = _reading_our_settings(uv).run(command, cwd=work, fds=fds)
        if status != 0:
            if "Failed to build" in said or "build backend" in said:
                last = "\n".join(f"  {line}" for line in said.strip().splitlines()[-30:])
                raise UserError(f"{stack.name}: {name} {pin.version} could not be built; it said last:\n{last}")
            raise explained(said, f"{stack.name}: building {name}", uv)


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


def requirement(pin: Pin) -> str:
    """The pin as a requirements file holds it, with its hashes."""
    return " \\\n    ".join([f"{pin.name}=={pin.version}", *(f"--hash=sha256:{value}" for value in pin.hashes)]) + "\n"


def _in_each(value: str, folders: Sequence[Path]) -> str:
    """The value with the folder put in; where packages lie in several, a list of paths as PATH has it."""
    if SITE_PACKAGES not in value:
        return value
    return os.pathsep.join(value.replace(SITE_PACKAGES, str(folder)) for folder in folders)


def _reading_our_settings(uv: Uv) -> Uv:
    left_out = {"UV_CONFIG_FILE", "UV_NO_CONFIG"}
    return Uv(uv.binary, {key: value for key, value in uv.environ.items() if key not in left_out}, uv.arguments)


def _users_settings(uv: Uv) -> str:
    path = uv.environ.get("UV_CONFIG_FILE")
    return Path(path).read_text(encoding="utf-8") + "\n" if path and Path(path).is_file() else ""


def _as_toml(name: str, settings: Mapping[str, str]) -> str:
    quoted = "".join(f'"{key}" = "{_escaped(value)}"\n' for key, value in sorted(settings.items()))
    return f'[extra-build-variables."{name}"]\n{quoted}'


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


@contextmanager
def _news(stack: Stack, name: str) -> Iterator[None]:
    """Says every now and then that a long build goes on."""
    done, started = threading.Event(), time.monotonic()

    def tell() -> None:
        while not done.wait(_NEWS_S):
            _say(stack, f"still building {name} ({(time.monotonic() - started) / 60:.0f} min)")

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _say(stack: Stack, text: str) -> None:
    print(f"{stack.name}: {text}", file=sys.stderr, flush=True)
