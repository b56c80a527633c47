"""Defines the record of a training step that every source of steps returns, and the names of a step's numbers in a row.

Its numbers are packed.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass, field, replace
from pathlib import Path
from sys import intern
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

from common.verdicts import Verdict


class _Shape:
    """The names that rows of numbers share, and the packing of their values."""

    __slots__ = ("__weakref__", "last", "packing", "places")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.places = {intern(name): place for place, name in enumerate(names)}
        self.packing = struct.Struct(f"{len(names)}d")
        self.last = b""


_shapes: WeakValueDictionary[tuple[str, ...], _Shape] = WeakValueDictionary()
_VALUE = struct.Struct("d")


class Numbers(Mapping[str, float]):
    """A read-only mapping with 8 bytes a number. Rows with the same names in the same order share the names.

    A log of 100,000 steps with 60 numbers each takes about 60 MB; dictionaries take ten times as much.
    """

    __slots__ = ("_shape", "_values")

    def __init__(self, numbers: Mapping[str, float]) -> None:
        names = tuple(numbers)
        shape = _shapes.get(names)
        if shape is None:
            shape = _Shape(names)
            _shapes[tuple(shape.places)] = shape
        values = shape.packing.pack(*numbers.values())
        # Equal rows (such as the rounding of each step) are stored once.
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
        # Packed values of not-a-number are equal.
        same = isinstance(other, Numbers) and self._shape is other._shape and self._values == other._values
        return same or super().__eq__(other)

    def keys(self) -> KeysView[str]:
        return self._shape.places.keys()

    def as_dict(self) -> dict[str, float]:
        """A copy as a dictionary, which the caller may change."""
        return dict(zip(self._shape.places, self._shape.packing.unpack(self._values), strict=True))

    def items(self) -> ItemsView[str, float]:
        return self.as_dict().items()

    def values(self) -> ValuesView[float]:
        return self.as_dict().values()

    def __repr__(self) -> str:
        return repr(self.as_dict())


# The prefix of timer names.
TIMERS = "timing_s/"
# The scalar with the number of steps, up to its own, that a record averages; missing for a single step.
STEPS_LOGGED = "steps_logged"
_WANDB_NON_FINITE = ("NaN", "Infinity", "-Infinity", "+Infinity")
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One finished training step as one source logs it. Its numbers are packed (`Numbers`); it is never changed.

    - `phases`: seconds by path in the timer tree. `scalars` keep the trainer's names. A record that averages several
      steps has their number as the scalar `STEPS_LOGGED`.
    - `samples`: lists, such as response lengths in tokens.
    - `resumed`: None if the source does not report it.
    - `line`: the line or the record number in `file`.
    - `rounding`: half a unit of the last printed digit, under the value's full name (`timing_s/gen`,
      `response_length/mean`). A value without an entry has full precision.
    - `origins`: file and line of a value, under the same names, if not `line` of `file`.
    - `time`: when the step was logged, in seconds since 1970. `elapsed_s`: seconds since its process began.
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
            numbers = getattr(self, name)
            object.__setattr__(self, name, numbers if isinstance(numbers, Numbers) else Numbers(numbers))
        for name in ("samples", "origins"):
            object.__setattr__(self, name, getattr(self, name) or NOTHING)


def timers_as_phases(record: StepRecord, without: Collection[str] = ()) -> StepRecord:
    """A record whose timers are scalars named by their paths, with those moved to its phases."""
    scalars = record.scalars
    phases = {name.removeprefix(TIMERS): value for name, value in scalars.items() if name.startswith(TIMERS)}
    rest = {name: value for name, value in scalars.items() if not name.startswith(TIMERS) and name not in without}
    return replace(record, phases=phases, scalars=rest)


@dataclass(frozen=True)
class TablePhase:
    """A phase of a table with a column `parent`: its parent (empty for the whole step), its category (may be empty),
    and the line that gives them first."""

    parent: str
    category: str
    line: int
    file: Path

    @property
    def place(self) -> str:
        return f"line {self.line} of {self.file}"


@dataclass
class SourceRead:
    """Records by step, verdicts about the file, and the steps that it has more than once (`repeated`)."""

    records: dict[int, StepRecord] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    repeated: set[int] = field(default_factory=set)
    written_by: str = ""
    """The trainer that the names in its rows identify, if any."""
    untimed_from: int | None = None
    """The first step of a row before all records: a clock cannot time the steps of its first row."""


@dataclass(frozen=True, slots=True)
class LaterConfiguration:
    """A whole configuration that a run went on with, and the first step of it."""

    from_step: int
    config: dict[str, Any]


@dataclass
class Imported:
    """The steps of one source of an imported run, and the facts about the run in it.

    - `format`: its name in `import.format`.
    - `config`: the run's whole configuration at its first step, nested or with dotted keys; `later` has the others,
      by their first steps, which may equal it. `overrides`: its command line's, dotted.
    - `versions`: package versions by name. `hardware`: the keys of done.json's, where known. `git`: the revision of
      the run's code. `started` and `finished`: seconds since 1970.
    - `selected`: the values, by column, that select the run's rows in a table of several runs.
    - `tree`: the phases of a table with a column `parent`; None for other sources.
    - `column`: of a plain table: the `name` of the column with the step's seconds, without a unit, and the `unit`, None
      where neither the name nor the user says it; None for other sources.
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
    column: dict[str, str | None] | None = None
    overrides: dict[str, str] = field(default_factory=dict)
    later: list[LaterConfiguration] = field(default_factory=list)
    names_left_out: frozenset[str] = frozenset()
    """Names of lines that begin like a step and are skipped; they may identify the loop."""


def as_number(raw: object) -> float | None:
    """A JSON value as a float, also from wandb's texts for not-a-number and infinity; None if it is no number."""
    if isinstance(raw, bool):
        return None
    if isinstance(raw, int | float) or (isinstance(raw, str) and raw in _WANDB_NON_FINITE):
        return float(raw)
    return None


def finite_number(raw: object) -> float | None:
    """A JSON value as a float; None for any that is no finite number, as one of hundreds of digits."""
    try:
        number = as_number(raw)
    except OverflowError:
        return None
    return number if number is not None and math.isfinite(number) else None


# The wall clock from one logged step to the next, for trainers that time no step.
WALL = TIMERS + "wall"
# Marks the step after an evaluation that no timer covers.
EVALUATION = "evaluation"
EVALUATED_STEP = TIMERS + EVALUATION


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """A step's number, counted from 1, its numbers, and whether its time is among them."""

    step: int
    numbers: dict[str, float]
    timed: bool


@dataclass(frozen=True, slots=True)
class StepNames:
    """The names under which a trainer logs a step to wandb.

    - `mark`: a name in every row of a step that no other trainer logs.
    - `counter`: the step's number; it starts at `first`.
    - `timers`: prefixes and suffixes of timer names. `total` is the timer of the whole step, without them.
    - `evaluated`: a name in the rows of an evaluation that no timer covers. The step after it gets the timer
      `evaluation` with 0 seconds.
    - `derived` computes further scalars from a row's numbers; they identify the loop.
    """

    mark: str
    counter: str
    total: str
    timers: tuple[tuple[str, str], ...]
    first: int = 1
    evaluated: str = ""
    derived: Callable[[Mapping[str, float]], Mapping[str, float]] = lambda numbers: {}

    @property
    def by_the_wall(self) -> bool:
        """Whether a step's time is the wall clock between two rows, because no timer covers it."""
        return self.total == WALL.removeprefix(TIMERS)

    def scalar_name(self, name: str) -> str:
        """The project's name of a logged number: `timing_s/<name>` for a timer, else the same."""
        for prefix, suffix in self.timers:
            if name.startswith(prefix) and name.endswith(suffix) and len(name) > len(prefix) + len(suffix):
                return TIMERS + name[len(prefix) : len(name) - len(suffix)]
        return name

    def logged_step(self, numbers: Mapping[str, float], counted: float | None) -> LoggedStep | None:
        """The step of a row; `counted` is its counter's value. None if the row belongs to no step."""
        if counted is None or not counted.is_integer() or counted < self.first:
            return None
        mine = {self.scalar_name(name): value for name, value in numbers.items() if name != self.counter}
        mine |= self.derived(mine)
        return LoggedStep(int(counted) + 1 - self.first, mine, self.by_the_wall or TIMERS + self.total in mine)
