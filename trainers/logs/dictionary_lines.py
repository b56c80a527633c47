"""Reads consoles whose steps are lines of a number and a printed Python dictionary: `step 3: {'loss': 0.1}`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from common.verdicts import Verdict
from trainers.logs.log_files import Printout
from trainers.logs.printed import PrintedNumber, fixed_decimals, half_digit, leading_number, parse_number
from trainers.logs.record import Imported, StepRecord
from trainers.logs.restarts import steps_in_sequence
from trainers.logs.step_names import StepNames

_PAIR = re.compile(r"'(?P<name>[^']+)': (?:'(?P<text>[^']*)'|(?P<value>[^,'\"{}\[\]()]+(?:\([^()]*\))?))")
# How many incomplete steps wait for their row with the total; the oldest is dropped beyond it.
MOST_WAITING = 100


@dataclass(frozen=True, slots=True)
class PrintedRow:
    """A printed dictionary. `complete` is false if its closing brace is missing."""

    step: int
    numbers: dict[str, PrintedNumber]
    complete: bool
    line: int


def parse_row(text: str, step: int, line: int) -> PrintedRow:
    """The numbers of the dictionary at the start of a text; a truncated dictionary loses its last number."""
    body, brace, _ = text.partition("}")
    numbers: dict[str, PrintedNumber] = {}
    for pair in _PAIR.finditer(body):
        raw = pair["text"] if pair["text"] is not None else pair["value"]
        number = parse_number(raw) or parse_number(leading_number(raw.strip()))
        if number is not None:
            numbers[pair["name"]] = number
    if not brace and numbers:
        numbers.popitem()
    return PrintedRow(step, numbers, bool(brace), line)


def console_rows(parts: Iterable[Printout], word: str, begins: re.Pattern[str]) -> Iterable[PrintedRow]:
    """The rows of a console. `begins` matches the text before the dictionary, with the step; it contains `word`."""
    for part in parts:
        if word in part.text and (found := begins.search(part.text)) is not None:
            yield parse_row(part.text[found.end() :], int(found[1]), part.line)


def imported_rows(
    rows: Iterable[PrintedRow],
    path: Path,
    form: str,
    names: StepNames,
    prefix: str = "",
    resumed_at: Collection[int] = (),
) -> Imported:
    """The steps of printed rows, under wandb's names; the console omits `prefix` before them.

    `resumed_at`, complete when the rows are, has the first steps after restarts. Rows before the one with a step's
    total add their numbers to that step. A truncated row gives a verdict.
    """
    waiting: dict[int, dict[str, PrintedNumber]] = {}
    records: list[StepRecord] = []
    verdicts: list[Verdict] = []
    for row in rows:
        numbers = waiting.pop(row.step, {}) | {prefix + name: number for name, number in row.numbers.items()}
        logged = names.logged_step({name: number.value for name, number in numbers.items()}, float(row.step))
        if not row.complete:
            text = f"{path}:{row.line}: the row of step {row.step} is truncated; its last value is left out"
            verdicts.append(Verdict("note", "value-cut-off", text))
        if logged is None or not logged.timed:
            waiting[row.step] = numbers
            if len(waiting) > MOST_WAITING:
                waiting.pop(next(iter(waiting)))
            continue
        fixed = fixed_decimals(list(numbers.values()))
        rounding = {
            names.scalar_name(name): half_digit(number.decimals)
            for name, number in numbers.items()
            if fixed and number.decimals is not None
        }
        records.append(StepRecord(logged.step, {}, logged.numbers, {}, None, path, row.line, rounding))
    read = steps_in_sequence(records, path, resumed_at)
    read.verdicts = verdicts + read.verdicts
    return Imported(read, form)
