"""What does verl's own configuration hold, before any setting? Its keys and defaults, by version.

`packaged/<version>.json` is what Hydra composes from the released wheel's `ppo_trainer` without an override, flat and
with every reference resolved; a test composes it anew and compares. With it a slip is told when the plan is made.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trainers.verl.driver.keys import key_problem, kind_problem

FOLDER = Path(__file__).parent / "packaged"


@functools.cache
def defaults(version: str) -> Mapping[str, Any]:
    """verl's settings and their defaults, by dotted key; empty sections and lists are values."""
    return MappingProxyType(json.loads((FOLDER / f"{version}.json").read_text(encoding="utf-8")))


@functools.cache
def _keys(version: str) -> frozenset[str]:
    parts = (key.split(".") for key in defaults(version))
    return frozenset(".".join(key[:depth]) for key in parts for depth in range(1, len(key) + 1))


def problem(version: str, key: str, value: Any) -> str | None:
    """What is wrong with an option as it is written, `key` with its leading + or ++, if anything."""
    bare = key.lstrip("+")
    if key.startswith("++"):
        return None
    if found := key_problem(bare, key.startswith("+"), _keys(version), version):
        return found
    if bare in _keys(version) and bare not in defaults(version) and value != {}:
        return f"{bare} is a section with settings of its own (got {value!r})"
    return kind_problem(bare, defaults(version).get(bare), value)
