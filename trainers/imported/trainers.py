"""Makes the trainers of trainers.toml, which describes its own keys."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainers.imported import dictionary_consoles, nemo_rl_console
from trainers.logs.record import StepNames
from trainers.protocol import Ledger, LogFormat, Logs, Trainer
from trainers.timers.declared import declared_trees, frozen

_CONSOLES: Mapping[str, Callable[[StepNames], LogFormat]] = {
    "nemo-rl": nemo_rl_console.console,
    "openrlhf": dictionary_consoles.openrlhf_console,
    "skyrl": dictionary_consoles.skyrl_console,
    "slime": dictionary_consoles.slime_console,
}
_DERIVED: Mapping[str, Any] = {
    "openrlhf": {"derived": dictionary_consoles.openrlhf_overlap},
    "slime": {"derived": dictionary_consoles.slime_overlap},
}


def _trainer(name: str, table: Mapping[str, Any]) -> Trainer:
    names = StepNames(**frozen(table["rows"]), **_DERIVED.get(name, {}))
    return Trainer(
        name=name,
        label=table.get("label", ""),
        engines=frozen(table["engines"]),
        keys=_lists(table.get("keys", {})),
        logs=Logs(
            declared=lambda: tuple(declared_trees(name, table)),
            loop=_loop(table.get("async_if", "")),
            formats=(_CONSOLES[name](names),) if name in _CONSOLES else tuple(_unread(name, table)),
            rows=names,
            quantities=_lists(table.get("quantities", {})),
            ledger=_ledger(table.get("ledger", {})),
        ),
        resumable=tuple(table.get("resumable", ())),
    )


def _unread(name: str, table: Mapping[str, Any]) -> Iterator[LogFormat]:
    """The console that is recognised and not read: its mark, a plain part of a step's line, is searched first."""
    if "unread" in table:
        mark, step = table["unread"][0], re.compile(table["unread"][1])
        yield LogFormat(
            f"{name}-console",
            f"{table.get('label', name)}'s console",
            None,
            is_step=lambda part: mark in part.text and step.search(part.text) is not None,
        )


def _loop(switch: str) -> Callable[[str, Mapping[str, Any]], str]:
    return lambda version, settings: "async" if settings.get(switch) is True else ""


def _lists(table: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """A table of names, each of which may be one text or several."""
    return {name: (value,) if isinstance(value, str) else tuple(value) for name, value in table.items()}


def _ledger(table: Mapping[str, Any]) -> Ledger:
    accounts = _lists({name: value for name, value in table.items() if name != "unit"})
    return Ledger(unit=table.get("unit", Ledger.unit), **accounts)


IMPORTED = tuple(
    _trainer(name, table)
    for name, table in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
)
