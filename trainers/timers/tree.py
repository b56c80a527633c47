"""Defines timer trees: a trainer release's timers and how they nest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property
from itertools import zip_longest
from typing import Any

from engines import UNKNOWN

# All trainers share these: verl's `gen` and TRL's `generate` are both "generation", so one stacked bar fits both.
CATEGORIES = ("generation", "weight sync", "log-probs", "rewards", "loss+backward", "optimizer", "other")


def release_of(version: str) -> str:
    """A version without the tag's `v` and the build's name: `0.6.0` for `V0.6.0+cu124`."""
    return re.sub(r"^[vV](?=\d)|\+.*$", "", version)


def release_numbers(version: str) -> list[int]:
    """The leading numbers of a version: [0, 6, 0] for `0.6.0rc1`."""
    found = re.match(r"\d+(?:\.\d+)*", release_of(version))
    return [int(part) for part in found[0].split(".")] if found else []


def release_distance(version: str, series: str) -> tuple[float, tuple[int, ...]]:
    """How far a version is from a series; of two as far, the newer is less.

    A version without numbers (`main`) is as far from all.
    """
    wanted, declared = release_numbers(version), release_numbers(series)
    apart = abs(
        sum(1000.0**-place * (a - b) for place, (a, b) in enumerate(zip_longest(wanted, declared, fillvalue=0)))
    )
    return apart if wanted else 0.0, tuple(-part for part in declared)


NATIVE = "native"
"""The mode of a release's own timers, where our driver times its runs otherwise."""


@dataclass(frozen=True)
class Phase:
    """One timer: its path in the step's tree, the label and description for the reader, and its category.

    - `path`: a last segment of `*` matches any name (such as a reward function's).
    - `category`: of the phase's own time, which no child covers.
    - `keys`: its names in a log with flat keys (trainers/timers/flat.py). Phases that share a key are the possible
      places of one timer, the declared one first.
    - `occasional`: a checkpoint or an evaluation, which is not in an ordinary step; it is compared with no step.
    - `polled_s`: seconds between two looks whether what it waits for has ended: it is logged up to so much too long.
    """

    path: str
    label: str
    description: str
    category: str
    keys: tuple[str, ...] = ()
    occasional: bool = False
    polled_s: float = 0.0

    def __post_init__(self) -> None:
        if self.category not in CATEGORIES:
            raise ValueError(f"category of {self.path} must be one of {CATEGORIES} (got {self.category!r})")

    @property
    def depth(self) -> int:
        return self.path.count("/")


@dataclass(frozen=True)
class TimerTree:
    """The timers that one release series of a trainer logs with some engines.

    - `series`: a version prefix such as `1.16`. `mode`: the loop of the release; "" is the default.
    - `phases`: in display order, the root first, parents before children.
    - `not_summed`: flat keys outside the sum, as (pattern, unit, scalar name). `not_summed_if`: those with a user's
      name, as (a scalar logged with the timer, unit, scalar name); `*` is the timer's name.
    - `marks`: patterns of flat keys that no other loop of the release logs.
    - `overlap`: why the phases of a step run at the same time; such a step is not divided.
    - `unclocked`: the part of a step's wall clock outside its seconds, if no timer covers all of it.
    - `padded`: whether the loop pads a batch to its longest response, so that each of that length counts as truncated.
    """

    trainer: str
    series: str
    engines: tuple[str, ...]
    phases: tuple[Phase, ...]
    source: str
    mode: str = ""
    not_summed: tuple[tuple[str, str, str], ...] = ()
    not_summed_if: tuple[tuple[str, str, str], ...] = ()
    marks: tuple[str, ...] = ()
    overlap: str = ""
    unclocked: str = ""
    padded: bool = False

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.trainer, self.series, self.mode)))

    @property
    def flat(self) -> bool:
        """Whether the trainer logs flat keys, which the tree maps to paths."""
        return any(p.keys for p in self.phases)

    @property
    def root(self) -> str:
        return self.phases[0].path

    @property
    def generating(self) -> list[str]:
        """The phases in which engines generate, without those inside of such."""
        paths = [phase.path for phase in self.phases if phase.category == "generation"]
        return [path for path in paths if not any(path.startswith(f"{other}/") for other in paths)]

    def has(self, engine: str) -> bool:
        """Whether it is the tree of runs with this engine; any tree is one of an engine that is not known."""
        return engine == UNKNOWN or engine in self.engines

    def matches(self, version: str) -> bool:
        """Whether a version belongs to this series, in any spelling (`release_of`)."""
        version = release_of(version)
        return version == self.series or version.startswith(self.series + ".")

    def declared(self, path: str) -> Phase | None:
        """The declared phase for a path, exact or by `*`; None without one. Tables have an occasional one outside."""
        wildcard = path.rsplit("/", 1)[0] + "/*"
        inside = f"{self.root}/{path}"
        return next((p for p in self.phases if p.path in (path, wildcard) or (p.occasional and p.path == inside)), None)

    def is_occasional(self, path: str) -> bool:
        """Whether a path is declared as occasional, or lies in a phase that is."""
        return any(p.occasional and f"{path}/".startswith(f"{p.path}/") for p in self.phases)

    def phase(self, path: str) -> Phase:
        """The phase to show for any path; an undeclared one gets its name and a mark."""
        found = self.declared(path)
        name = path.rsplit("/", 1)[-1]
        if found is None:
            return Phase(path, f"{name} (undeclared)", f"Not in the declared timers of {self.name}.", "other")
        return Phase(path, found.label.replace("*", name), found.description, found.category)

    def unit_not_summed(self, scalar: str) -> str | None:
        """The unit of a scalar from a timer key outside the sum; None for any other scalar."""
        return next((unit for name, unit in self._not_summed_units if name(scalar)), None)

    @cached_property
    def _not_summed_units(self) -> list[tuple[Callable[[str], Any], str]]:
        names = [(name.replace("*", pattern), unit) for pattern, unit, name in self.not_summed]
        names += [(name, unit) for _, unit, name in self.not_summed_if]
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
        """Paths in depth-first order: declared siblings first, in their order, then undeclared ones by name."""
        return in_order(paths, (self,))


def in_order(paths: Iterable[str], trees: Sequence[TimerTree]) -> list[str]:
    """Paths of several trees in depth-first order; siblings in the order of the first tree with them, then by name."""
    rank: dict[str, int] = {}
    for tree in trees:
        for phase in tree.phases:
            rank.setdefault(phase.path, len(rank))

    def key(path: str) -> list[tuple[int, str]]:
        parts = path.split("/")
        heads = ["/".join(parts[: i + 1]) for i in range(len(parts))]
        return [(rank.get(head, len(rank)), part) for head, part in zip(heads, parts, strict=True)]

    return sorted(set(paths), key=key)
