"""Makes the trainers of trainers.toml, which describes its own keys."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from common.dotted import frozen
from trainers.described import trainer_of
from trainers.imported import dictionary_consoles, nemo_rl_console
from trainers.logs.record import StepNames
from trainers.protocol import LogFormat, Trainer

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
    label, console = table.get("label", name), None
    if name in _CONSOLES:
        console = _CONSOLES[name](rows)
    elif "console" in table:
        console = dictionary_consoles.row_console(name, label, table["console"], rows)
    elif "unread" in table:
        # Its mark, a plain part of a step's line, is searched first.
        mark, step = table["unread"][0], re.compile(table["unread"][1])
        console = LogFormat(
            f"{name}-console",
            f"{label}'s console",
            None,
            is_step=lambda part: mark in part.text and step.search(part.text) is not None,
        )
    return trainer_of(name, table, (console,) if console else (), rows)


IMPORTED = tuple(
    _trainer(name, table)
    for name, table in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
)
