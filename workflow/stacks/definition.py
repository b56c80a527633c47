"""What is a stack, and which built environment belongs to it?"""

from __future__ import annotations

import hashlib
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from analysis.errors import UserError
from workflow.messages import unknown_name

ENVS = Path(__file__).resolve().parents[2] / "envs"


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
    disk_gib: float
    """Free space asked for before a build, GiB: the environment and the downloads that uv keeps."""
    torch_backend: str | None = None
    """uv's name of the PyTorch index to ask when no configured source has the torch wheel."""

    @property
    def lock(self) -> Path:
        return self.folder / "requirements.lock"

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
    for field in settings:
        if field.name not in given:
            if field.default is MISSING:
                raise UserError(f"{path}: {field.name} is missing (wanted: {', '.join(allowed)})")
            continue
        value = given[field.name]
        if field.name == "disk_gib":
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise UserError(f"{path}: disk_gib must be a number of GiB, at least 0 (got {value!r})")
            value = float(value)
        elif value is None and field.default is None:
            pass
        elif not isinstance(value, str) or not value:
            # YAML reads an unquoted 3.10 as the number 3.1.
            raise UserError(f'{path}: {field.name} must be text, in quotes: "{value}" (got {value!r})')
        values[field.name] = value
    return values


def lock_id(name: str, envs: Path = ENVS) -> str:
    """12 hex digits of the sha256 over what decides the environment: the lock and Python's release."""
    stack = load_stack(name, envs)
    try:
        lock = stack.lock.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{stack.lock} is missing; make it with `make locks STACK={name}`") from None
    return hashlib.sha256(b"python " + stack.python.encode() + b"\n" + lock).hexdigest()[:12]


def verify_id(stack: Stack) -> str:
    """12 hex digits of the sha256 over the stack's verify.py and the code that all of them share."""
    digest = hashlib.sha256()
    for path in (stack.verify, stack.folder.parent / "_verify.py"):
        if path.is_file():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def built_dir(name: str, stacks_dir: Path, envs: Path = ENVS) -> Path:
    """Where the built environment of the stack's present lock lies, whether it exists or not."""
    return stacks_dir / name / lock_id(name, envs)


def stack_python(name: str, stacks_dir: Path, envs: Path = ENVS) -> Path:
    """The interpreter of the built environment, absolute; it exists once the stack is built."""
    return (built_dir(name, stacks_dir, envs) / "env" / "bin" / "python").absolute()
