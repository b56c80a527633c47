"""Reads a trainer's arguments and settings by dotted key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

LONGEST_NAME, _DEEPEST = 1000, 50
"""Characters of the dotted key of a number or a setting."""


def as_mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty mapping."""
    return value if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    """The value if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def frozen(value: Any) -> Any:
    """A value with tuples in place of its lists."""
    if isinstance(value, Mapping):
        return {key: frozen(one) for key, one in value.items()}
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


def overrides_by_key(trainer_args: Any) -> dict[str, str]:
    """Hydra's `key=value` overrides in a trainer's arguments, by key; the last one wins.

    A leading `+` is removed. `~key`, which deletes a key, keeps its sign.
    """
    overrides = as_mapping(trainer_args).get("overrides")
    pairs = [str(o).partition("=") for o in overrides] if isinstance(overrides, list) else []
    return {key.lstrip("+"): value.strip("'\"") for key, _, value in pairs}


def as_text(value: Any) -> str:
    """The value if it is text, else the value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def lookup(settings: Any, key: str) -> Any:
    """The value of a dotted key in flat or nested settings; None if absent."""
    if key in as_mapping(settings):
        return settings[key]
    for part in key.split("."):
        settings = as_mapping(settings).get(part)
    return settings


def flatten(
    nested: Mapping[str, Any], above: str = "", *, keep_plus: bool = False, separator: str = "."
) -> dict[str, Any]:
    """Nested settings by dotted key, without Hydra's `+` unless `keep_plus`; an empty mapping is a value."""
    found: dict[str, Any] = {}
    for key, value in nested.items():
        path = above + (str(key) if keep_plus else str(key).lstrip("+"))
        if isinstance(value, Mapping) and value:
            found |= flatten(value, path + separator, keep_plus=keep_plus, separator=separator)
        else:
            found[path] = value
    return found


def is_bounded(found: Any) -> bool:
    """Whether foreign JSON is nested and named as settings and numbers are: their dotted keys can be written down."""
    level = [(found, 0)]
    for _ in range(_DEEPEST):
        below = []
        for one, above in level:
            for name, value in one.items() if isinstance(one, Mapping) else (("", inner) for inner in one):
                if (length := above + len(str(name))) > LONGEST_NAME:
                    return False
                if isinstance(value, Mapping | list | tuple):
                    below.append((value, length))
        if not below:
            return True
        level = below
    return False


def nested_settings(options: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Settings with every dotted key as nested mappings; `ValueError` if a key is given twice."""
    result: dict[str, Any] = {}
    for name, value in options.items():
        head, *rest = name.split(".")
        if not all((head, *rest)):
            raise ValueError(f"{where}{name}: a key must not begin or end with a dot, or have two dots in a row")
        # Mappings inside lists are values, not settings.
        inner = nested_settings(value, f"{where}{name}.") if isinstance(value, Mapping) else value
        for key in reversed(rest):
            inner = {key: inner}
        result[head] = _merge(result[head], inner, f"{where}{head}") if head in result else inner
    return result


def _merge(first: Any, second: Any, where: str) -> Any:
    if not (isinstance(first, Mapping) and isinstance(second, Mapping)):
        raise ValueError(f"{where} is given twice, once with a dot and once without; give it once")
    both = {key: _merge(first[key], second[key], f"{where}.{key}") for key in first.keys() & second.keys()}
    return {**first, **second, **both}


def positive_int(value: Any) -> int | None:
    """A whole number above 0, also from text; None for anything else."""
    try:
        number = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else 0
    except ValueError:
        return None
    return number if number > 0 else None
