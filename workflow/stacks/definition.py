"""Reads a stack's definition, and tells which built environment belongs to it."""

from __future__ import annotations

import ast
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
LAID_OVER = "_laid_over.pth"
"""In site-packages of a registered stack: leads to the folders of the interpreter below it."""
_ACCELERATORS = ("cpu", "cuda")
SITE_PACKAGES = "{site-packages}"
"""Stands in a path of stack.yaml for the folder of the environment's packages: NVIDIA's bring headers and libraries."""
BUILD_JOB = {"cpus_per_task": 4, "mem_mb": 16000, "runtime": 120}
"""What a job asks for that builds a stack of wheels alone."""
RUN_NEEDS = ("nvcc", "c++", "cc", "ninja", "python-headers", "libnuma")
"""What `run_needs` may name; envs/_needs.py looks for each."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One pinned environment as `envs/<name>/stack.yaml` declares it."""

    name: str
    folder: Path
    description: str
    trainer: str
    trainer_version: str
    """The version that the lock pins the trainer at."""
    engine: str
    python: str
    """Feature release of the interpreter, as in "3.11"."""
    accelerator: str
    """`cpu` or `cuda`."""
    disk_gib: float
    """Free space asked for before a build, GiB: the environment and the downloads that uv keeps."""
    torch_backend: str | None = None
    """uv's name of the PyTorch index to ask when no configured source has the torch wheel."""
    cuda: str | None = None
    """CUDA's release, as in "12.4": of the compiler and of the torch wheel. None on a CPU."""
    source_builds: tuple[str, ...] = ()
    """Packages that have no wheel: built here from the lock's source archive, after all wheels."""
    source_environment: dict[str, str] = field(default_factory=dict)
    """Variables that those builds see."""
    build_job: dict[str, int] = field(default_factory=lambda: dict(BUILD_JOB))
    """What a scheduler is asked for when a job builds it: `cpus_per_task`, `mem_mb`, `runtime` (minutes)."""
    run_paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Lists of folders (LD_LIBRARY_PATH) that every process in the stack sees ahead of its own."""
    run_caches: dict[str, str] = field(default_factory=dict)
    """Variables that name a folder of compiled code, and that folder's name below the stack's caches."""
    verify_code: tuple[Path, ...] = ()
    """This repository's files that verify.py runs: when one changes, the stack is verified again."""
    run_needs: tuple[str, ...] = ()
    """What processes in the stack need of the machine, of RUN_NEEDS."""

    def say(self, text: str) -> None:
        """One line about this stack to the person at the terminal."""
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)

    @property
    def lock(self) -> Path:
        return self.folder / "requirements.lock"

    @property
    def environment(self) -> Path:
        """What conda-lock.yml was made from."""
        return self.folder / "environment.yml"

    @property
    def conda_lock(self) -> Path | None:
        """The lock of the conda layer; None for a stack that has no such layer."""
        path = self.folder / "conda-lock.yml"
        return path if path.is_file() else None

    @property
    def verify(self) -> Path:
        return self.folder / "verify.py"


def stack_names(envs: Path = ENVS) -> list[str]:
    """Names of all stacks: the folders of `envs` that hold a stack.yaml, sorted."""
    return sorted(path.parent.name for path in envs.glob("*/stack.yaml"))


def load_stack(name: str, envs: Path = ENVS) -> Stack:
    """The stack of that name; UserError when there is none, or its stack.yaml is not understood."""
    path = envs / name / "stack.yaml"
    if not path.is_file():
        raise UserError(f"{unknown_name('stack', name, stack_names(envs))} (folders of {envs})")
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(given, dict):
        raise UserError(f"{path}: must hold keys and values (got {type(given).__name__})")
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
            raise UserError(f"{path}: {setting.name} is missing (wanted: {', '.join(allowed)})")
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
        raise UserError(f"{path}: {unknown_name('accelerator', values['accelerator'], list(_ACCELERATORS))}")
    if (values["accelerator"] == "cuda") != ("cuda" in values):
        raise UserError(f'{path}: `cuda: "12.4"`, CUDA\'s release, belongs to `accelerator: cuda` and only to it')
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
    "build_job": (_is_build_job, f"hold whole numbers by {', '.join(BUILD_JOB)}", lambda value: {**BUILD_JOB, **value}),
    "verify_code": (
        _is_texts,
        "be a list of files, each as its path in the repository",
        lambda files: tuple(ROOT / file for file in files),
    ),
    "run_needs": (_is_texts, f"be a list of {', '.join(RUN_NEEDS)}", tuple),
    "run_paths": (
        _is_mapping(_is_paths),
        'hold NAME: ["folder", ...] pairs',
        lambda lists: {key: tuple(items) for key, items in lists.items()},
    ),
    "run_caches": (
        _is_mapping(lambda value: isinstance(value, str) and bool(re.fullmatch(r"[a-z0-9][a-z0-9-]*", value))),
        "hold NAME: folder pairs, each folder of lower-case letters, digits and dashes",
        dict,
    ),
    "source_environment": (
        _is_mapping(lambda value: isinstance(value, str)),
        'hold NAME: "text" pairs, numbers in quotes too',
        dict,
    ),
}
"""Of each key of stack.yaml that is not text: what it must be, in words, and what it becomes."""


def lock_id(name: str, envs: Path = ENVS) -> str:
    """12 hex digits of the sha256 over what decides the environment.

    That is the pip lock and Python's release; the conda lock where there is one, whichever backend builds the
    stack; and what is built from source and with which settings, where anything is.
    """
    stack = load_stack(name, envs)
    try:
        lock = stack.lock.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{stack.lock} is missing; make it with `make locks STACK={name}`") from None
    digest = hashlib.sha256(b"python " + stack.python.encode() + b"\n" + lock)
    if stack.conda_lock is not None:
        digest.update(b"\nconda " + hashlib.sha256(stack.conda_lock.read_bytes()).digest())
    if stack.source_builds:
        settings = [sorted(stack.source_builds), sorted(stack.source_environment.items())]
        digest.update(b"\nsource " + json.dumps(settings).encode())
    return digest.hexdigest()[:12]


def verify_id(stack: Stack) -> str:
    """12 hex digits of the sha256 over what decides the verdict: verify.py, the code that it runs, run-time settings.

    These are no part of the lock_id: an environment is checked again when they change, and no run is trained again.
    """
    digest = hashlib.sha256()
    for path in (stack.verify, *sorted(stack.folder.parent.glob("_*.py")), *stack.verify_code):
        if path.is_file():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    digest.update(json.dumps([stack.run_paths, stack.run_caches, stack.run_needs], sort_keys=True).encode())
    return digest.hexdigest()[:12]


def built_dir(name: str, stacks_dir: Path, envs: Path = ENVS) -> Path:
    """Where the built environment of the stack's present lock lies, whether it exists or not."""
    return stacks_dir / name / lock_id(name, envs)


def stack_python(name: str, stacks_dir: Path, envs: Path = ENVS) -> Path:
    """The interpreter of the built environment, absolute; it exists once the stack is built."""
    return (built_dir(name, stacks_dir, envs) / "env" / "bin" / "python").absolute()


def site_folders(env: Path) -> list[Path]:
    """Folders of an environment's packages, absolute: its own first, then those of the interpreter below it."""
    own = sorted(env.absolute().glob("lib/python*/site-packages"))
    files = [folder / LAID_OVER for folder in own if (folder / LAID_OVER).is_file()]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    found = [match[1] for line in lines if (match := re.search(r"addsitedir\((.*)\)", line))]
    return own + [Path(ast.literal_eval(text)) for text in found]
