"""Writes settings as Hydra overrides that verl's Hydra reads back, and checks their keys and types against verl's own.

Uses only the standard library: the controller writes a run's settings with it, and the job on the node adds its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from common.messages import did_you_mean

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


def leaves(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as dotted keys and their values; an empty mapping is a value."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


# Settings whose values may have another type than their default.
_ALSO: Mapping[str, tuple[type, ...]] = {
    "target_modules": (list,),
    "train_files": (list,),
    "val_files": (list,),
    "logger": (str,),
    "reshard_after_forward": (int,),
    "rollout_is_threshold": (str,),
    "rollout_rs_threshold": (str,),
    "lora_A_init_method": (list,),
}
_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "true or false"),
    ((int, float), "a number"),
    (str, "text"),
    (list, "a list"),
    (dict, "a section with settings of its own"),
)


def key_problem(key: str, added: bool, known: Collection[str], version: str) -> str | None:
    """The problem with a key, if any; `added` if it has a leading +, `known` are verl's own keys."""
    if added:
        return f"verl {version} has {key} already; write it without the leading +" if key in known else None
    if key in known:
        return None
    last = key.rpartition(".")[2]
    # The same name in another section is more likely than a similar key.
    elsewhere = sorted(one for one in known if one.rpartition(".")[2] == last)
    hint = f" (did you mean {elsewhere[0]}?)" if len(elsewhere) == 1 else did_you_mean(key, sorted(known))
    return (
        f"{key} is no setting of verl {version}{hint}; to add one that verl's configuration lacks, write it with a "
        "leading +"
    )


def kind_problem(key: str, was: Any, now: Any) -> str | None:
    """The problem with a value whose type differs from verl's own value."""
    if was is None or now is None or was == "???":
        return None
    kinds, wanted = next((kinds, word) for kinds, word in _KINDS if isinstance(was, kinds))
    if isinstance(now, kinds) and isinstance(now, bool) == isinstance(was, bool):
        return None
    if not isinstance(now, bool) and isinstance(now, _ALSO.get(key.rpartition(".")[2], ())):
        return None
    quoted = ", without quotes" if isinstance(now, str) and wanted in ("true or false", "a number") else ""
    return f"{key} must be {wanted}{quoted}, as verl's own {was!r} (got {now!r})"
