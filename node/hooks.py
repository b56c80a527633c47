"""Defines a hook: a name inside another package that our code replaces, calls or inherits from.

A trainer's or engine's `hooks.json` has a row for each: by module, our name for it, and of a `Hook` its name, its
signature, what is relied on, and perhaps since and until which release. A test compares the rows with each stack's
packages (tests/stacks/test_hooks.py).
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple


class Hook(NamedTuple):
    """A name that is not in its package's documented interface."""

    module: str
    """The module that binds it; a name that a module only imports is replaced there."""
    name: str
    """`function`, `Class`, `Class.method` or `Class.attribute`."""
    signature: str
    """The parameters of a function as in its source, without annotations and defaults; empty for anything else."""
    relied_on: str
    """What our code relies on, as a maintainer must check it."""
    since: str = ""
    """The first release that has it, of those that were read; empty: all."""
    until: str = ""
    """The last release that has it; empty: the newest."""

    @property
    def attribute(self) -> str:
        """The last part of its name, as an instance has it."""
        return self.name.rpartition(".")[2]

    def get(self, owner: Any = None) -> Any:
        """The object; with `owner` that instance's or class's own."""
        return getattr(*resolve(self, owner))

    def replace(self, new: Any, owner: Any = None) -> None:
        """Put another object in its place."""
        setattr(*resolve(self, owner), new)

    def find(self, owner: Any = None) -> Any:
        """The object; None if this release or this instance lacks it."""
        return getattr(*resolve(self, owner), None)

    def wrap(self, around: Callable[..., Any], owner: Any = None) -> None:
        """Replace a function by `around(original, ...)`."""
        original = self.get(owner)

        @functools.wraps(original)
        def wrapped(*args: Any, **named: Any) -> Any:
            return around(original, *args, **named)

        self.replace(wrapped, owner)


def resolve(hook: Hook, owner: Any = None) -> tuple[Any, str]:
    """The object that has the name (`owner`, or the row's module or class, which is imported), and the last part."""
    if owner is None:
        owner = importlib.import_module(hook.module)
        for part in hook.name.split(".")[:-1]:
            owner = getattr(owner, part)
    return owner, hook.attribute


class Hooks:
    """The hooks of a folder, as attributes by our names. Its file is read when the first one is used."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "hooks.json"

    @functools.cached_property
    def rows(self) -> dict[str, Hook]:
        """Our name -> the hook."""
        modules = json.loads(self._file.read_text(encoding="utf-8"))["hooks"]
        return {
            name: Hook(module, *row[:3], **(row[3] if len(row) > 3 else {}))
            for module, rows in modules.items()
            for name, row in rows.items()
        }

    def __getattr__(self, name: str) -> Hook:
        try:
            return self.rows[name]
        except KeyError:
            raise AttributeError(f"{self._file} has no hook {name}") from None
