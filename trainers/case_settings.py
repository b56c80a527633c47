"""What will a run's settings be, as far as it can be told without its stack?

A version's declared defaults with the run's overrides laid over them; where the stack has composed the settings
already, those.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from trainers.verl.defaults import DEFAULTS
from trainers.verl.driver.overrides import leaves

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?\s*([\w.]+)\s*(?:,[^}]*)?\}")


@dataclass(frozen=True)
class Settings:
    """Flat settings by dotted key; `composed` if the trainer itself has resolved them."""

    values: Mapping[str, Any]
    given: frozenset[str]
    """The keys that the run sets itself, whatever the defaults say."""
    composed: bool = False

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def get(self, key: str, default: Any = None) -> Any:
        """A setting's value; `default` where it is neither set nor declared."""
        return self.values.get(key, default)

    def int(self, key: str, default: int = 0) -> int:
        """A setting as a whole number; `default` where it is null or no number."""
        value = self.values.get(key)
        return int(value) if isinstance(value, int | float) else default

    def number(self, key: str) -> float | None:
        """A setting as a number; None where it is none."""
        value = self.values.get(key)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def true(self, key: str) -> bool:
        """Whether a switch is on."""
        return self.values.get(key) is True

    def under(self, prefix: str) -> dict[str, Any]:
        """The settings below a key that are not null, without its name."""
        start = f"{prefix}."
        found = {key.removeprefix(start): value for key, value in self.values.items() if key.startswith(start)}
        return {key: value for key, value in found.items() if value is not None and value != {}}


def settings_of(trainer: str, trainer_args: Mapping[str, Any], composed: Mapping[str, Any] | None) -> Settings:
    """A run's settings from its `trainer_args`, or from the `settings` of its settings.json."""
    if trainer != "verl":
        flat = dict(leaves(trainer_args))
        return Settings({**flat, **(composed or {})}, frozenset(flat), composed is not None)
    overrides = dict(parsed(trainer_args.get("overrides", ())))
    if composed is not None:
        return Settings(composed, frozenset(overrides), composed=True)
    values = {key: defaults[0] for key, defaults in DEFAULTS.get(str(trainer_args.get("version")), {}).items()}
    return Settings(_resolved({**values, **overrides}), frozenset(overrides))


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


def _resolved(values: dict[str, Any], depth: int = 5) -> dict[str, Any]:
    """References to other keys followed; one that leads nowhere stays as it is written."""
    for _ in range(depth):
        pending = {
            key: values[match[1]]
            for key, value in values.items()
            if isinstance(value, str) and (match := _REFERENCE.fullmatch(value)) and match[1] in values
        }
        if not pending:
            break
        values = {**values, **pending}
    return values


def differing(of: Sequence[Settings]) -> list[str]:
    """The keys whose values are not the same everywhere, in the order of their first appearance."""
    keys = dict.fromkeys(key for settings in of for key in settings.values)
    return [key for key in keys if any(one.get(key) != of[0].get(key) for one in of[1:])]
