"""Makes a trainer of its table: `trainer.toml` in its folder, or its entry of imported/trainers.toml.

The table has what is the same for all that its runs do; code has the rest, as fields of `Trainer`:

- `label`, `engines`, `keys`, `resumable`: as in `Trainer`. A name with one setting may have it as a text.
- `quantities`: as in `Logs`.
- `ledger`: what became of what an asynchronous loop generated. `discards`, and `discards_if` for the settings in it:
  as in `Ledger`.
- `async_if`: the setting that is true in the loop `async`.
- `releases`, and a timer tree for each of its `loops` and releases. Of a loop:

- `releases`, `engines`: of the loop, if it lacks some. `mode`: empty for the default loop.
- `source`: where the timers were read; `{}` is the release. `total`: the key of the step's timer, or several. `about`:
  what a step is; `label` and `category`, if they are not those of a training step.
- `phases`: rows [path below the step, label, category, description, options]. A path that begins with a slash is
  outside the step. Options: `key`, its name in the log, or several, if that is not the last part of the path; `keys`
  makes a phase of each name below the path; `releases`; `occasional` and `polled_s` as in `Phase`. `by_path`: no phase
  has a key.
- With `overlap` its phases run at the same time: only the step is one, and other timers are scalars.
- `not_summed`, `not_summed_if`, `marks`, `unclocked`, `padded`: as in `TimerTree`.

A text among phases or in `not_summed` stands for the rows of that name in `groups`; so does { group = ...,
releases = ... }.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common.dotted import frozen
from trainers.logs.record import StepNames
from trainers.protocol import Ledger, LogFormat, Logs, Trainer
from trainers.timers.tree import Phase, TimerTree


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


def declared_trees(trainer: str, table: Mapping[str, Any]) -> Iterator[TimerTree]:
    """The trees of a table."""
    for release in table["releases"]:
        engines = table.get("engines_of", {}).get(release, table["engines"])
        for loop in table["loops"]:
            if release in loop.get("releases", table["releases"]):
                yield _tree(trainer, release, tuple(loop.get("engines", engines)), loop, table.get("groups", {}))


def _tree(
    trainer: str, release: str, engines: tuple[str, ...], loop: Mapping[str, Any], groups: Mapping[str, Any]
) -> TimerTree:
    source = loop["source"].replace("{}", release)
    label, category = loop.get("label", "Step"), loop.get("category", "other")
    step = Phase("step", label, loop["about"], category, several(loop["total"]))
    more = {key: frozen(loop[key]) for key in ("mode", "marks", "overlap", "unclocked", "padded") if key in loop}
    for key in ("not_summed", "not_summed_if"):
        more[key] = tuple(map(tuple, _rows(loop.get(key, ()), groups, release)))
    if "overlap" in loop:
        more["not_summed"] += (("*", "s", "overlapping_s/*"),)
    rows = _rows(loop.get("phases", ()), groups, release)
    phases = (phase for row in rows for phase in _phases(release, bool(loop.get("by_path")), *row))
    return TimerTree(trainer, release, engines, (step, *phases), source, **more)


def _rows(rows: Any, groups: Mapping[str, Any], release: str) -> Iterator[Any]:
    for row in rows:
        if isinstance(row, str):
            yield from groups[row]
        elif not isinstance(row, dict):
            yield row
        elif release in row["releases"]:
            yield from groups[row["group"]]


def _phases(
    release: str, by_path: bool, path: str, label: str, category: str, about: str, options: Mapping[str, Any] = {}
) -> Iterator[Phase]:
    if release not in options.get("releases", (release,)):
        return
    place = path[1:] if path.startswith("/") else f"step/{path}"
    if keys := options.get("keys"):
        yield from (Phase(f"{place}/{key.replace('/', '.')}", key, about, category, (key,)) for key in keys)
        return
    key = options.get("key", [] if by_path else path.rpartition("/")[2])
    more = {name: options[name] for name in ("occasional", "polled_s") if name in options}
    yield Phase(place, label, about, category, several(key), **more)


def several(names: Any) -> tuple[str, ...]:
    """Names of a table, where one may be a text."""
    return (names,) if isinstance(names, str) else tuple(names)
