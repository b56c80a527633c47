"""Reads slime's console, with lines `perf 3: {'perf/step_time': ...}`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from trainers.logs.dictionary_lines import PrintedRow, imported_rows, parse_row
from trainers.logs.log_files import Printout, printouts
from trainers.logs.printed import PrintedNumber
from trainers.logs.record import TIMERS
from trainers.logs.step_names import EVALUATION, StepNames
from trainers.protocol import LogFormat

_FORMAT = "slime-console"
# Trainer and rollout manager print `perf 3: {...}`; `rollout 3: {...}` has rewards and lengths.
_LINE = re.compile(r"(?<![\w/])(?:perf|rollout) (\d{1,18}): (?=\{')")
_STEP = "'perf/step_time': "
_EVALUATED = re.compile(r"(?<![\w/])eval \d{1,18}: (?=\{')")


def overlap_mark(numbers: Mapping[str, float]) -> Mapping[str, float]:
    """A rollout longer than the trainer's wait for it ran during the previous training (train_async.py)."""
    rollout, wait = (numbers.get(TIMERS + name) for name in ("rollout", "train_wait"))
    return {"slime/overlaps": 1.0} if rollout is not None and wait is not None and rollout > wait else {}


def _rows(parts: Iterable[Printout]) -> Iterator[PrintedRow]:
    """The rows of a console. An evaluation marks the trainer's next row."""
    evaluated = False
    for part in parts:
        if ": {'" not in part.text:
            continue
        if (found := _LINE.search(part.text)) is None:
            evaluated = evaluated or _EVALUATED.search(part.text) is not None
            continue
        row = parse_row(part.text[found.end() :], int(found[1]), part.line)
        if evaluated and "perf/step_time" in row.numbers:
            row.numbers[f"perf/{EVALUATION}_time"] = PrintedNumber(0.0, None)
            evaluated = False
        yield row


def console(names: StepNames) -> LogFormat:
    """The steps under wandb's names; a rollout's lines belong to the step that trains it."""
    return LogFormat(
        _FORMAT,
        "slime's console, with lines perf 3: {'perf/step_time': ...}",
        lambda path: imported_rows(_rows(printouts(path)), path, _FORMAT, names),
        is_step=lambda part: _STEP in part.text and _LINE.search(part.text) is not None,
    )
