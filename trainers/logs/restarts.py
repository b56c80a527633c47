"""Detects restarts of a trainer and the start of another run in a log, and selects the steps that count."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from common.errors import UserError
from common.verdicts import Verdict, count_of
from trainers.logs.record import STEPS_LOGGED, SourceRead, StepRecord

# Counters of a training by their names in a record: transformers' and TRL's, then verl's. A checkpoint restores them,
# except verl's epoch up to 0.6, TRL's tokens in 0.16, and transformers' epoch with ignore_data_skip.
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
# A smaller drop of the clock is a correction, not a restart.
CLOCK_TOLERANCE_S = 2.0


def _shared_counters(before: StepRecord, after: StepRecord) -> list[str]:
    return [name for name in TRAINING_COUNTERS if name in before.scalars and name in after.scalars]


def counter_drops(before: StepRecord, after: StepRecord) -> dict[str, str]:
    """The counters that drop from one logged record to the next by more than their rounding, and from what to what."""
    drops = {}
    for name in _shared_counters(before, after):
        high, low = before.scalars[name], after.scalars[name]
        if low < high - before.rounding.get(name, 0.0) - after.rounding.get(name, 0.0):
            drops[name] = (high, low)
    a, b = before.elapsed_s, after.elapsed_s
    if a is not None and b is not None and b < a - CLOCK_TOLERANCE_S:
        drops[ELAPSED] = (a, b)
    return {name: f"{name} falls from {high:.12g} to {low:.12g}" for name, (high, low) in drops.items()}


@dataclass(frozen=True)
class Restart:
    """Two consecutive records; the later has a higher step but a lower counter."""

    before: StepRecord
    after: StepRecord
    drops: Mapping[str, str]
    """Counter -> from what to what."""

    @property
    def is_contiguous(self) -> bool:
        """Whether no step is missing between the two."""
        return self.after.step <= self.before.step + self.after.scalars.get(STEPS_LOGGED, 1.0)


def restart_verdicts(found: Sequence[Restart], shown_as: str, remedy: Callable[[Restart], str]) -> list[Verdict]:
    """Verdicts on counters that drop while the steps rise: a note if no step is missing there, else a warning.

    `remedy` says what to do if another run begins there.
    """
    verdicts = []
    for contiguous in (True, False):
        restarts = [one for one in found if one.is_contiguous == contiguous]
        if not restarts:
            continue
        first = restarts[0]
        others = f" (and {count_of(len(restarts) - 1, 'more time')})" if len(restarts) > 1 else ""
        text = (
            f"{shown_as}:{first.after.line}: {' and '.join(first.drops.values())} from step {first.before.step} to "
            f"{first.after.step}{others}: the trainer was started again; the first step after that does not count"
        )
        if not contiguous:
            text += f"; or another run begins there. In that case, {remedy(first)}"
        verdicts.append(Verdict("note" if contiguous else "warning", "counter-fell", text))
    return verdicts


def steps_in_sequence(
    found: Sequence[StepRecord],
    path: Path,
    resumed_at: Collection[int] = (),
    remedy: Callable[[Restart], str] | None = None,
) -> SourceRead:
    """The steps of one file by step, from its records in file order.

    A step at or below the one before was trained again after a restart; the later record counts. The first step after
    a restart is `resumed`; so are the steps in `resumed_at` and those where a counter drops. A line that was printed
    twice counts once. `remedy` says what to do if another run begins at a restart. `UserError` if the file's first step
    comes again: the file holds several runs.
    """
    read = SourceRead()
    restarts: list[Restart] = []
    last: StepRecord | None = None
    repeated: list[tuple[StepRecord, StepRecord]] = []
    for record in found:
        resumed = record.step in resumed_at
        if last is not None:
            if record.step == last.step and same_numbers(record, last):
                continue
            if record.step <= last.step:
                if record.step <= found[0].step:
                    raise several_runs(path, found[0], last, record)
                resumed = True
            elif drops := counter_drops(last, record):
                restarts.append(Restart(last, record, drops))
                resumed = True
        if (earlier := read.records.get(record.step)) is not None:
            read.repeated.add(record.step)
            repeated.append((earlier, record))
        read.records[record.step] = replace(record, resumed=resumed)
        last = record
    if repeated:
        earlier, later = repeated[0]
        text = (
            f"{path}: the run was started again and trained {len(read.repeated)} steps ({min(read.repeated)} to "
            f"{max(read.repeated)}) once more. The later records count (for step {later.step}: line {later.line}, "
            f"not line {earlier.line})"
        )
        read.verdicts.append(Verdict("note", "duplicate-step", text))
    split = remedy or (lambda one: split_commands(path, one.before.line))
    read.verdicts += restart_verdicts(restarts, str(path), split)
    return read


def require_one_run(found: Sequence[StepRecord], path: Path) -> None:
    """`UserError` if every training counter drops in a log whose rows have no step numbers.

    The log has several runs, or one that resumed at an unknown step. A counter that stays 0 does not count as rising.
    """
    for before, after in pairwise(found):
        drops, shared = counter_drops(before, after), _shared_counters(before, after)
        rises = any(after.scalars[name] >= before.scalars[name] and after.scalars[name] > 0.0 for name in shared)
        if not rises and drops.keys() & {*shared}:
            raise UserError(
                f"{path} holds several runs, or one that was started again: on line {after.line} "
                f"{' and '.join(drops.values())}. Its rows have no step numbers (no progress bar follows them), so "
                f"the parts cannot be joined: {split_commands(path, before.line)}. Of one run, import its last "
                "trainer_state.json instead"
            )


def same_numbers(a: StepRecord, b: StepRecord) -> bool:
    """Whether two records have the same names and numbers."""
    return a.scalars.keys() == b.scalars.keys() and all(
        x == b.scalars[name] or (math.isnan(x) and math.isnan(b.scalars[name])) for name, x in a.scalars.items()
    )


def several_runs(path: Path, first: StepRecord, last: StepRecord, again: StepRecord) -> UserError:
    """The error for a source whose `first` step comes `again`, there or in another file of it, after `last`."""
    if again.file != first.file:
        return UserError(
            f"{path} holds several runs, or several processes of one: step {first.step} is in {first.file}, and step "
            f"{again.step} in {again.file}, which began later. Which one to import is not guessed: name its file"
        )
    return UserError(
        f"{path} holds several runs: its first step, {first.step}, is on line {first.line} and again, with other "
        f"numbers or after step {last.step}, on line {again.line}. Which run to import is not guessed: "
        + split_commands(path, last.line)
        + ". If one run restarted from its first step, keep the part that counts"
    )


def split_commands(path: Path, last_line: int) -> str:
    """The commands that split a file after a line; for a JSON document, which records to keep."""
    if path.suffix == ".json":
        return f"leave the records of one run in its log_history: the first {last_line}, or those after them"
    parts = (path.with_stem(f"{path.stem}-{part}") for part in (1, 2))
    whole, one, two = (shlex.quote(str(file)) for file in (path, *parts))
    return (
        f"split the file and import each run by itself: head -n {last_line} {whole} > {one}; "
        f"tail -n +{last_line + 1} {whole} > {two} (if the runs' lines are mixed, select them by their prefix: "
        "grep 'pid=123')"
    )
