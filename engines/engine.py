"""Defines what is asked of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Engine:
    """A rollout engine; one that is known by its name alone has all defaults."""

    name: str
    label: str
    """As people write it."""
    called: tuple[str, ...] = ()
    """Further names in configurations and tables."""
    in_trainer: bool = False
    """Whether the trainer's own process and model generate: there is no second copy of the weights."""
    number_bytes: int | None = None
    """Bytes of a weight where nobody names a number format; None where that is the checkpoint's."""
    at_once: str = ""
    """Its own option for the most sequences that it decodes at once."""
    otherwise: Mapping[str, str] = field(default_factory=dict)
    """Its own options with which an iteration writes several tokens or reads other bytes, and what they do."""
