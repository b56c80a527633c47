"""What a declared timer tree is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property
from typing import Any

# The words that trainers share. A verl `gen` and a TRL `generate` are both "generation", so that arms
# of different trainers can stand in one stacked bar.
CATEGORIES = ("generation", "weight sync", "log-probs", "rewards", "loss+backward", "optimizer", "other")


def release_of(version: str) -> str:
    """A version without its tag's `v` and its build's name: `0.6.0` of `V0.6.0+cu124`."""
    return re.sub(r"^[vV](?=\d)|\+.*$", "", version)


@dataclass(frozen=True)
class Phase:
    """One timer: its path in the step's tree, the words that a reader sees, and its category.

    A last path segment of `*` stands for any name (a reward function's, say). `category` is that of the
    phase's own time, the part which no child covers. `keys` are the names that a trainer with flat keys
    gives it (trainers/timers/flat.py); phases that share a key are places where the one timer may lie, the
    declared one first. What is `occasional` is no part of an ordinary step: a step that has it is not counted.
    """

    path: str
    label: str
    description: str
    category: str
    keys: tuple[str, ...] = ()
    occasional: bool = False

    def __post_init__(self) -> None:
        if self.category not in CATEGORIES:
            raise ValueError(f"category of {self.path} must be one of {CATEGORIES} (got {self.category!r})")

    @property
    def depth(self) -> int:
        return self.path.count("/")


def keyed(
    key: str, label: str, description: str, category: str = "other", within: str = "step", name: str = "", **more: bool
) -> Phase:
    """A phase inside another, logged under one flat key, by which it is called where it has no name."""
    return Phase(f"{within}/{name or key}", label, description, category, (key,), **more)


@dataclass(frozen=True)
class TimerTree:
    """The timers that one release series of a trainer emits with some engines.

    `series` is a version prefix such as `1.16`; `phases` are in the order in which they are shown, parents
    before children, the root first; `mode` tells the loops of one release apart, "" is the default one.
    `beside` are the flat keys that are no part of a sum, as (pattern, unit, name of the scalar). `beside_if` are
    those whose names the user chose: (a scalar that is logged with such a timer, unit, name of the scalar), `*` being
    the timer's name. `marks` are flat keys, as patterns, that no other loop of the release logs. `overlap` says why the
    phases of a step run at the same time, and that there is nothing to divide then. `unclocked` says what of a step's
    wall clock is not in its seconds, where no clock of the trainer's runs over all of it.
    """

    trainer: str
    series: str
    engines: tuple[str, ...]
    phases: tuple[Phase, ...]
    source: str
    mode: str = ""
    beside: tuple[tuple[str, str, str], ...] = ()
    beside_if: tuple[tuple[str, str, str], ...] = ()
    marks: tuple[str, ...] = ()
    overlap: str = ""
    unclocked: str = ""

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.trainer, self.series, self.mode)))

    @property
    def flat(self) -> bool:
        """Whether the trainer logs its timers under flat keys, which the tree maps to paths."""
        return any(p.keys for p in self.phases)

    @property
    def root(self) -> str:
        return self.phases[0].path

    def matches(self, version: str) -> bool:
        """Whether a version is of this series, however it is written (`release_of`)."""
        version = release_of(version)
        return version == self.series or version.startswith(self.series + ".")

    def declared(self, path: str) -> Phase | None:
        """The declaration that covers a path, by itself or through a `*`; None when there is none."""
        wildcard = path.rsplit("/", 1)[0] + "/*"
        return next((p for p in self.phases if p.path in (path, wildcard)), None)

    def phase(self, path: str) -> Phase:
        """A phase to show for any path: a declared one's words, or the bare name marked as undeclared."""
        found = self.declared(path)
        name = path.rsplit("/", 1)[-1]
        if found is None:
            return Phase(path, f"{name} (undeclared)", f"Not in the declared timers of {self.name}.", "other")
        return Phase(path, found.label.replace("*", name), found.description, found.category)

    def unit_beside(self, scalar: str) -> str | None:
        """The unit of a scalar that comes from a timer key which is no part of a sum; None for any other scalar."""
        return next((unit for name, unit in self._beside_units if name(scalar)), None)

    @cached_property
    def _beside_units(self) -> list[tuple[Callable[[str], Any], str]]:
        names = [(name.replace("*", pattern), unit) for pattern, unit, name in self.beside]
        names += [(name, unit) for _, unit, name in self.beside_if]
        return [(re.compile(translate(name)).match, unit) for name, unit in names]

    @cached_property
    def paths_by_key(self) -> dict[str, list[str]]:
        """The paths of each flat key, the declared one first."""
        paths: dict[str, list[str]] = {}
        for phase in self.phases:
            for key in phase.keys:
                paths.setdefault(key, []).append(phase.path)
        return paths

    def in_order(self, paths: Iterable[str]) -> list[str]:
        """Paths in depth-first order: declared siblings as declared, then the undeclared by name."""
        return in_order(paths, (self,))


def overlapping_tree(
    trainer: str,
    series: str,
    engines: tuple[str, ...],
    source: str,
    keys: tuple[str, ...],
    description: str,
    *,
    overlap: str,
    mode: str = "",
    marks: tuple[str, ...] = (),
    beside: tuple[tuple[str, str, str], ...] = (),
) -> TimerTree:
    """The tree of a loop whose timers run at the same time, or may: a step, its other timers kept in no sum."""
    step = Phase("step", "Step", description, "other", keys)
    beside = (*beside, ("*", "s", "overlapping_s/*"))
    return TimerTree(trainer, series, engines, (step,), source, mode, beside, marks=marks, overlap=overlap)


def in_order(paths: Iterable[str], trees: Sequence[TimerTree]) -> list[str]:
    """Paths of several trees in depth-first order: siblings as the first tree with them declares, then by name."""
    rank: dict[str, int] = {}
    for tree in trees:
        for phase in tree.phases:
            rank.setdefault(phase.path, len(rank))

    def key(path: str) -> list[tuple[int, str]]:
        parts = path.split("/")
        heads = ["/".join(parts[: i + 1]) for i in range(len(parts))]
        return [(rank.get(head, len(rank)), part) for head, part in zip(heads, parts, strict=True)]

    return sorted(set(paths), key=key)
