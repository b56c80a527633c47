"""What every source gives: one record for each training step."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from analysis.verdicts import Verdict

# What trainers put before the names of their timers.
TIMERS = "timing_s/"


@dataclass(frozen=True)
class StepRecord:
    """One finished training step as one source holds it.

    `phases` are seconds by path in the timer tree; `scalars` keep the trainer's names; `samples` are lists
    such as response lengths in tokens; `line` is the line or the record number in `file`. `resumed` is None
    where the source does not say.
    """

    step: int
    phases: dict[str, float]
    scalars: dict[str, float]
    samples: dict[str, list[float]]
    resumed: bool | None
    file: Path
    line: int


@dataclass
class SourceRead:
    """Records by step, and what was odd about the file."""

    records: dict[int, StepRecord] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)


def as_number(raw: object) -> float | None:
    """A JSON value as a float, None when it is no number; not-a-number comes as the strings wandb writes."""
    if isinstance(raw, bool):
        return None
    if isinstance(raw, int | float):
        return float(raw)
    if isinstance(raw, str) and raw in ("NaN", "Infinity", "-Infinity", "+Infinity"):
        return float(raw)
    return None
