"""Finds where the counters of a log fall: there its trainer was started again, or another run begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common.verdicts import Verdict, count_of
from trainers.logs.record import STEPS_LOGGED, StepRecord

# What the training counts, by the names that a record has: transformers' and TRL's, then verl's. A checkpoint keeps
# them, but for verl's epoch up to 0.6 and TRL's tokens in 0.16, which begin anew at each start, and for
# transformers' epoch where it skips no data (ignore_data_skip).
OF_TRAINING = (
    "train/global_step",
    "train/num_tokens",
    "train/num_input_tokens_seen",
    "train/epoch",
    "training/global_step",
    "training/epoch",
)
# Seconds since the process began: wandb's `_runtime`, ms-swift's `elapsed_time`.
ELAPSED = "elapsed time"
# A clock that was set right is no restart.
CLOCK_TOLERANCE_S = 2.0


@dataclass(frozen=True)
class Fall:
    """A counter that is lower in a record than in the one before it."""

    name: str
    before: float
    after: float

    def __str__(self) -> str:
        return f"{self.name} falls from {self.before:.12g} to {self.after:.12g}"


def falls(before: StepRecord, after: StepRecord) -> list[Fall]:
    """The counters that fall from one logged record to the next by more than their rounding."""
    found = []
    for name in OF_TRAINING:
        if name in before.scalars and name in after.scalars:
            high, low = before.scalars[name], after.scalars[name]
            if low < high - before.rounding.get(name, 0.0) - after.rounding.get(name, 0.0):
                found.append(Fall(name, high, low))
    a, b = before.elapsed_s, after.elapsed_s
    return found if a is None or b is None or b >= a - CLOCK_TOLERANCE_S else [*found, Fall(ELAPSED, a, b)]


def all_fall(before: StepRecord, after: StepRecord) -> list[Fall]:
    """The falls where no counter of the training that both records have goes on; one that stays 0 does not."""
    fell = falls(before, after)
    counted = [name for name in OF_TRAINING if name in before.scalars and name in after.scalars]
    if any(after.scalars[name] >= before.scalars[name] and after.scalars[name] > 0.0 for name in counted):
        return []
    return fell if any(fall.name in counted for fall in fell) else []


@dataclass(frozen=True)
class Restart:
    """Two records, one behind the other, of which the later counts more steps and less of something else."""

    before: StepRecord
    after: StepRecord
    fell: Sequence[Fall]

    @property
    def goes_on(self) -> bool:
        """Whether no step is missing between the two."""
        return self.after.step <= self.before.step + self.after.scalars.get(STEPS_LOGGED, 1.0)


def restart_verdicts(found: Sequence[Restart], shown_as: str, remedy: Callable[[Restart], str]) -> list[Verdict]:
    """Says where counters fell though the steps went up: a note where no step is missing there, else a warning.

    `remedy` is what to do where another run begins.
    """
    verdicts = []
    for goes_on in (True, False):
        some = [one for one in found if one.goes_on == goes_on]
        if not some:
            continue
        one = some[0]
        others = f" (so it is {count_of(len(some) - 1, 'more time')})" if len(some) > 1 else ""
        text = (
            f"{shown_as}:{one.after.line}: {' and '.join(map(str, one.fell))} from step {one.before.step} to "
            f"{one.after.step}{others}: the trainer was started again, and the first step after that does not count"
        )
        if not goes_on:
            text += f"; or another run begins there. In that case, {remedy(one)}"
        verdicts.append(Verdict("note" if goes_on else "warning", "counter-fell", text))
    return verdicts
