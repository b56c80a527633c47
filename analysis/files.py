"""Reading JSON for people, and writing files that are whole or absent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from analysis.errors import UserError


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


def fingerprint_of(spec: Mapping[str, Any]) -> str:
    """The sha256 that stands for what a run computes: of all of spec.json but the fingerprint itself, 64 hex digits."""
    said = {key: value for key, value in spec.items() if key != "fingerprint"}
    return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is whole or absent."""
    with whole_file(path) as part:
        part.write_bytes(content)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary name in the same folder to write to, so that the file is whole or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    yield part
    part.replace(path)
