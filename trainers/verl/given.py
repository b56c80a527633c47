"""Reads a run's settings of verl: Hydra's overrides as the plan gives them, or the whole configuration as composed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from common.dotted import flatten
from trainers.cases import Settings
from trainers.described import lists, table_in
from trainers.verl.releases import release_named

# A quoted text, the colon behind a key, and digits that YAML would read in base 60, as times of day.
_OF_YAML = re.compile(
    r"""('[^']*'|"[^"]*")|((?<=[{,])\s*[^\s:,{}\[\]'"]+:)(?=\S)|(?<![\w./])(\d+(?::\d+)+)(?![\w.:/])"""
)
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")

TABLE = table_in(Path(__file__).parent)
_REWARDS, _TEACHERS = ("reward.reward_model", "reward_model"), "distillation"
KEYS = lists(TABLE["keys"])
"""A common name -> verl's settings for it (`Trainer.keys`)."""


def settings_of(args: Mapping[str, Any], composed: Mapping[str, Any] | None) -> Settings:
    """A run's settings as the stack has composed them; before that its overrides, and few of its release's defaults."""
    given = dict(parsed(args.get("overrides", ())))
    if composed is not None:
        return Settings(composed, frozenset(given), composed=True)
    return Settings({**release_named(str(args.get("version"))).defaults, **given}, frozenset(given))


def pools_beside(settings: Settings) -> dict[str, int]:
    """The GPUs of each pool beside the trainer's and the engines': of reward models (0.6 to 0.8 name them otherwise),
    and of teachers.
    """
    sections = {of: settings.true(f"{of}.enable_resource_pool") for of in _REWARDS} | {
        _TEACHERS: settings.true(f"{_TEACHERS}.enabled")
    }
    return {
        of: settings.int(f"{of}.nnodes") * settings.int(f"{of}.n_gpus_per_node") for of, has in sections.items() if has
    }


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
