"""verl's own configuration by version: its keys, its defaults, and what a run's overrides make of them.

`packaged/<version>.json` is what Hydra composes from the released wheel's `ppo_trainer` without an override, flat and
with every reference resolved; `packaged/references.json` says which settings follow which. A test composes both anew
and compares. With them a slip is told when the plan is made, and settings are known before a stack is built.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from trainers.cases import Settings
from trainers.verl.driver.keys import key_problem, kind_problem
from trainers.verl.driver.overrides import leaves

FOLDER = Path(__file__).parent / "packaged"
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


@functools.cache
def defaults(version: str) -> Mapping[str, Any]:
    """verl's settings and their defaults, by dotted key; empty sections and lists are values."""
    file = FOLDER / f"{version}.json"
    return MappingProxyType(json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {})


@functools.cache
def references(version: str) -> Mapping[str, str]:
    """Setting -> the one whose value it has, as long as it is not set itself."""
    found: dict[str, dict[str, str]] = json.loads((FOLDER / "references.json").read_text(encoding="utf-8"))
    return found.get(version, {})


@functools.cache
def _keys(version: str) -> frozenset[str]:
    parts = (key.split(".") for key in defaults(version))
    return frozenset(".".join(key[:depth]) for key in parts for depth in range(1, len(key) + 1))


def problem(version: str, key: str, value: Any) -> str | None:
    """What is wrong with an option as it is written, `key` with its leading + or ++, if anything."""
    bare = key.lstrip("+")
    # Of a release whose configuration is not packaged here, the stack's own Hydra tells.
    if key.startswith("++") or not defaults(version):
        return None
    if found := key_problem(bare, key.startswith("+"), _keys(version), version):
        return found
    if bare in _keys(version) and bare not in defaults(version) and value != {}:
        return f"{bare} is a section with settings of its own (got {value!r})"
    return kind_problem(bare, defaults(version).get(bare), value)


def settings_of(args: Mapping[str, Any], composed: Mapping[str, Any] | None) -> Settings:
    """A run's settings from its overrides laid over its version's defaults, or as the stack has composed them."""
    given = dict(parsed(args.get("overrides", ())))
    if composed is not None:
        return Settings(composed, frozenset(given), composed=True)
    version = str(args.get("version"))
    filled = {key[:at] for key in given for at in range(len(key)) if key[at] == "."}
    values = {key: value for key, value in defaults(version).items() if key not in filled} | given
    for key, target in references(version).items():
        if key not in given and (value := _followed(target, given, version)) in given:
            values[key] = given[value]
    return Settings(values, frozenset(given))


def _followed(key: str, given: Mapping[str, Any], version: str) -> str:
    """The setting at a reference's end, or the first on the way that is given."""
    while key not in given and key in references(version):
        key = references(version)[key]
    return key


def parsed(overrides: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Hydra's overrides as flat keys and values; a `+` before a key is left out, a deleted key is null."""
    for override in overrides:
        key, _, text = override.partition("=")
        if key.startswith("~"):
            yield key[1:], None
        else:
            yield from leaves({key.lstrip("+"): value_of(text)})


def value_of(text: str) -> Any:
    """A value as Hydra reads it: YAML's, but 1e-6 is a number and {a:1} needs no space."""
    text = text.strip()
    if _NUMBER.fullmatch(text) and not text.lstrip("+-").isdigit():
        return float(text)
    try:
        value = yaml.safe_load(re.sub(r":(?=[^\s/])", ": ", text) if text.startswith("{") else text)
    except yaml.YAMLError:
        return text
    return text if value is None and text not in ("null", "~", "") else value
