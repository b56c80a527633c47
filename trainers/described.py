"""Makes a trainer of its table: `trainer.toml` in its folder, or its entry of imported/trainers.toml.

The table has what is the same for all that its runs do; code has the rest, as fields of `Trainer`:

- `label`, `engines`, `keys`, `resumable`: as in `Trainer`. A name with one setting may have it as a text.
- `quantities`: as in `Logs`.
- `ledger`: what became of what an asynchronous loop generated. `discards`, and `discards_if` for the settings in it:
  as in `Ledger`.
- `async_if`: the setting that is true in the loop `async`.
- `releases`, `loops` and `groups`: its timer trees (trainers/timers/declared.py).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainers.logs.record import StepNames
from trainers.protocol import Ledger, LogFormat, Logs, Trainer
from trainers.timers.declared import declared_trees, several


def table_in(folder: Path, base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The table of a trainer's folder; its sections complete those of a `base`, which several trainers have."""
    table = tomllib.loads((folder / "trainer.toml").read_text(encoding="utf-8"))
    for name, shared in (base or {}).items():
        table[name] = {**shared, **table.get(name, {})} if isinstance(shared, Mapping) else table.get(name, shared)
    return table


def trainer_of(
    name: str, table: Mapping[str, Any], formats: tuple[LogFormat, ...], rows: StepNames | None = None, **own: Any
) -> Trainer:
    """The trainer of a table; `own` are fields that only code has, `loop` its `Logs.loop` if a switch is not enough."""
    switch, ledger = table.get("async_if", ""), dict(table.get("ledger", {}))
    loop = own.pop("loop", lambda version, settings: "async" if settings.get(switch) is True else "")
    return Trainer(
        name=name,
        label=table.get("label", ""),
        engines=tuple(table["engines"]),
        keys=lists(table.get("keys", {})),
        logs=Logs(
            declared=lambda: tuple(declared_trees(name, table)),
            loop=loop,
            formats=formats,
            rows=rows,
            quantities=lists(table.get("quantities", {})),
            ledger=Ledger(
                unit=ledger.pop("unit", Ledger.unit),
                discards={**table.get("discards", {}), **dict.fromkeys(table.get("discards_if", ()))},
                **lists(ledger),
            ),
        ),
        resumable=tuple(table.get("resumable", ())),
        **own,
    )


def lists(table: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """A table of names, each of which may be one text or several."""
    return {name: several(value) for name, value in table.items()}
