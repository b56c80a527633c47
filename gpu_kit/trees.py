"""Compares the code that a kit was made from with the code that runs it, without git: a copied tree may have none."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from common.errors import UserError

_FOLDERS = ("common", "node", "engines", "trainers", "envs", "gpu_kit")


def tree_hashes(root: Path) -> dict[str, str]:
    """A short sha256 of each Python file that a stage may run, and of the tables that these read, by its path."""
    names = ("*.py", "*.toml", "hooks.json", "engine.json")
    files = sorted(path for folder in _FOLDERS for name in names for path in (root / folder).rglob(name))
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in files
        if "__pycache__" not in path.parts
    }


def require_same_tree(root: Path, kit: Mapping[str, str], commit: str) -> None:
    """`UserError` if a file differs from the kit's."""
    here = tree_hashes(root)
    if different := sorted(path for path in here.keys() | kit.keys() if here.get(path) != kit.get(path)):
        more = f" and {len(different) - 1} more" if len(different) > 1 else ""
        raise UserError(
            f"the kit was made from another tree ({commit}): {different[0]}{more} differs here; check that commit out, "
            "or run `python -m gpu_kit` again in this one"
        )
