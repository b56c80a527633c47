"""Checks and describes JSON values by the type hints of the contracts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

# An environment as found may have Python 3.10, where these types are never asked which keys may be absent.
if sys.version_info >= (3, 11):  # noqa: UP036
    from typing import NotRequired as NotRequired
else:
    NotRequired = Union


def fits(value: Any, hint: Any) -> bool:
    """Whether a JSON value has a type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, option) for option in inner)
    if origin in (list, tuple):
        return isinstance(value, list) and all(fits(item, inner[0]) for item in value)
    if origin in (dict, Mapping) or is_typeddict(hint) or hint is dict:
        return isinstance(value, dict) and all(fits(item, inner[1]) for item in value.values() if inner)
    if hint is Any or hint is bool or not isinstance(value, bool):
        return hint is Any or isinstance(value, (int, float) if hint is float else hint)
    return False


_NAMES = {str: "text", int: "whole number", float: "number", bool: "true or false", NoneType: "null", Any: "anything"}


def describe_type(hint: Any) -> str:
    """A JSON type in words: `list of text`, `whole number or null`."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(map(describe_type, inner))
    if origin is Literal:
        return " or ".join(f"`{option}`" for option in inner)
    if origin in (list, tuple):
        return f"list of {describe_type(inner[0])}"
    if origin in (dict, Mapping) and inner[1] is not Any:
        return f"object of {describe_type(inner[1])}"
    return _NAMES.get(hint, "object")


def markdown_table(kind: type) -> str:
    """A Markdown table of a file's keys: type and meaning."""
    rows = ["| key | type | meaning |", "|---|---|---|"]
    plain, full = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    for key, hint in full.items():
        absent = get_origin(hint) is NotRequired
        meaning = get_args(get_args(hint)[0] if absent else hint)[1]
        rows.append(f"| `{key}` | {describe_type(plain[key])}{' or absent' if absent else ''} | {meaning} |")
    return f"{' '.join((kind.__doc__ or '').split())}\n\n" + "\n".join(rows) + "\n"
