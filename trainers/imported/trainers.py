"""Makes the trainers of trainers.toml, which describes its own keys."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainers.imported import dictionary_consoles, nemo_rl_console
from trainers.logs.record import StepNames
from trainers.protocol import LogFormat, Logs, Trainer
from trainers.timers.tree import Phase, TimerTree, overlapping_tree

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
    names = StepNames(**_frozen(table["rows"]), **_DERIVED.get(name, {}))
    return Trainer(
        name=name,
        label=table.get("label", ""),
        engines=_frozen(table["engines"]),
        keys=_lists(table.get("keys", {})),
        logs=Logs(
            declared=lambda: tuple(_trees(name, table)),
            loop=_loop(table.get("async_if", "")),
            formats=(_CONSOLES[name](names),) if name in _CONSOLES else tuple(_unread(name, table)),
            rows=names,
            quantities=_lists(table.get("quantities", {})),
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


def _trees(name: str, table: Mapping[str, Any]) -> Iterator[TimerTree]:
    for release in table["releases"]:
        engines = _frozen(table.get("engines_of", {}).get(release, table["engines"]))
        for loop in table["loops"]:
            if release not in loop.get("releases", table["releases"]):
                continue
            source, total, about = loop["source"].format(release), (loop["total"],), loop["about"]
            more = {
                key: _frozen(loop[key])
                for key in ("mode", "not_summed", "marks", "overlap", "unclocked")
                if key in loop
            }
            if "overlap" in loop:
                yield overlapping_tree(name, release, engines, source, total, about, **more)
            else:
                step = Phase("step", "Step", about, "other", total)
                yield TimerTree(name, release, engines, (step, *_phases(loop["phases"], release)), source, **more)


def _phases(rows: list[Any], release: str) -> Iterator[Phase]:
    for path, label, category, about, *more in rows:
        options = more[0] if more else {}
        if release not in options.get("releases", (release,)):
            continue
        if keys := options.get("keys"):
            yield from (Phase(f"step/{path}/{key.replace('/', '.')}", key, about, category, (key,)) for key in keys)
            continue
        key = options.get("key", path.rpartition("/")[2])
        yield Phase(f"step/{path}", label, about, category, (key,), options.get("occasional", False))


def _lists(table: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """A table of names, each of which may be one text or several."""
    return {name: (value,) if isinstance(value, str) else tuple(value) for name, value in table.items()}


def _frozen(value: Any) -> Any:
    """A value with tuples in place of its lists."""
    if isinstance(value, dict):
        return {key: _frozen(one) for key, one in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


IMPORTED = tuple(
    _trainer(name, table)
    for name, table in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
)
