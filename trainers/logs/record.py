"""Defines what every source of steps gives: one record for each training step, its numbers packed."""

from __future__ import annotations

import struct
from collections.abc import Collection, ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass, field, replace
from pathlib import Path
from sys import intern
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

from common.verdicts import Verdict


class _Shape:
    """The names that rows of numbers share, and how their values are packed."""

    __slots__ = ("__weakref__", "last", "packing", "places")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.places = {intern(name): place for place, name in enumerate(names)}
        self.packing = struct.Struct(f"{len(names)}d")
        self.last = b""


_shapes: WeakValueDictionary[tuple[str, ...], _Shape] = WeakValueDictionary()
_VALUE = struct.Struct("d")


class Numbers(Mapping[str, float]):
    """A read-only mapping of 8 bytes a number: rows with the same names, in the same order, share these.

    A log of 100,000 steps of 60 numbers takes some 60 MB so, and ten times that as dictionaries.
    """

    __slots__ = ("_shape", "_values")

    def __init__(self, numbers: Mapping[str, float]) -> None:
        names = tuple(numbers)
        shape = _shapes.get(names)
        if shape is None:
            shape = _Shape(names)
            _shapes[tuple(shape.places)] = shape
        values = shape.packing.pack(*numbers.values())
        # Equal rows, such as those of the rounding to three decimals, are kept once.
        if values == shape.last:
            values = shape.last
        shape.last = values
        self._shape, self._values = shape, values

    def __getitem__(self, name: str) -> float:
        value: float = _VALUE.unpack_from(self._values, 8 * self._shape.places[name])[0]
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._shape.places)

    def __len__(self) -> int:
        return len(self._shape.places)

    def __contains__(self, name: object) -> bool:
        return name in self._shape.places

    def __eq__(self, other: object) -> bool:
        # Of packed values, not-a-number is what it is.
        same = isinstance(other, Numbers) and self._shape is other._shape and self._values == other._values
        return same or super().__eq__(other)

    def keys(self) -> KeysView[str]:
        return self._shape.places.keys()

    def as_dict(self) -> dict[str, float]:
        """The numbers as a dictionary of its own, which may be changed."""
        return dict(zip(self._shape.places, self._shape.packing.unpack(self._values), strict=True))

    def items(self) -> ItemsView[str, float]:
        return self.as_dict().items()

    def values(self) -> ValuesView[float]:
        return self.as_dict().values()

    def __repr__(self) -> str:
        return repr(self.as_dict())


def packed(numbers: Mapping[str, float]) -> Numbers:
    """The same numbers in little memory."""
    return numbers if isinstance(numbers, Numbers) else Numbers(numbers)


# What trainers put before the names of their timers.
TIMERS = "timing_s/"
# The scalar that says of how many steps, up to its own, a record holds the means; it is there where that is not one.
STEPS_LOGGED = "steps_logged"
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One finished training step as one source holds it.

    `phases` are seconds by path in the timer tree; `scalars` keep the trainer's names; `samples` are lists
    such as response lengths in tokens; `line` is the line or the record number in `file`. A record that is the mean of
    several steps has their number as the scalar `STEPS_LOGGED`. `resumed` is None where the source does not say.
    `rounding` is half a unit of the last printed digit, in the value's own unit,
    under the value's full name (`timing_s/gen`, `response_length/mean`); a value that is not there has its full
    precision. `origins` is where a value was read, under the same names, if not on `line` of `file`. `time` is when
    the step was logged, in seconds since 1970, and `elapsed_s` are the seconds since its process began, where the
    source says so.

    Whatever mappings it is made of, it keeps their numbers packed (`Numbers`) and is not changed: `replace` makes
    another one.
    """

    step: int
    phases: Mapping[str, float]
    scalars: Mapping[str, float]
    samples: Mapping[str, list[float]]
    resumed: bool | None
    file: Path
    line: int
    rounding: Mapping[str, float] = field(default_factory=dict)
    origins: Mapping[str, tuple[Path, int]] = field(default_factory=dict)
    time: float | None = None
    elapsed_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("phases", "scalars", "rounding"):
            object.__setattr__(self, name, packed(getattr(self, name)))
        for name in ("samples", "origins"):
            object.__setattr__(self, name, getattr(self, name) or NOTHING)


def timers_as_phases(record: StepRecord, without: Collection[str] = ()) -> StepRecord:
    """A record whose timers are among its scalars and named by their paths, with these as its phases."""
    scalars = record.scalars
    phases = {name.removeprefix(TIMERS): value for name, value in scalars.items() if name.startswith(TIMERS)}
    rest = {name: value for name, value in scalars.items() if not name.startswith(TIMERS) and name not in without}
    return replace(record, phases=phases, scalars=rest)


@dataclass(frozen=True)
class TablePhase:
    """A phase of a table with a column `parent`: its parent (empty for the whole step), its category (empty where none
    is given), and where both were read first."""

    parent: str
    category: str
    line: int
    file: Path

    @property
    def place(self) -> str:
        return f"line {self.line} of {self.file}"


@dataclass
class SourceRead:
    """Records by step, what was odd about the file, and the steps that it holds more than once (`repeated`)."""

    records: dict[int, StepRecord] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    repeated: set[int] = field(default_factory=set)
    written_by: str = ""
    """The trainer that the names in its rows tell, where they tell one."""


@dataclass
class Imported:
    """What one source of a run that was not trained here holds, and what it says about that run.

    `config` is the run's whole configuration as the source holds it, nested or with dotted keys; `overrides` are those
    of its command line, by dotted key. `versions` are those of packages, by name; `hardware` has the keys of
    done.json's where known; `git` the revision of the run's code. `started` and `finished` are seconds since 1970.
    `format` is the name that `import.format` gives it. `selected` are the values, by column, that tell the run's rows
    from those of others in one table. `tree` are the phases of a table with a column `parent`, None of other sources.
    """

    read: SourceRead
    format: str
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    git: dict[str, Any] | None = None
    started: float | None = None
    finished: float | None = None
    selected: dict[str, str] = field(default_factory=dict)
    tree: dict[str, TablePhase] | None = None
    overrides: dict[str, str] = field(default_factory=dict)
    names_left_out: frozenset[str] = frozenset()
    """What lines are named that begin like a step and are left out: they may tell the loop."""


def as_number(raw: object) -> float | None:
    """A JSON value as a float, None when it is no number; not-a-number comes as the strings wandb writes."""
    if isinstance(raw, bool):
        return None
    if isinstance(raw, int | float):
        return float(raw)
    if isinstance(raw, str) and raw in ("NaN", "Infinity", "-Infinity", "+Infinity"):
        return float(raw)
    return None
