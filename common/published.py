"""Checks values for spec.json and the report, which others read: JSON values without secrets."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from common.messages import short_repr, yaml_repr
from common.redaction import has_secret, is_secret_name

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_NESTED = 20
_INSTEAD = "settings are written into results; export it in the shell that starts snakemake instead"


def check_published(value: Any, where: str = "", depth: int = 0) -> None:
    """Reject values that are not JSON, and secrets."""
    if depth > _MOST_NESTED:
        raise ValueError(f"{where}: nested more than {_MOST_NESTED} levels deep; use fewer levels")
    if isinstance(value, str):
        check_text(value, where)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{where or 'the value'}: keys must be text (got {yaml_repr(key)}); quote it")
            at = f"{where}.{key}" if where else key
            check_option_name(".".join(at.split(".")[-3:]), at)
            check_published(inner, at, depth + 1)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            check_published(inner, f"{where}[{index}]", depth + 1)
    elif isinstance(value, int | float):
        if not math.isfinite(value) if isinstance(value, float) else abs(value) >= 2**63:
            raise ValueError(
                f"{where}: must be a finite number of 64 bits (got {short_repr(value)}); quote it to give text"
            )
    elif value is not None:
        raise ValueError(
            f"{where}: must be text, a number, true, false, null, or a list or mapping of these "
            f"(got {yaml_repr(value)}); quote it to give it as text"
        )


def check_text(text: str, where: str) -> None:
    if "\0" in text:
        raise ValueError(f"{where}: must not contain a NUL character (got {short_repr(text)}); remove it")
    if has_secret(text):
        raise ValueError(f"{where} contains what looks like a secret, and {_INSTEAD}")


def check_option_name(name: str, where: str) -> None:
    if is_secret_name(name):
        raise ValueError(f"{where} looks like a secret, and {_INSTEAD}")


def check_variable(name: str, where: str = "") -> None:
    if not _VARIABLE.fullmatch(name):
        raise ValueError(
            f"{where or name!r}: a variable's name must be letters, digits and '_', and not begin with a digit "
            f"(got {name!r})"
        )
    if is_secret_name(name):
        raise ValueError(f"{where or name} looks like a secret, and {_INSTEAD}")


def as_number(value: Any) -> Any:
    """A value with 1.0 as 1, so that equal numbers are equal in JSON."""
    if isinstance(value, Mapping):
        return {key: as_number(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_number(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
