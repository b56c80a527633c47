"""Writes factor combinations: as the key that tables have, and for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def factors_key(factors: Mapping[str, Any]) -> str:
    """A factor combination, its values by dotted path, as canonical JSON; empty without factors."""
    return json.dumps(dict(factors), sort_keys=True, ensure_ascii=False) if factors else ""


def factors_of(key: str) -> dict[str, Any]:
    """The factor combination of a key."""
    factors: dict[str, Any] = json.loads(key) if key else {}
    return factors


def factors_label(key: str) -> str:
    """A factor combination for people: `temperature = 0.9, num_generations = 8`; empty without factors."""
    factors = factors_of(key)
    names = short_names(list(factors))
    return ", ".join(f"{names[path]} = {value}" for path, value in factors.items())


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """The last part of each swept option's path, or whole paths where two would have the same name."""
    short = {path: path.rsplit(".", 1)[-1] for path in paths}
    return short if len(set(short.values())) == len(short) else {path: path for path in paths}


def at(factors: str) -> str:
    """` at temperature = 0.9`, empty without factors."""
    return f" at {factors_label(factors)}" if factors else ""
