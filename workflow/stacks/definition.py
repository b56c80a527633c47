"""Reads a stack's definition, and computes the ids and paths of its built environment."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from contextlib import suppress
from dataclasses import field, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import yaml
from packaging.utils import canonicalize_name
from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass

from common.errors import UserError
from common.files import ROOT, user_name
from common.messages import unknown_name

ENVS = ROOT / "envs"
STACKS = Path(".stacks")
"""The folder of built environments and of stacks recorded as found, in the working directory."""
CURRENT = "current"
"""In a found stack's folder: the link to what was recorded last, a folder named by its lock_id."""
SITE_PACKAGES = "{site-packages}"
"""Placeholder in paths of stack.yaml for the environment's site-packages, where NVIDIA installs libraries."""
_COMMENT = re.compile(r"(^|\s)#.*", re.MULTILINE)
_CONDA_FILE = re.compile(r"\bsha256: ([0-9a-f]{64})\b")
Resource = Literal["cpus_per_task", "mem_mb", "runtime"]
BUILD_JOB: dict[Resource, int] = {"cpus_per_task": 4, "mem_mb": 16000, "runtime": 120}
"""Slurm resources of the job that builds a stack, unless stack.yaml sets others."""
Need = Literal["nvcc", "c++", "cc", "ninja", "python-headers", "libnuma"]
"""The allowed `run_needs`; envs/_needs.py detects each."""


def _existing(files: tuple[Path, ...]) -> tuple[Path, ...]:
    for file in files:
        if not (ROOT / file).is_file():
            raise ValueError(f"no such file: {file} (in {ROOT})")
    return tuple(ROOT / file for file in files)


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
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
    accelerator: Literal["cpu", "cuda"]
    disk_gib: NonNegativeFloat
    """Free space that a build requires, in GiB: the environment and the downloads that uv keeps."""
    torch_backend: str | None = None
    """uv's name of the PyTorch index; used only if no configured source has the torch wheel."""
    cuda: Annotated[str, Field(pattern=r"^\d+\.\d+$")] | None = None
    """CUDA release of the compiler and the torch wheel, such as "12.4"; None for CPU stacks."""
    source_builds: tuple[Annotated[str, AfterValidator(canonicalize_name)], ...] = ()
    """Packages without a wheel: built from the lock's sdist after all wheels are installed."""
    source_environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of those builds."""
    build_job: Annotated[
        dict[Resource, PositiveInt],
        AfterValidator(lambda given: {**BUILD_JOB, **given}),
    ] = field(default_factory=lambda: {**BUILD_JOB})
    """Slurm resources of the job that builds the stack: `cpus_per_task`, `mem_mb`, `runtime` (minutes)."""
    run_paths: dict[str, tuple[Annotated[str, Field(pattern="^[^:]+$")], ...]] = field(default_factory=dict)
    """Path variables such as LD_LIBRARY_PATH: folders that every process in the stack gets in front of its own."""
    run_caches: dict[str, Annotated[str, Field(pattern="^[a-z0-9][a-z0-9-]*$")]] = field(default_factory=dict)
    """Variables that point to a cache of compiled code, with the folder's name below the stack's caches."""
    verify_code: Annotated[tuple[Path, ...], AfterValidator(_existing)] = ()
    """Files of this repository that verify.py runs; a change makes the stack verify again."""
    run_needs: tuple[Need, ...] = ()
    """What processes in the stack need from the machine."""
    found_python: Path | None = None
    """The interpreter of an environment that was recorded as found (found.py); None: built from the lock."""
    found_prefix: Path | None = None
    """That interpreter's `sys.prefix`."""

    @model_validator(mode="after")
    def _has_its_cuda(self) -> Stack:
        if (self.accelerator == "cuda") != (self.cuda is not None):
            raise ValueError('set `cuda`, a release such as "12.4", for `accelerator: cuda` and only there')
        return self

    def log(self, text: str) -> None:
        """Prints one line about this stack to stderr."""
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)

    @property
    def lock(self) -> Path:
        return self.folder / "requirements.lock"

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


_STACK = TypeAdapter(Stack)


def stack_names(envs: Path = ENVS) -> list[str]:
    """The sorted names of all stacks that are built from a lock: the folders of `envs` with a stack.yaml."""
    return sorted(path.parent.name for path in envs.glob("*/stack.yaml"))


def require_own_stacks() -> None:
    """`UserError` if another user has made this working directory's `.stacks`: its programs would be run.

    A link of one's own to somebody's stacks is one's own choice.
    """
    with suppress(FileNotFoundError):
        found = STACKS.lstat()
        if found.st_uid not in (os.geteuid(), 0):
            raise UserError(
                f"{STACKS.absolute()} belongs to {user_name(found.st_uid)}, and its programs are not run; work in a "
                "folder of yours, or link to stacks that you trust: ln -s"
            )


def require_closed(name: str, lock: str) -> None:
    """`UserError` if others can write where a stack's programs are; also if they are somebody else's, by one's link."""
    final = STACKS / name / lock
    for folder in (STACKS, final.parent, final, final / "env", final / "env" / "bin"):
        with suppress(FileNotFoundError):
            if folder.stat().st_mode & 0o022:
                raise UserError(
                    f"others can write {folder}, and the programs of stack {name} are not run; see who did, then: "
                    f"chmod -R go-w {folder.resolve()}"
                )


def found_names() -> list[str]:
    """The sorted names of the stacks that were recorded as found in this working directory."""
    require_own_stacks()
    return sorted(path.parents[1].name for path in STACKS.glob(f"*/{CURRENT}/stack.yaml"))


def load_stack(name: str, envs: Path = ENVS) -> Stack:
    """The stack of that name, of `envs` or recorded as found; UserError if there is none or its stack.yaml is wrong."""
    path = envs / name / "stack.yaml"
    if not path.is_file():
        require_own_stacks()
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
    try:
        return _STACK.validate_python({**given, "name": name, "folder": path.parent})
    except ValidationError as error:
        raise UserError(f"{path}: {_problem(error)}") from None


def _problem(error: ValidationError) -> str:
    """The first problem of a stack.yaml; an unknown key comes before the key that it was meant to be."""
    found = sorted(error.errors(include_url=False), key=lambda one: one["type"] != "unexpected_keyword_argument")[0]
    key = ".".join(map(str, found["loc"]))
    if found["type"] == "unexpected_keyword_argument":
        return unknown_name("key", key, [one.name for one in fields(Stack) if one.name not in ("name", "folder")])
    got = f" (got {found['input']!r})" if key and found["type"] not in ("missing", "value_error") else ""
    return f"{key}: {found['msg']}{got}".removeprefix(": ").replace("Value error, ", "")


def lock_id(stack: Stack) -> str:
    """12 hex digits of a sha256 over everything that defines the environment.

    These are Python's release, the pins and hashes of the pip lock and of the conda lock if there is one (whichever
    backend builds the stack), and the source builds with their settings. Comments and layout of a lock do not count.
    Of an environment recorded as found: what was recorded, not its path.
    """
    try:
        lock = stack.lock.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{stack.lock} is missing; make it with `make lock STACK={stack.name}`") from None
    # The comments of a record say where packages come from.
    pins = lock if stack.found_python else " ".join(_COMMENT.sub("", lock).replace("\\\n", " ").split())
    digest = hashlib.sha256(f"python {stack.python}\n{pins}".encode())
    if stack.conda_lock is not None:
        files = sorted(_CONDA_FILE.findall(stack.conda_lock.read_text(encoding="utf-8")))
        digest.update(f"\nconda {' '.join(files)}".encode())
    if stack.found_python:
        conda = stack.found_conda.read_bytes() if stack.found_conda.is_file() else b""
        digest.update(b"\nfound " + json.dumps([stack.accelerator, stack.cuda]).encode() + conda)
    if stack.source_builds:
        settings = [sorted(stack.source_builds), sorted(stack.source_environment.items())]
        digest.update(b"\nsource " + json.dumps(settings).encode())
    found = digest.hexdigest()[:12]
    return _former_ids().get(found, found)


@cache
def _former_ids() -> dict[str, str]:
    """The ids of locks that were in use when an id was a hash of the lock's text: finished runs have them."""
    lines = (ENVS / "lock_ids.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split()[:2] for line in lines if not line.startswith("#"))


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


def built_dir(stack: Stack, stacks_dir: Path) -> Path:
    """The folder of the environment for the stack's current lock, whether it exists or not."""
    return stacks_dir / stack.name / lock_id(stack)


def stack_python(name: str, stacks_dir: Path, envs: Path = ENVS) -> Path:
    """The absolute path of the environment's interpreter; it exists once the stack is built."""
    return (built_dir(load_stack(name, envs), stacks_dir) / "env" / "bin" / "python").absolute()
