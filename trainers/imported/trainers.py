"""Makes the trainers of trainers.toml, which describes its own keys."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainers.described import trainer_of
from trainers.imported import dictionary_consoles, nemo_rl_console
from trainers.logs.record import StepNames
from trainers.protocol import LogFormat, Trainer
from trainers.timers.declared import frozen

_CONSOLES: Mapping[str, Callable[[StepNames], LogFormat]] = {
    "nemo-rl": nemo_rl_console.console,
    "skyrl": dictionary_consoles.skyrl_console,
}
_DERIVED: Mapping[str, Any] = {
    "openrlhf": {"derived": dictionary_consoles.openrlhf_overlap},
    "slime": {"derived": dictionary_consoles.slime_overlap},
}


def _trainer(name: str, table: Mapping[str, Any]) -> Trainer:
    rows = StepNames(**frozen(table["rows"]), **_DERIVED.get(name, {}))
    return trainer_of(name, table, tuple(_consoles(name, table, rows)), rows)


def _consoles(name: str, table: Mapping[str, Any], rows: StepNames) -> Iterator[LogFormat]:
    label = table.get("label", name)
    if name in _CONSOLES:
        yield _CONSOLES[name](rows)
    elif "console" in table:
        yield dictionary_consoles.row_console(name, label, table["console"], rows)
    elif "unread" in table:
        # Its mark, a plain part of a step's line, is searched first.
        mark, step = table["unread"][0], re.compile(table["unread"][1])
        yield LogFormat(
            f"{name}-console",
            f"{label}'s console",
            None,
            is_step=lambda part: mark in part.text and step.search(part.text) is not None,
        )


IMPORTED = tuple(
    _trainer(name, table)
    for name, table in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
)
