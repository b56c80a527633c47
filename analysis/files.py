"""Reading JSON for people, and writing files that are whole or absent."""

from __future__ import annotations

import json
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
        raise UserError(f"{path} is not JSON ({error}); remove it and make it again with {made_by}") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path} must hold a JSON object (got {type(raw).__name__}); it is made by {made_by}")
    return raw


def write_whole(path: Path, content: bytes) -> None:
    """Write through a temporary name in the same folder, so that the file is whole or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    part.replace(path)
