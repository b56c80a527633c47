"""Reads and writes files that others wait for: whole or not at all, and with messages for people."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pwd
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
"""The repository, or where it is installed: the stacks' definitions and the jobs' code are there."""

_TAIL_BYTES = 65536


def is_checkout() -> bool:
    """Whether `ROOT` is a checkout: rules train from there alone."""
    return (ROOT / "rules" / "train.smk").is_file()


class DiskFull(UserError):
    """There is no room left for a file."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.errno = number


def user_name(uid: int | None = None) -> str:
    """The name of a user, ours by default; the number where there is none, as in containers: Slurm takes it, too."""
    uid = os.getuid() if uid is None else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a text file of any size; none of one that cannot be read."""
    return tail(path).splitlines()[-count:]


def tail(path: Path, since: int = 0) -> str:
    """The end of a text file of any size, from that byte on at the earliest; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(since, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file so that readers find the old content or the new, never a part of it."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; a full disk is a `DiskFull` and leaves the old file as it was."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # With the rights that the umask leaves, which cannot be read without changing it for other threads.
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        file = temporary.open("x", encoding="utf-8")
        try:
            with file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(
                f"no space left to write {path}; free some (see `df -h {path.parent}`) and start again", error.errno
            ) from None
        raise


def write_text_at(path: Path, text: str, instead: str) -> None:
    """`write_text` where the user chose to; `UserError` where nothing can be written: `instead` is what to do."""
    try:
        write_text(path, text)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror or error}); {instead}") from None


def read_json_object(path: Path, made_by: str) -> dict[str, Any]:
    """A JSON object from a file; `UserError` names the file, what is wrong, and what makes it."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is not there; it is made by {made_by}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not JSON ({error}); delete it and start again: {made_by} makes it") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path} must hold a JSON object (got {type(raw).__name__}); it is made by {made_by}")
    return raw


def file_sha256(path: Path) -> str:
    """The sha256 of a file's bytes, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint_of(spec: Mapping[str, Any]) -> str:
    """The sha256 that stands for what a run computes: of all of spec.json but the fingerprint itself, 64 hex digits."""
    said = {key: value for key, value in spec.items() if key != "fingerprint"}
    return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def inputs_sha256(prepared: Any) -> dict[str, str]:
    """The hashes of what inputs.json says is trained on and with, as done.json has them: data, model, and where there
    are some the reward models, together.

    KeyError or TypeError if it is damaged.
    """
    found = {f"{what}_sha256": str(prepared[what]["sha256"]) for what in ("data", "model")}
    if models := prepared.get("reward_models"):
        told = "".join(f"{key}\0{models[key]['sha256']}\n" for key in sorted(models))
        found["reward_models_sha256"] = hashlib.sha256(told.encode()).hexdigest()
    return found


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file that is whole or absent."""
    with atomic_path(path) as part:
        part.write_bytes(content)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary name in the same folder to write to, so that the file is whole or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    yield part
    part.replace(path)
