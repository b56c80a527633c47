"""Defines an engine's facts, which are in its folder's `engine.json`, and the interface of a replayed engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from common.dotted import frozen
from engines.printed import PrintedLine


@dataclass(frozen=True)
class Engine:
    """A rollout engine; an unknown engine has only a name and defaults."""

    name: str
    label: str
    """Its name in text."""
    aliases: tuple[str, ...] = ()
    """Other names in configurations and tables."""
    packages: tuple[str, ...] = ()
    """The packages of which an environment with this engine has one."""
    in_trainer: bool = False
    """Whether the trainer's own process and model generate, without a second copy of the weights."""
    number_bytes: int | None = None
    """Bytes per weight with the default number format ("auto": float16 or bfloat16); None: the checkpoint's format."""
    max_sequences_option: str = ""
    """Its option for the maximum number of sequences that it decodes at the same time."""
    reported: Callable[[Mapping[str, Any]], dict[str, object]] = lambda settings: {}
    """What its own settings say under the names of engines/reported.py: options, or as it runs, flat."""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """A term of engines/reported.py -> its options that decide it; a term without any is what the engine is."""
    workload_options: tuple[str, ...] = ()
    """Its options that a replay's other settings decide."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What it runs with on a GPU where a trainer gives it no options of its own, as far as all its releases agree."""
    measured: tuple[str, ...] = ()
    """What else of its final settings `reported` reads: the engine makes it from its options and its GPU."""
    printed: tuple[PrintedLine, ...] = ()
    """The lines of its log that tell its settings when it starts."""
    unmodelled_options: Mapping[str, str] = field(default_factory=dict)
    """Options that change the tokens or bytes of an iteration, so that the floor is wrong; with their effect."""
    attention_packages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """A value of its option `attention_backend`, in lower case -> packages of which a stack needs one for it."""


def engine_in(folder: Path, reported: Callable[[Mapping[str, Any]], dict[str, object]] = lambda settings: {}) -> Engine:
    """The engine of a folder: its `engine.json` has the fields of `Engine`, and `about`."""
    facts = json.loads((folder / "engine.json").read_text(encoding="utf-8"))
    printed = tuple(PrintedLine.of_row(row) for row in facts.pop("printed", ()))
    del facts["about"]
    return Engine(name=folder.name, reported=reported, printed=printed, **frozen(facts))


class ReplayEngine(Protocol):
    """An engine without a trainer; `engines.<name>.replay.build(model, policy, settings, threads, log)` returns one.

    `model` is the policy's folder, `policy` its transformers model, `settings` those of trainers/replay, `log` the file
    of an engine's server. An engine of several GPUs starts its own processes.
    """

    sleeps: bool
    """Whether it frees its memory between steps."""

    def generate(self, prompts: Sequence[list[int]], lengths: Sequence[int], greedy: bool = False) -> list[list[int]]:
        """One completion for each prompt with the given length in tokens; end tokens are ignored."""

    def update(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Load all weights, as after a training step."""

    def sleep(self) -> None:
        """Free memory."""

    def wake(self) -> None:
        """Allocate it again."""

    def settings(self) -> dict[str, Any]:
        """Its final settings."""

    def close(self) -> None:
        """End its processes."""
