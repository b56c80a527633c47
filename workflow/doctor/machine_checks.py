"""Checks this machine: CPUs, memory, disk, the package index, and whether tokens are set."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from common.files import ROOT, is_checkout
from workflow.doctor import DoctorCheck, Outcome, failed, failed_if, passed, warning
from workflow.stacks import Stack, built_dir
from workflow.stacks.uv import HOW_TO_SET_SOURCES, Uv, configured_uv, end_of_output, redacted

STACKS = Path(".stacks")
_LEAST_CPUS, _LEAST_GIB = 2, 8.0  # README.md: what the quickstart needs
_CGROUP = Path("/sys/fs/cgroup/memory.max")
_INDEX_TIMEOUT_S = 8
_TOKENS = (
    ("Hugging Face", "HF_TOKEN", (".cache/huggingface/token",), "gated models and datasets need it: `hf auth login`"),
    ("wandb", "WANDB_API_KEY", (".netrc",), "wandb: sources and online tracking need it: `wandb login`"),
)


def machine_checks(stacks: Sequence[Stack], required: bool) -> list[DoctorCheck]:
    """The checks of the machine; `required`: the experiment trains in these stacks."""
    return [
        DoctorCheck("machine", "Python", python_version),
        DoctorCheck("machine", "installation", lambda: installation(required)),
        DoctorCheck("machine", "CPUs", lambda: cpus(len(os.sched_getaffinity(0)))),
        DoctorCheck("machine", "memory", memory),
        DoctorCheck("machine", "disk", lambda: disk(stacks, required)),
        DoctorCheck("machine", "package index", lambda: package_index(configured_uv())),
    ]


def token_checks(environ: Mapping[str, str] = os.environ) -> list[DoctorCheck]:
    """Whether each token is set; its value is never shown."""
    home = Path(environ.get("HOME", "~")).expanduser()
    return [
        DoctorCheck("tokens", name, partial(token, variable, [home / one for one in files], why, environ))
        for name, variable, files, why in _TOKENS
    ]


def python_version(version: Sequence[Any] = tuple(sys.version_info)) -> Outcome:
    """Whether the controller's Python is new enough."""
    shown = f"{'.'.join(map(str, version[:3]))} ({sys.prefix})"
    if tuple(version[:2]) >= (3, 11):
        return passed(shown)
    again = "run `make venv` with it" if is_checkout() else "install rolloutbench with it"
    return failed(f"{shown}, but 3.11 is needed", f"install Python 3.11 or later and {again}")


def installation(required: bool, checkout: bool | None = None) -> Outcome:
    """Whether this program runs from a checkout: training needs one; `compare`, `new` and `plan` do not."""
    if is_checkout() if checkout is None else checkout:
        return passed(f"a checkout, {ROOT}")
    remedy = "to train, clone the repository, run `make venv` there, and use the programs of its .venv"
    return failed_if(required, "without a checkout: it compares, plans and checks, but cannot train", remedy)


def cpus(count: int) -> Outcome:
    """Whether this process may use enough CPUs."""
    if count >= _LEAST_CPUS:
        return passed(f"{count}")
    return warning(
        f"{count}, but the quickstart needs {_LEAST_CPUS}", "request more CPUs, or lower `train` in the profile"
    )


def memory(limit: Path = _CGROUP) -> Outcome:
    """Whether the machine, or the limit of its control group, has enough memory."""
    gib = psutil.virtual_memory().total / 2**30
    with contextlib.suppress(OSError, ValueError):  # without a limit
        gib = min(gib, int(limit.read_text()) / 2**30)
    if gib >= _LEAST_GIB * 0.97:  # a machine of 8 GiB shows a little less
        return passed(f"{gib:.0f} GiB")
    return warning(f"{gib:.1f} GiB, but the quickstart needs {_LEAST_GIB:.0f}", "work on a node with more memory")


def disk(stacks: Sequence[Stack], required: bool, folder: Path = STACKS) -> Outcome:
    """Whether there is space for the stacks that are not built yet."""
    there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.is_dir())
    free_gib = shutil.disk_usage(there).free / 2**30
    missing = [one for one in stacks if not (built_dir(one.name, folder, one.folder.parent) / "verify.json").is_file()]
    need_gib = sum(one.disk_gib for one in missing)
    found = f"{free_gib:.0f} GiB free in {there}"
    if missing:
        found += f"; {need_gib:.0f} GiB for {len(missing)} of {len(stacks)} stacks that are not built"
    if not os.access(there, os.W_OK):
        return failed(f"{there} cannot be written", "work in a folder of your own")
    if free_gib >= need_gib:
        return passed(found)
    return failed_if(required, found, "free some space there, or link .stacks to a larger disk")


def package_index(uv: Uv) -> Outcome:
    """Whether the package sources of pip's settings answer a query for one package's versions."""
    sources = uv.sources
    if "--no-index" in uv.arguments:
        return passed(f"not asked, as pip's settings say: {sources}")
    quick = {"UV_HTTP_TIMEOUT": str(_INDEX_TIMEOUT_S), "UV_HTTP_RETRIES": "0", "UV_NO_PROGRESS": "1"}
    asked = ["pip", "compile", "-", "--quiet", "--no-deps", "--no-build", "--no-header", "--no-cache", "--no-config"]
    status, said = replace(uv, environ={**uv.environ, **quick}).run(asked, stdin="packaging\n")
    if status == 0:
        return passed(sources)
    why = redacted(" ".join(end_of_output(said, 3).split()))
    return failed(
        f"{sources} does not answer: {why}",
        f"{HOW_TO_SET_SOURCES} Behind a proxy: HTTPS_PROXY. Without a network: docs/offline.md",
    )


def token(variable: str, files: Sequence[Path], why: str, environ: Mapping[str, str]) -> Outcome:
    """Whether a token is set, and whether only its owner may read its file."""
    for file in files:
        if _holds(file, variable) and stat.S_IMODE(file.stat().st_mode) & 0o077:
            return warning(f"others may read {file}", f"chmod 600 {file}")
    if environ.get(variable):
        return passed(f"there ({variable})")
    found = next((file for file in files if _holds(file, variable)), None)
    return passed(f"there ({found})") if found else passed("none", why)


def _holds(file: Path, variable: str) -> bool:
    if not file.is_file():
        return False
    return file.name != ".netrc" or "wandb" in file.read_text(encoding="utf-8", errors="replace")
