"""Resolves a run's settings from verl's own configuration: its keys and defaults by version, and the run's overrides.

`packaged/<version>.json` is the released wheel's `ppo_trainer` as Hydra composes it without overrides, flat and with
every reference resolved; `packaged/references.json` lists which settings follow which. A test composes both again and
compares. So the plan detects typos, and settings are known before a stack is built.
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

from common.dotted import flatten
from trainers.cases import Settings
from trainers.verl.driver.overrides import sections_above

FOLDER = Path(__file__).parent / "packaged"
# A quoted text, the colon behind a key, and digits that YAML would read in base 60, as times of day.
_OF_YAML = re.compile(
    r"""('[^']*'|"[^"]*")|((?<=[{,])\s*[^\s:,{}\[\]'"]+:)(?=\S)|(?<![\w./])(\d+(?::\d+)+)(?![\w.:/])"""
)
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


@functools.cache
def defaults(version: str) -> Mapping[str, Any]:
    """verl's settings and their defaults, by dotted key; empty sections and lists are values."""
    file = FOLDER / f"{version}.json"
    return MappingProxyType(json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {})


@functools.cache
def references(version: str) -> Mapping[str, str]:
    """Setting -> the setting whose value it takes unless it is set itself."""
    found: dict[str, dict[str, str]] = json.loads((FOLDER / "references.json").read_text(encoding="utf-8"))
    return found.get(version, {})


def settings_of(args: Mapping[str, Any], composed: Mapping[str, Any] | None) -> Settings:
    """A run's settings: its version's defaults with its overrides, or as the stack has composed them."""
    given = dict(parsed(args.get("overrides", ())))
    if composed is not None:
        return Settings(composed, frozenset(given), composed=True)
    version = str(args.get("version"))
    filled = {section for key in given for section in sections_above(key)}
    values = {key: value for key, value in defaults(version).items() if key not in filled} | given
    follows = references(version)
    for key in follows:
        source = key
        while source not in given and source in follows:
            source = follows[source]
        if source in given:
            values[key] = given[source]
    return Settings(values, frozenset(given))


def parsed(overrides: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Hydra's overrides as flat keys and values; without a leading `+`; a deleted key is null."""
    for override in overrides:
        key, _, text = override.partition("=")
        if key.startswith("~"):
            yield key[1:], None
        else:
            yield from flatten({key: value_of(text)}).items()


def value_of(text: str) -> Any:
    """A value as Hydra reads it: as YAML, but 1e-6 is a number and {a:1} needs no space."""
    text = text.strip()
    if _NUMBER.fullmatch(text) and not text.lstrip("+-").isdigit():
        return float(text)
    try:
        value = yaml.safe_load(_OF_YAML.sub(_as_yaml, text))
    except yaml.YAMLError:
        return text
    return text if value is None and text not in ("null", "~", "") else value


def _as_yaml(found: re.Match[str]) -> str:
    """A part of Hydra's value as YAML wants it: a space behind a mapping's colon, quotes around 12:30."""
    quoted, key, digits = found.groups()
    return quoted or (f"{key} " if key else f"'{digits}'")
