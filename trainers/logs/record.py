"""What every source gives: one record for each training step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from common.verdicts import Verdict
from trainers.logs.numbers import packed

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
    """Records by step, what was odd about the file, and the steps that it holds more than once (`again`)."""

    records: dict[int, StepRecord] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    again: set[int] = field(default_factory=set)


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
