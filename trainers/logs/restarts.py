"""Finds where a log's trainer was started again or another run begins, and which of its steps count."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from common.errors import UserError
from common.verdicts import Verdict, count_of
from trainers.logs.record import STEPS_LOGGED, SourceRead, StepRecord

# What the training counts, by the names that a record has: transformers' and TRL's, then verl's. A checkpoint keeps
# them, but for verl's epoch up to 0.6 and TRL's tokens in 0.16, which begin anew at each start, and for
# transformers' epoch where it skips no data (ignore_data_skip).
TRAINING_COUNTERS = (
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
class CounterDrop:
    """A counter that is lower in a record than in the one before it."""

    name: str
    before: float
    after: float

    def __str__(self) -> str:
        return f"{self.name} falls from {self.before:.12g} to {self.after:.12g}"


def counter_drops(before: StepRecord, after: StepRecord) -> list[CounterDrop]:
    """The counters that fall from one logged record to the next by more than their rounding."""
    found = []
    for name in TRAINING_COUNTERS:
        if name in before.scalars and name in after.scalars:
            high, low = before.scalars[name], after.scalars[name]
            if low < high - before.rounding.get(name, 0.0) - after.rounding.get(name, 0.0):
                found.append(CounterDrop(name, high, low))
    a, b = before.elapsed_s, after.elapsed_s
    return found if a is None or b is None or b >= a - CLOCK_TOLERANCE_S else [*found, CounterDrop(ELAPSED, a, b)]


def all_counters_dropped(before: StepRecord, after: StepRecord) -> list[CounterDrop]:
    """The falls where no counter of the training that both records have goes on; one that stays 0 does not."""
    fell = counter_drops(before, after)
    counted = [name for name in TRAINING_COUNTERS if name in before.scalars and name in after.scalars]
    if any(after.scalars[name] >= before.scalars[name] and after.scalars[name] > 0.0 for name in counted):
        return []
    return fell if any(fall.name in counted for fall in fell) else []


@dataclass(frozen=True)
class Restart:
    """Two records, one behind the other, of which the later counts more steps and less of something else."""

    before: StepRecord
    after: StepRecord
    drops: Sequence[CounterDrop]

    @property
    def is_contiguous(self) -> bool:
        """Whether no step is missing between the two."""
        return self.after.step <= self.before.step + self.after.scalars.get(STEPS_LOGGED, 1.0)


def restart_verdicts(found: Sequence[Restart], shown_as: str, remedy: Callable[[Restart], str]) -> list[Verdict]:
    """Says where counters fell though the steps went up: a note where no step is missing there, else a warning.

    `remedy` is what to do where another run begins.
    """
    verdicts = []
    for is_contiguous in (True, False):
        some = [one for one in found if one.is_contiguous == is_contiguous]
        if not some:
            continue
        one = some[0]
        others = f" (so it is {count_of(len(some) - 1, 'more time')})" if len(some) > 1 else ""
        text = (
            f"{shown_as}:{one.after.line}: {' and '.join(map(str, one.drops))} from step {one.before.step} to "
            f"{one.after.step}{others}: the trainer was started again, and the first step after that does not count"
        )
        if not is_contiguous:
            text += f"; or another run begins there. In that case, {remedy(one)}"
        verdicts.append(Verdict("note" if is_contiguous else "warning", "counter-fell", text))
    return verdicts


def steps_in_sequence(found: Sequence[StepRecord], path: Path, resumed_at: Collection[int] = ()) -> SourceRead:
    """The steps of one file, in the order in which it holds them, by step.

    A step at or below the one before it was trained again after a restart: the later counts, and the first step after
    the restart is `resumed`, as are those `resumed_at` and those at which a counter falls (`falls`). A line that was
    printed twice is one. `UserError` where the file's first step comes again: these are several runs.
    """
    read = SourceRead()
    restarts: list[Restart] = []
    last: StepRecord | None = None
    repeated: list[tuple[StepRecord, StepRecord]] = []
    for record in found:
        if last is not None and record.step == last.step and _same(record, last):
            continue
        again = last is not None and record.step <= last.step
        if again and record.step <= found[0].step:
            assert last is not None
            raise _several_runs(path, found[0], last, record)
        if not again and last is not None and (drops := counter_drops(last, record)):
            restarts.append(Restart(last, record, drops))
        resumed = again or record.step in resumed_at or bool(restarts and restarts[-1].after is record)
        earlier = read.records.get(record.step)
        if earlier is not None:
            read.repeated.add(record.step)
            repeated.append((earlier, record))
        read.records[record.step] = replace(record, resumed=resumed)
        last = record
    if repeated:
        earlier, later = repeated[0]
        text = (
            f"{path}: the run was started again, and {len(read.repeated)} of its steps ({min(read.repeated)} to "
            f"{max(read.repeated)}) come again: the later count (step {later.step}, say, of lines {earlier.line} and "
            f"{later.line} the second)"
        )
        read.verdicts.append(Verdict("note", "duplicate-step", text))
    read.verdicts += restart_verdicts(restarts, str(path), lambda one: split_commands(path, one.before.line))
    return read


def require_one_run(found: Sequence[StepRecord], path: Path) -> None:
    """`UserError` where every counter of the training falls in a log whose rows tell no steps.

    It holds several runs, or one that went on from a checkpoint: at which of its steps nothing tells.
    """
    for before, after in pairwise(found):
        if drops := all_counters_dropped(before, after):
            raise UserError(
                f"{path} holds several runs, or one that was started again: on line {after.line} "
                f"{' and '.join(map(str, drops))}. Nothing tells the steps of its rows (no progress bar stands behind "
                f"them), so the parts cannot be joined: {split_commands(path, before.line)}. Of one run, import its "
                "last trainer_state.json instead"
            )


def _same(a: StepRecord, b: StepRecord) -> bool:
    return a.scalars.keys() == b.scalars.keys() and all(
        x == b.scalars[name] or (math.isnan(x) and math.isnan(b.scalars[name])) for name, x in a.scalars.items()
    )


def _several_runs(path: Path, first: StepRecord, last: StepRecord, again: StepRecord) -> UserError:
    return UserError(
        f"{path} holds several runs: its first step, {first.step}, stands on line {first.line} and, with other "
        f"numbers or after step {last.step}, on line {again.line} once more. Which run is meant is not guessed: "
        + split_commands(path, last.line)
        + ". If it is one run that began anew, keep the part that counts"
    )


def split_commands(path: Path, last_line: int) -> str:
    """The commands that make two files of one, after a line; of a JSON document, in words, after a record."""
    if path.suffix == ".json":
        return f"leave the records of one run in its log_history: the first {last_line}, or those after them"
    parts = (path.with_stem(f"{path.stem}-{part}") for part in (1, 2))
    whole, one, two = (shlex.quote(str(file)) for file in (path, *parts))
    return (
        f"split the file and import each run by itself: head -n {last_line} {whole} > {one}; "
        f"tail -n +{last_line + 1} {whole} > {two} (where the runs' lines are mixed, by what stands before them: "
        "grep 'pid=123')"
    )
