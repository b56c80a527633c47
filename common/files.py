"""Reads and writes files that other processes wait for; writes are atomic."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import pwd
import secrets
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

from common.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
"""The repository or the installed package, with the stacks' definitions and the jobs' code."""

_TAIL_BYTES = 65536
WHOLE_FILE_HASH_LIMIT = 64 * 2**20  # bytes
_SAMPLES, _SAMPLE_BYTES = 256, 64 * 2**10


def module_command(module: str, *flags: str) -> list[str]:
    """The words that run a module of ours with this Python, from any folder; `python -m` finds none of a wheel."""
    return [sys.executable, *flags, "-P", str(ROOT / "common" / "module.py"), module]


class DiskFull(UserError):
    """The disk is full."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.errno = number


def user_name(uid: int | None = None) -> str:
    """A user's name, by default of this process; the number if it has no name, which Slurm also accepts."""
    uid = os.getuid() if uid is None else uid
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def open_regular(path: Path) -> BinaryIO:
    """A file open for reading; `UserError` for a pipe or a device: whoever put it there could hold up its readers."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb") if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    if file is None:
        os.close(descriptor)
        raise UserError(f"{path} is no regular file; see who made it, and remove it")
    return file


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    with open_regular(path) as file:
        return json.loads(file.read().decode("utf-8"))


def last_lines(path: Path, count: int) -> list[str]:
    """The last lines of a text file; empty if it cannot be read."""
    return tail(path).splitlines()[-count:]


def tail(path: Path, since: int = 0) -> str:
    """The last 64 KiB of a text file, from byte `since` at the earliest; empty if it cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(max(since, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except (OSError, UserError):
        return ""


def json_safe(value: Any) -> Any:
    """A value as JSON: NaN and infinities become null, unknown types become text, halves of a character an escape."""
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, bool | int) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_encodable(str(key)): json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_safe(item) for item in value]
    return _encodable(str(value))


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically; NaN and infinities become null."""
    write_text(path, json.dumps(json_safe(value), indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; a full disk raises `DiskFull` and keeps the old file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Opened by name, so that the umask applies: tempfile would restrict the permissions.
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
    """`write_text` to a path that the user chose; `UserError` if it fails, with the remedy `instead`."""
    try:
        write_text(path, text)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror or error}); {instead}") from None


def read_json_object(path: Path, made_by: str) -> dict[str, Any]:
    """Read a JSON object; `UserError` names the file, the problem, and what makes the file."""
    try:
        raw = read_json(path)
    except FileNotFoundError:
        raise UserError(f"{path} is not there; it is made by {made_by}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}); delete it and start again: {made_by} makes it") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path} must be a JSON object (got {type(raw).__name__}); {made_by} makes it")
    return raw


def file_sha256(path: Path) -> str:
    """The sha256 of a file's bytes, 64 hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):  # hashlib.file_digest is not in Python 3.10
            digest.update(block)
    return digest.hexdigest()


def _sampled_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    last = path.stat().st_size - _SAMPLE_BYTES
    with path.open("rb") as file:
        for index in range(_SAMPLES):
            file.seek(last * index // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def tree_sha256(folder: Path) -> str:
    """The sha256 of a folder's files, sorted by name, 64 hex digits.

    Files up to 64 MiB are hashed fully. Of larger files (weights) the size and 256 evenly spaced pieces of 64 KiB are
    hashed: full hashes take minutes on a network disk, and trained weights differ everywhere. Hidden files are skipped.
    """
    digest = hashlib.sha256()
    names = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    for name in names:
        if any(part.startswith(".") for part in name.parts):
            continue
        size = (folder / name).stat().st_size
        content = (file_sha256 if size <= WHOLE_FILE_HASH_LIMIT else _sampled_sha256)(folder / name)
        digest.update(f"{name.as_posix()}\0{size}\0{content}\n".encode())
    return digest.hexdigest()


def fingerprint_of(spec: Mapping[str, Any]) -> str:
    """The sha256 of spec.json without its fingerprint, 64 hex digits."""
    content = {key: value for key, value in spec.items() if key != "fingerprint"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def inputs_sha256(prepared: Any) -> dict[str, str]:
    """The hashes in inputs.json as done.json has them: data, model, and all reward models together.

    A damaged inputs.json raises KeyError or TypeError.
    """
    hashes = {f"{what}_sha256": str(prepared[what]["sha256"]) for what in ("data", "model")}
    if models := prepared.get("reward_models"):
        lines = "".join(f"{key}\0{models[key]['sha256']}\n" for key in sorted(models))
        hashes["reward_models_sha256"] = hashlib.sha256(lines.encode()).hexdigest()
    return hashes


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically, without keeping it over a power loss."""
    with atomic_path(path) as part:
        part.write_bytes(content)


def write_private(path: Path, content: bytes) -> None:
    """`write_bytes` of a file that only the user can read."""
    with atomic_path(path) as part:
        part.unlink(missing_ok=True)
        with open_private(part, "xb") as file:
            file.write(content)


def open_private(path: Path, mode: Literal["xb", "wb", "ab"]) -> BinaryIO:
    """A file open for writing that only the user can read; also one that others could read before."""
    how = {"xb": os.O_EXCL, "wb": os.O_TRUNC, "ab": os.O_APPEND}[mode]
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o600), mode)
    os.fchmod(file.fileno(), 0o600)
    return file


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder, renamed to `path` at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    yield part
    part.replace(path)
