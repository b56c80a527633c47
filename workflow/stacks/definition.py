"""Reads a stack's definition, and computes the ids and paths of its built environment."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from common.errors import UserError
from common.files import ROOT
from common.messages import unknown_name

ENVS = ROOT / "envs"
STACKS = Path(".stacks")
"""The folder of built environments and of stacks recorded as found, in the working directory."""
_ACCELERATORS = ("cpu", "cuda")
TRIAL = "-next"
"""The end of the name of a copy in which another release is tried (upgrade.py)."""
CURRENT = "current"
"""In a found stack's folder: the link to what was recorded last, a folder named by its lock_id."""
SITE_PACKAGES = "{site-packages}"
"""Placeholder in paths of stack.yaml for the environment's site-packages, where NVIDIA installs libraries."""
BUILD_JOB = {"cpus_per_task": 4, "mem_mb": 16000, "runtime": 120}
"""Slurm resources of the job that builds a stack, unless stack.yaml sets others."""
RUN_NEEDS = ("nvcc", "c++", "cc", "ninja", "python-headers", "libnuma")
"""The allowed `run_needs`; envs/_needs.py detects each."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One pinned environment as `envs/<name>/stack.yaml` declares it."""

    name: str
    folder: Path
    description: str
    trainer: str
    trainer_version: str
    """The trainer's version in the lock."""
    engine: str
    python: str
    """Python's feature release, such as "3.11"."""
    accelerator: str
    """`cpu` or `cuda`."""
    disk_gib: float
    """Free space that a build requires, in GiB: the environment and the downloads that uv keeps."""
    torch_backend: str | None = None
    """uv's name of the PyTorch index; used only if no configured source has the torch wheel."""
    cuda: str | None = None
    """CUDA release of the compiler and the torch wheel, such as "12.4"; None for CPU stacks."""
    source_builds: tuple[str, ...] = ()
    """Packages without a wheel: built from the lock's sdist after all wheels are installed."""
    source_environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of those builds."""
    build_job: dict[str, int] = field(default_factory=lambda: dict(BUILD_JOB))
    """Slurm resources of the job that builds the stack: `cpus_per_task`, `mem_mb`, `runtime` (minutes)."""
    run_paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Path variables such as LD_LIBRARY_PATH: folders that every process in the stack gets in front of its own."""
    run_caches: dict[str, str] = field(default_factory=dict)
    """Variables that point to a cache of compiled code, with the folder's name below the stack's caches."""
    verify_code: tuple[Path, ...] = ()
    """Files of this repository that verify.py runs; a change makes the stack verify again."""
    run_needs: tuple[str, ...] = ()
    """What processes in the stack need from the machine; each is one of RUN_NEEDS."""
    found_python: Path | None = None
    """The interpreter of an environment that was recorded as found (found.py); None: built from the lock."""
    found_prefix: Path | None = None
    """That interpreter's `sys.prefix`."""

    def log(self, text: str) -> None:
        """Prints one line about this stack to stderr."""
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)

    @property
    def lock(self) -> Path:
        return self.folder / "requirements.lock"

    @property
    def environment(self) -> Path:
        """The source of conda-lock.yml."""
        return self.folder / "environment.yml"

    @property
    def conda_lock(self) -> Path | None:
        """The lock of the conda layer; None without one."""
        path = self.folder / "conda-lock.yml"
        return path if path.is_file() else None

    @property
    def found_conda(self) -> Path:
        """The conda packages of an environment that was recorded as found; absent without any."""
        return self.folder / "conda-explicit.txt"

    @property
    def verify(self) -> Path:
        return ENVS / "found" / "verify.py" if self.found_python else self.folder / "verify.py"


def stack_names(envs: Path = ENVS) -> list[str]:
    """The sorted names of all stacks that are built from a lock: the folders of `envs` with a stack.yaml, no trials."""
    return sorted(path.parent.name for path in envs.glob("*/stack.yaml") if not path.parent.name.endswith(TRIAL))


def found_names() -> list[str]:
    """The sorted names of the stacks that were recorded as found in this working directory."""
    return sorted(path.parents[1].name for path in STACKS.glob(f"*/{CURRENT}/stack.yaml"))


def load_stack(name: str, envs: Path = ENVS) -> Stack:
    """The stack of that name, of `envs` or recorded as found; UserError if there is none or its stack.yaml is wrong."""
    path = envs / name / "stack.yaml"
    if not path.is_file():
        path = (STACKS / name / CURRENT).resolve() / "stack.yaml"
    if not path.is_file():
        known = unknown_name("stack", name, [*stack_names(envs), *found_names()])
        raise UserError(
            f"{known} (folders of {envs}). To use an environment of yours: "
            f"`python -m workflow.stacks found {name} --python …`"
        )
    return read_stack(name, path)


def read_stack(name: str, path: Path) -> Stack:
    """The stack that a stack.yaml describes; UserError if that is wrong."""
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(given, dict):
        raise UserError(f"{path}: must be a mapping of keys to values (got {type(given).__name__})")
    return Stack(name=name, folder=path.parent, **_declared(path, given))


def _declared(path: Path, given: dict[Any, Any]) -> dict[str, Any]:
    settings = [field for field in fields(Stack) if field.name not in {"name", "folder"}]
    allowed = [field.name for field in settings]
    for key in given:
        if key not in allowed:
            raise UserError(f"{path}: {unknown_name('key', str(key), allowed)}")
    values: dict[str, Any] = {}
    for setting in settings:
        optional = setting.default is not MISSING or setting.default_factory is not MISSING
        if given.get(setting.name) is None and optional:
            continue
        if setting.name not in given:
            raise UserError(f"{path}: {setting.name} is missing (allowed keys: {', '.join(allowed)})")
        value = given[setting.name]
        fits, wanted, convert = _KINDS.get(setting.name, _TEXT)
        if not fits(value):
            raise UserError(f"{path}: {setting.name} must {wanted.format(value)} (got {value!r})")
        values[setting.name] = convert(value)
    for file in values.get("verify_code", ()):
        if not file.is_file():
            raise UserError(f"{path}: verify_code: no such file: {file.relative_to(ROOT)} (in {ROOT})")
    for need in values.get("run_needs", ()):
        if need not in RUN_NEEDS:
            raise UserError(f"{path}: {unknown_name('run_needs', need, RUN_NEEDS)}")
    if values["accelerator"] not in _ACCELERATORS:
        raise UserError(f"{path}: {unknown_name('accelerator', values['accelerator'], _ACCELERATORS)}")
    if (values["accelerator"] == "cuda") != ("cuda" in values):
        raise UserError(f'{path}: set `cuda`, a release such as "12.4", for `accelerator: cuda` and only there')
    if "cuda" in values and not re.fullmatch(r"\d+\.\d+", values["cuda"]):
        raise UserError(f'{path}: cuda must be a release such as "12.4" (got "{values["cuda"]}")')
    return values


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _is_paths(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_text(item) and os.pathsep not in item for item in value)


def _is_mapping(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(_is_text(key) and fits(value[key]) for key in value)


def _is_build_job(value: object) -> bool:
    counts = _is_mapping(lambda count: _is_number(count) and isinstance(count, int) and count > 0)
    return isinstance(value, dict) and set(value) <= set(BUILD_JOB) and counts(value)


def _normalized(names: list[str]) -> tuple[str, ...]:
    return tuple(re.sub(r"[-_.]+", "-", name).lower() for name in names)


# YAML reads an unquoted 3.10 as the number 3.1.
_Kind = tuple[Callable[[Any], bool], str, Callable[[Any], Any]]
_TEXT: _Kind = (_is_text, 'be text, in quotes: "{}"', str)
_KINDS: dict[str, _Kind] = {
    "disk_gib": (_is_number, "be a number of GiB, at least 0", float),
    "source_builds": (_is_texts, "be a list of package names", _normalized),
    "build_job": (_is_build_job, f"be whole numbers by {', '.join(BUILD_JOB)}", lambda value: {**BUILD_JOB, **value}),
    "verify_code": (
        _is_texts,
        "be a list of files, each as its path in the repository",
        lambda files: tuple(ROOT / file for file in files),
    ),
    "run_needs": (_is_texts, f"be a list of {', '.join(RUN_NEEDS)}", tuple),
    **dict.fromkeys(("found_python", "found_prefix"), (_is_text, "be a path", Path)),
    "run_paths": (
        _is_mapping(_is_paths),
        'be NAME: ["folder", ...] pairs',
        lambda lists: {key: tuple(items) for key, items in lists.items()},
    ),
    "run_caches": (
        _is_mapping(lambda value: isinstance(value, str) and bool(re.fullmatch(r"[a-z0-9][a-z0-9-]*", value))),
        "be NAME: folder pairs, each folder of lower-case letters, digits and dashes",
        dict,
    ),
    "source_environment": (
        _is_mapping(lambda value: isinstance(value, str)),
        'be NAME: "text" pairs, numbers in quotes too',
        dict,
    ),
}
"""For each stack.yaml key that is not plain text: its check, the rule in words, and its conversion."""


def lock_id(name: str, envs: Path = ENVS) -> str:
    """12 hex digits of a sha256 over everything that defines the environment.

    These are Python's release, the pip lock, the conda lock if there is one (whichever backend builds the stack), and
    the source builds with their settings. Of an environment recorded as found: what was recorded, not its path.
    """
    return lock_id_of(load_stack(name, envs))


def lock_id_of(stack: Stack) -> str:
    """As `lock_id`, of a stack that is read already."""
    try:
        lock = stack.lock.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{stack.lock} is missing; make it with `make locks STACK={stack.name}`") from None
    digest = hashlib.sha256(b"python " + stack.python.encode() + b"\n" + lock)
    if stack.conda_lock is not None:
        digest.update(b"\nconda " + hashlib.sha256(stack.conda_lock.read_bytes()).digest())
    if stack.found_python:
        conda = stack.found_conda.read_bytes() if stack.found_conda.is_file() else b""
        digest.update(b"\nfound " + json.dumps([stack.accelerator, stack.cuda]).encode() + conda)
    if stack.source_builds:
        settings = [sorted(stack.source_builds), sorted(stack.source_environment.items())]
        digest.update(b"\nsource " + json.dumps(settings).encode())
    return digest.hexdigest()[:12]


def verify_id(stack: Stack) -> str:
    """12 hex digits of a sha256 over verify.py, the code that it runs, and the run-time settings.

    They are not in the lock_id: a change verifies the environment again, and trains no run again.
    """
    digest = hashlib.sha256()
    files = [stack.verify, *sorted(stack.verify.parents[1].glob("_*.py")), *stack.verify_code]
    if stack.found_python:
        files += sorted(ENVS.glob("*/*.py"))  # its checks are made of other stacks'
        digest.update(json.dumps([stack.trainer, stack.engine, str(stack.found_python)]).encode())
    for path in files:
        if path.is_file():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    digest.update(json.dumps([stack.run_paths, stack.run_caches, stack.run_needs], sort_keys=True).encode())
    return digest.hexdigest()[:12]


def built_dir(name: str, stacks_dir: Path, envs: Path = ENVS) -> Path:
    """The folder of the environment for the stack's current lock, whether it exists or not."""
    return stacks_dir / name / lock_id(name, envs)


def stack_python(name: str, stacks_dir: Path, envs: Path = ENVS) -> Path:
    """The absolute path of the environment's interpreter; it exists once the stack is built."""
    return (built_dir(name, stacks_dir, envs) / "env" / "bin" / "python").absolute()
