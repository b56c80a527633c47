"""Writes and hashes a job's files."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import files
from common.retry import retry_io

WHOLE_FILE_HASH_LIMIT = 64 * 2**20  # bytes
_SAMPLES, _SAMPLE_BYTES = 256, 64 * 2**10


def json_safe(value: Any) -> Any:
    """A value as JSON: NaN and infinities become null, unknown types become text."""
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_safe(item) for item in value]
    return str(value)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file atomically; NaN and infinities become null."""
    files.write_json(path, json_safe(value))


def append_json_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append a line to a JSON-lines file and flush it to disk, so that a killed job keeps its finished steps."""
    line = json.dumps(json_safe(value), ensure_ascii=False, allow_nan=False) + "\n"
    with retry_io(lambda: path.open("a", encoding="utf-8"), "the attempt's files") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


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
        content = (files.file_sha256 if size <= WHOLE_FILE_HASH_LIMIT else _sampled_sha256)(folder / name)
        digest.update(f"{name.as_posix()}\0{size}\0{content}\n".encode())
    return digest.hexdigest()
