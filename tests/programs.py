"""Programs that stand for others on PATH."""

from __future__ import annotations

from pathlib import Path


def executable(path: Path, text: str) -> Path:
    """A program of this text, a shell's if it names no other; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path
