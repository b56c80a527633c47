"""Reads what a trainer was asked for and what it held, by dotted key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def as_mapping(value: Any) -> Mapping[str, Any]:
    """A mapping as it is; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def overrides_by_key(trainer_args: Any) -> dict[str, str]:
    """Hydra's `key=value` overrides among a trainer's arguments, by key; the last one wins, as in Hydra.

    A `+` before a key is gone; `~key`, which takes a key away, keeps its sign.
    """
    given = trainer_args.get("overrides") if isinstance(trainer_args, Mapping) else None
    pairs = [str(o).partition("=") for o in given] if isinstance(given, list) else []
    return {key.lstrip("+"): value.strip("'\"") for key, _, value in pairs}


def as_text(value: Any) -> str:
    """A text as it is; anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def settings_by_key(trainer_args: Mapping[str, Any]) -> dict[str, Any]:
    """A trainer's arguments with a list of `key=value` overrides spread out, so that they differ one by one."""
    overrides = overrides_by_key(trainer_args)
    rest = {key: value for key, value in trainer_args.items() if key != "overrides" or not overrides}
    return rest | overrides


def lookup(held: Any, key: str) -> Any:
    """A dotted key's value, from flat or from nested settings; None where it is not there."""
    if not isinstance(held, Mapping):
        return None
    if key in held:
        return held[key]
    for part in key.split("."):
        if not isinstance(held, Mapping) or part not in held:
            return None
        held = held[part]
    return held


def flatten(nested: Mapping[str, Any], above: str = "", *, keep_plus: bool = False) -> dict[str, Any]:
    """Nested settings by dotted key, without Hydra's `+` unless it is kept; an empty mapping is a value."""
    found: dict[str, Any] = {}
    for key, value in nested.items():
        path = above + (str(key) if keep_plus else str(key).lstrip("+"))
        if isinstance(value, Mapping) and value:
            found |= flatten(value, f"{path}.", keep_plus=keep_plus)
        else:
            found[path] = value
    return found


def nested_settings(options: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Settings with every dotted key as a mapping in a mapping; `ValueError` where two say different things of one."""
    result: dict[str, Any] = {}
    for name, value in options.items():
        head, *rest = name.split(".")
        if not all((head, *rest)):
            raise ValueError(f"{where}{name}: a key must not begin or end with a dot, nor hold two in a row")
        # Within a value of a list nothing is a key of the trainer's.
        inner = nested_settings(value, f"{where}{name}.") if isinstance(value, Mapping) else value
        for key in reversed(rest):
            inner = {key: inner}
        result[head] = _joined(result[head], inner, f"{where}{head}") if head in result else inner
    return result


def _joined(one: Any, other: Any, where: str) -> Any:
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        raise ValueError(f"{where} is given twice, once with a dot and once without; give it once")
    both = {key: _joined(one[key], other[key], f"{where}.{key}") for key in one.keys() & other.keys()}
    return {**one, **other, **both}


def positive_int(value: Any) -> int | None:
    """A whole number from 1, also from a setting's text; None for anything else."""
    try:
        number = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else 0
    except ValueError:
        return None
    return number if number > 0 else None
