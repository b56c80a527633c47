"""Writes settings as Hydra overrides that verl's Hydra reads back.

Uses only the standard library: the controller writes a run's settings with it, and the job on the node adds its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"
MODEL = "actor_rollout_ref.model"

# Hydra reads these as text without quotes; everything else is quoted.
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_TEXT = frozenset({"true", "false", "null", "none", "inf", "nan"})
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_WHOLE_KEY = re.compile(rf"\+{{0,2}}{_KEY.pattern}(\.{_KEY.pattern})*")
_BEFORE_QUOTE = re.compile(r"(\\*)(?:'|$)")

BOOKKEEPING = (
    *("trainer.project_name", "trainer.experiment_name", "trainer.logger"),
    *("trainer.default_local_dir", "trainer.default_hdfs_dir", "trainer.del_local_ckpt_after_load"),
    *("trainer.resume_mode", "trainer.resume_from_path"),
)
"""Names, trackers, places and resume settings, without effect on a step."""


def override(key: str, value: Any) -> str:
    """One override as on verl's command line; `ValueError` if Hydra's grammar cannot express it."""
    if not _WHOLE_KEY.fullmatch(key):
        raise ValueError(
            f"{key!r} is no key that Hydra can read: parts of letters, digits, '_' and '-', joined by dots, "
            "with a leading + for a key that verl's configuration lacks"
        )
    return f"{key}={value_text(value, key)}"


def value_text(value: Any, where: str) -> str:
    """A value in the grammar of Hydra's overrides; None is null. `where` names it in the `ValueError`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} must be a finite number (got {value})")
        return repr(value)
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT:
            return value
        # A backslash must be doubled only before a quote and at the end.
        return "'" + _BEFORE_QUOTE.sub(_escaped, value) + "'"
    if isinstance(value, Mapping):
        for key in value:
            if not _KEY.fullmatch(str(key)) or str(key).lower() in _NOT_TEXT:
                raise ValueError(f"{where}: {key!r} cannot be the key of a mapping in a Hydra override; use letters")
        return "{" + ",".join(f"{key}:{value_text(inner, f'{where}.{key}')}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(value_text(inner, f"{where}[{i}]") for i, inner in enumerate(value)) + "]"
    raise ValueError(f"{where} must be text, a number, true, false, null, a list or a mapping (got {value!r})")


def _escaped(found: re.Match[str]) -> str:
    quote = found.group(0)[len(found.group(1)) :]
    return found.group(1) * 2 + (f"\\{quote}" if quote else "")


def sections_above(key: str) -> list[str]:
    """The sections of a dotted key, the innermost first."""
    parts = key.split(".")
    return [".".join(parts[:depth]) for depth in range(len(parts) - 1, 0, -1)]


def listed_part(key: str, listed: Collection[str]) -> str | None:
    """The key, or the innermost section above it, that is listed; None if none is."""
    return next((at for at in (key, *sections_above(key)) if at in listed), None)
