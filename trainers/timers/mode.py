"""Which of a trainer's loops did a run use, told by its settings?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from common.dotted import overrides_by_key, setting
from trainers.timers.tree import release_of


def mode_of(trainer: str, version: str, spec: Mapping[str, Any], done: Mapping[str, Any]) -> str:
    """The mode whose tree is to be used: "" for the default loop (modes: trainers/verl/timers.py).

    The settings that the trainer finally held count; where they are silent, the overrides that it was given.
    """
    if trainer != "verl" or release_of(version).startswith("0.4."):
        return ""
    settings = overrides_by_key(spec.get("trainer_args"))
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
