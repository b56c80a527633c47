"""Defines what is asked of an engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Engine:
    """A rollout engine; one that is known by its name alone has all defaults."""

    name: str
    label: str
    """As people write it."""
    aliases: tuple[str, ...] = ()
    """Further names in configurations and tables."""
    in_trainer: bool = False
    """Whether the trainer's own process and model generate: there is no second copy of the weights."""
    number_bytes: int | None = None
    """Bytes of a weight where nobody names a number format; None where that is the checkpoint's."""
    max_sequences_option: str = ""
    """Its own option for the most sequences that it decodes at once."""
    unmodelled_options: Mapping[str, str] = field(default_factory=dict)
    """Its own options with which an iteration writes several tokens or reads other bytes, and what they do."""


class ReplayEngine(Protocol):
    """An engine alone: `engines.<name>.replay` has `build(model, policy, settings, threads)`, which gives one.

    `model` is the policy's folder, `policy` its model of transformers, `settings` a replay's (trainers/replay). With
    `STARTS_ITS_SHARDS` one process builds a tensor parallel engine, else each of its processes builds its shard.
    """

    sleeps: bool
    """Whether it gives its memory back between steps."""

    def generate(self, prompts: Sequence[list[int]], lengths: Sequence[int], greedy: bool = False) -> list[list[int]]:
        """One completion for each prompt, each of its own length in tokens, whatever the model would end with."""

    def update(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Take all weights anew, as after a training step; (name, tensor)."""

    def sleep(self) -> None:
        """Give memory back."""

    def wake(self) -> None:
        """Take it again."""

    def settings(self) -> dict[str, Any]:
        """The settings that it finally holds."""

    def close(self) -> None:
        """End its processes."""
