"""Builds packages that have no wheel from source, and checks wheels that were built elsewhere."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from common.errors import UserError
from workflow.stacks.definition import SITE_PACKAGES, Stack
from workflow.stacks.lockfile import Pin
from workflow.stacks.uv import Uv, end_of_output, uv_error

GIB_PER_JOB = 8
"""Upper limit of one CUDA compiler's memory, from flash-attn's largest files."""


def build_from_source(stack: Stack, pins: list[Pin], python: Path, uv: Uv, work: Path, fds: tuple[int, ...]) -> None:
    """Builds and installs those pins from source, one after another, with the environment's packages.

    `work`, on the environment's file system, has uv's cache for this build alone: a permanent cache could return a
    package that was compiled against another torch.
    """
    for pin in pins:
        name, wanted = pin.name, work / f"{pin.name}.txt"
        wanted.write_text(pin.requirement, encoding="utf-8")
        (packages,) = python.absolute().parents[1].glob("lib/python*/site-packages")
        settings = build_settings(stack, uv.environ)
        settings = {key: value.replace(SITE_PACKAGES, str(packages)) for key, value in settings.items()}
        # uv.toml limits these variables to the build: uv itself must reach the sources.
        (work / "uv.toml").write_text(_uv_toml(name, settings, uv), encoding="utf-8")
        limit = f", {settings['MAX_JOBS']} compilers at once" if "MAX_JOBS" in settings else ""
        stack.log(f"building {name} {pin.version} from source{limit}: 10-60 minutes where it is CUDA code")
        command = ["pip", "install", "--require-hashes", "--no-deps", "--no-build-isolation", "--no-binary", name]
        command += ["--python", str(python), "--break-system-packages", *uv.arguments]
        command += ["--cache-dir", str(work / "cache"), "-r", wanted.name]
        environ = {key: value for key, value in uv.environ.items() if key not in {"UV_CONFIG_FILE", "UV_NO_CONFIG"}}
        status, output = replace(uv, environ=environ).run(command, cwd=work, fds=fds)
        if status != 0:
            if "Failed to build" in output or "build backend" in output:
                end = end_of_output(output, 30)
                raise UserError(f"{stack.name}: {name} {pin.version} could not be built; end of its output:\n{end}")
            raise uv_error(output, f"{stack.name}: building {name}", uv)


def build_settings(stack: Stack, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The additional environment variables of a source build."""
    settings = dict(stack.source_environment)
    if "MAX_JOBS" in environ:
        settings["MAX_JOBS"] = environ["MAX_JOBS"]
    elif stack.cuda is not None:
        settings.setdefault("MAX_JOBS", str(jobs_at_once(environ)))
    # flash-attn's setup.py downloads a prebuilt binary if it can; a dead proxy prevents that.
    proxies = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy")
    settings |= dict.fromkeys(proxies, "http://127.0.0.1:9")
    settings |= {"no_proxy": "", "NO_PROXY": "", "PIP_NO_INDEX": "1"}
    return settings


def jobs_at_once(environ: Mapping[str, str]) -> int:
    """Parallel compilers that the processors and memory of this machine or Slurm job allow; at least one."""
    processors = int(environ.get("SLURM_CPUS_PER_TASK") or len(os.sched_getaffinity(0)))
    meminfo = Path("/proc/meminfo").read_text(encoding="utf-8")
    limits_gib = [int(free_kib) / 2**20 for free_kib in re.findall(r"MemAvailable:\s+(\d+) kB", meminfo)]
    if granted_mib := environ.get("SLURM_MEM_PER_NODE"):  # usually less than the machine has free
        limits_gib.append(int(granted_mib) / 1024)
    return max(1, min(processors, int(min(limits_gib) // GIB_PER_JOB)))


def _uv_toml(name: str, settings: Mapping[str, str], uv: Uv) -> str:
    """The user's own uv.toml, if UV_CONFIG_FILE names one, with the build's variables."""
    path = Path(uv.environ.get("UV_CONFIG_FILE") or os.devnull)
    lines = [path.read_text(encoding="utf-8") if path.exists() else "", f'[extra-build-variables."{name}"]']
    lines += [f"{json.dumps(key)} = {json.dumps(value, ensure_ascii=False)}" for key, value in sorted(settings.items())]
    return "\n".join([*lines, ""])


@dataclass(frozen=True)
class GivenWheel:
    """A wheel file that replaces a source build."""

    package: str
    version: str
    path: Path
    sha256: str

    @property
    def requirement(self) -> str:
        """The wheel with its hash, in the format of a requirements file."""
        return f"{self.package} @ {self.path.absolute().as_uri()} --hash=sha256:{self.sha256}\n"


def wheel_records(wheels: Sequence[GivenWheel]) -> dict[str, list[dict[str, str]]]:
    """The given wheels as verify.json's origin records them; empty without any."""
    records = [
        {"package": each.package, "version": each.version, "file": each.path.name, "sha256": each.sha256}
        for each in wheels
    ]
    return {"wheels": records} if records else {}


def wheel_pairs(paths: Sequence[Path], hashes: Sequence[str]) -> list[tuple[Path, str]]:
    """The `--wheel PATH --sha256 HEX` pairs of a command line; UserError if their numbers differ."""
    if len(paths) != len(hashes):
        raise UserError(
            f"--wheel is given {len(paths)} times and --sha256 {len(hashes)} times; give one --sha256 for each "
            "--wheel (run `sha256sum FILE` on the machine that built it)"
        )
    return list(zip(paths, hashes, strict=True))


def given_wheels(stack: Stack, pins: Sequence[Pin], given: Sequence[tuple[Path, str]]) -> list[GivenWheel]:
    """The given files; UserError for one that is not a package of `source_builds` in the lock's version.

    uv compares each file with its sha256, and its tags with this machine and the stack's Python.
    """
    versions, found = {pin.name: pin.version for pin in pins}, []
    for path, sha256 in given:
        if not path.is_file():
            raise UserError(f"--wheel: {path} is not there; correct the path")
        try:
            name, version, _, _ = parse_wheel_filename(path.name)
        except InvalidWheelFilename as error:
            raise UserError(f"--wheel: {error}; keep the file's original name") from None
        if name not in stack.source_builds:
            raise UserError(
                f"--wheel: {stack.name} does not build {name} from source; allowed are "
                f"{', '.join(stack.source_builds) or 'none'} (source_builds in {stack.folder / 'stack.yaml'})"
            )
        if str(version) != versions[name]:
            raise UserError(f"--wheel: {path.name} is {name} {version}; {stack.lock} pins {versions[name]}")
        found.append(GivenWheel(str(name), str(version), path, sha256.strip().lower()))
    return found
