"""Finds where a run went on with another configuration: its steps from there on are another measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from common.contracts import LaterSettings
from common.dotted import as_text, flatten
from common.redaction import without_secrets
from common.verdicts import Verdict
from trainers.logs.record import Imported, LaterConfiguration
from trainers.protocol import Trainer

_MOST_SHOWN, _LONGEST_SHOWN = 3, 40


def configurations(parts: Sequence[Imported], trainer: Trainer) -> tuple[dict[str, Any], list[LaterSettings]]:
    """A run's first configuration, {} if no source has one, and the later ones that change what a step is.

    Sources of another format than the first with a configuration may write the same settings otherwise: left out.
    """
    form = next((part.format for part in parts if part.config), "")
    found = [
        one
        for part in parts
        if part.format == form and part.config
        for one in (LaterConfiguration(min(part.read.records, default=0), part.config), *part.later)
    ]
    found.sort(key=lambda one: one.from_step)
    later: list[LaterSettings] = []
    for one in found[1:]:
        if changed := changed_settings(found[0].config, one.config, trainer):
            resolved = without_secrets(one.config)
            later.append({"from_step": one.from_step, "changed": without_secrets(changed), "resolved": resolved})
    return found[0].config if found else {}, later


def changed_settings(before: Mapping[str, Any], after: Mapping[str, Any], trainer: Trainer) -> dict[str, list[Any]]:
    """The settings that differ, by dotted key, with both values; not names, places, and what resuming changes."""
    first, second = flatten(before), flatten(after)
    both = ((key, first.get(key), second.get(key)) for key in sorted(first.keys() | second.keys()))
    return {key: [a, b] for key, a, b in both if _last_part(a) != _last_part(b) and not _may_change(key, trainer)}


def _last_part(value: Any) -> Any:
    """A path without its folders, which may be those of another machine."""
    return value.rstrip("/").rpartition("/")[2] if isinstance(value, str) else value


def _may_change(key: str, trainer: Trainer) -> bool:
    name = key.rpartition(".")[2]
    return (
        name in trainer.bookkeeping
        or name.endswith(("_dir", "seed"))
        or any(fnmatchcase(key, pattern) for pattern in trainer.resumable)
    )


def change_reason(later: Sequence[LaterSettings]) -> str:
    """Why the steps from the first change on do not count."""
    changed = list(later[0]["changed"].items())
    shown = ", ".join(f"{key} {_short(a)} to {_short(b)}" for key, (a, b) in changed[:_MOST_SHOWN])
    more = f" and {len(changed) - _MOST_SHOWN} more" if len(changed) > _MOST_SHOWN else ""
    return f"from step {later[0]['from_step']} on another configuration: {shown}{more}"


def _short(value: Any) -> str:
    text = "nothing" if value is None else as_text(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def change_verdicts(later: Sequence[LaterSettings], run_id: str) -> list[Verdict]:
    """A warning on the steps that are left out because the configuration changed."""
    if not later:
        return []
    text = f"{run_id}: {change_reason(later)}. These steps are left out: they are of another measurement"
    return [Verdict("warning", "configuration-changed", text)]
