"""Which of a trainer's loops did a run use, told by its settings?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def mode_of(trainer: str, version: str, spec: Mapping[str, Any], done: Mapping[str, Any]) -> str:
    """The mode whose tree is to be used: "" for the default loop (modes: analysis/timers/verl.py).

    The settings that the trainer finally held count; where they are silent, the overrides that it was given.
    """
    if trainer != "verl" or version.startswith("0.4."):
        return ""
    settings = _overrides(spec.get("trainer_args"))
    resolved = done.get("resolved")
    held = resolved.get("trainer") if isinstance(resolved, Mapping) else None
    for key in ("trainer.use_v1", "trainer.v1.trainer_mode"):
        found = setting(held, key)
        if found is not None:
            settings[key] = str(found)
    if settings.get("trainer.use_v1", "true").lower() in ("false", "0", "no", "off"):
        return "legacy"
    mode = settings.get("trainer.v1.trainer_mode", "sync")
    return "" if mode == "sync" else mode


def _overrides(trainer_args: Any) -> dict[str, str]:
    """Hydra's `key=value` overrides by key; the last one wins, as in Hydra."""
    given = trainer_args.get("overrides") if isinstance(trainer_args, Mapping) else None
    pairs = [str(o).partition("=") for o in given] if isinstance(given, list) else []
    return {key.lstrip("+~"): value.strip("'\"") for key, _, value in pairs}


def setting(held: Any, key: str) -> Any:
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
