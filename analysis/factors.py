"""Writes factor combinations for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def factors_label(key: str) -> str:
    """A factor combination for people: `temperature = 0.9, num_generations = 8`."""
    if not key:
        return ""
    factors: dict[str, Any] = json.loads(key)
    names = short_names(list(factors))
    return ", ".join(f"{names[path]} = {value}" for path, value in factors.items())


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """The last part of each swept option's path, or whole paths where two would have the same name."""
    short = {path: path.rsplit(".", 1)[-1] for path in paths}
    return short if len(set(short.values())) == len(short) else {path: path for path in paths}


def at(factors: str) -> str:
    """` at temperature = 0.9`, empty without factors."""
    return f" at {factors_label(factors)}" if factors else ""
