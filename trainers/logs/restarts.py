"""Which of a file's steps count, when its run was started again, or when it holds several runs?"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from common.errors import UserError
from common.verdicts import Verdict
from trainers.logs.counters import Restart, all_fall, falls, restart_verdicts
from trainers.logs.record import SourceRead, StepRecord


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
        if not again and last is not None and (fell := falls(last, record)):
            restarts.append(Restart(last, record, fell))
        resumed = again or record.step in resumed_at or bool(restarts and restarts[-1].after is record)
        earlier = read.records.get(record.step)
        if earlier is not None:
            read.again.add(record.step)
            repeated.append((earlier, record))
        read.records[record.step] = replace(record, resumed=resumed)
        last = record
    if repeated:
        earlier, later = repeated[0]
        text = (
            f"{path}: the run was started again, and {len(read.again)} of its steps ({min(read.again)} to "
            f"{max(read.again)}) come again: the later count (step {later.step}, say, of lines {earlier.line} and "
            f"{later.line} the second)"
        )
        read.verdicts.append(Verdict("note", "duplicate-step", text))
    read.verdicts += restart_verdicts(restarts, str(path), lambda one: how_to_split(path, one.before.line))
    return read


def require_one_run(found: Sequence[StepRecord], path: Path) -> None:
    """`UserError` where every counter of the training falls in a log whose rows tell no steps.

    It holds several runs, or one that went on from a checkpoint: at which of its steps nothing tells.
    """
    for before, after in pairwise(found):
        if fell := all_fall(before, after):
            raise UserError(
                f"{path} holds several runs, or one that was started again: on line {after.line} "
                f"{' and '.join(map(str, fell))}. Nothing tells the steps of its rows (no progress bar stands behind "
                f"them), so the parts cannot be joined: {how_to_split(path, before.line)}. Of one run, import its last "
                "trainer_state.json instead"
            )


def _same(a: StepRecord, b: StepRecord) -> bool:
    return a.scalars.keys() == b.scalars.keys() and all(
        x == b.scalars[name] or (math.isnan(x) and math.isnan(b.scalars[name])) for name, x in a.scalars.items()
    )


def _several_runs(path: Path, first: StepRecord, last: StepRecord, again: StepRecord) -> UserError:
    return UserError(
        f"{path} holds several runs: its first step, {first.step}, stands on line {first.line} and, with other "
        f"numbers or after step {last.step}, on line {again.line} once more. Which run is meant is not guessed: "
        + how_to_split(path, last.line)
        + ". If it is one run that began anew, keep the part that counts"
    )


def how_to_split(path: Path, last_line: int) -> str:
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
