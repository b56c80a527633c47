"""Writes and hashes the files of a job, so that another process never reads half of one."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import files

WHOLE_FILE_HASH_LIMIT = 64 * 2**20  # bytes
_SAMPLES, _SAMPLE_BYTES = 256, 64 * 2**10


def json_safe(value: Any) -> Any:
    """A value as JSON can hold it: NaN and infinities become null, what JSON has no word for becomes its text."""
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
    """Write a JSON file whole or not at all; a number that JSON lacks becomes null."""
    files.write_json(path, json_safe(value))


def append_json_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append one line to a JSON-lines file and see it onto the disk, so that a killed job keeps its finished steps."""
    line = json.dumps(json_safe(value), ensure_ascii=False, allow_nan=False) + "\n"
    with path.open("a", encoding="utf-8") as file:
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
    """The sha256 over a folder's files in order of name, 64 hex digits.

    A file up to 64 MiB counts with its name and bytes; a larger one (weights) with its name, size and 256 pieces of
    64 KiB spread evenly over it: hashing tens of gigabytes would cost minutes on a network disk, and weights that were
    trained on differ everywhere. Hidden files and folders are left out.
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
