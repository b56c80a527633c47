"""Reads a console whose steps are lines of a number and a dictionary, as Python prints it: `step 3: {'loss': 0.1}`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from common.verdicts import Verdict
from trainers.logs.log_files import Printout
from trainers.logs.printed import PrintedNumber, fixed_decimals, half_digit, leading_number, parse_number
from trainers.logs.record import Imported, StepRecord
from trainers.logs.restarts import steps_in_sequence
from trainers.logs.step_names import StepNames

_PAIR = re.compile(r"'(?P<name>[^']+)': (?:'(?P<text>[^']*)'|(?P<value>[^,'\"{}\[\]()]+(?:\([^()]*\))?))")
# Rows of steps that never had a total are kept no longer than so many others.
MOST_WAITING = 100


@dataclass(frozen=True, slots=True)
class PrintedRow:
    """A printed dictionary: its step, its numbers, whether its end is there, and its line."""

    step: int
    numbers: dict[str, PrintedNumber]
    complete: bool
    line: int


def parse_row(text: str, step: int, line: int) -> PrintedRow:
    """The numbers of a dictionary that a text begins with; of one that was cut, those before its last."""
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
    """The rows of a console; `begins` matches up to the dictionary, with the step, and `word` is a part of it."""
    for part in parts:
        if word in part.text and (found := begins.search(part.text)) is not None:
            yield parse_row(part.text[found.end() :], int(found[1]), part.line)


def imported_rows(rows: Iterable[PrintedRow], path: Path, form: str, names: StepNames, prefix: str = "") -> Imported:
    """The steps of printed rows, under wandb's names, before which the console leaves `prefix` out.

    Rows of a step before the one with its total add their numbers to it. A row that was cut is a verdict; without its
    total it is no step.
    """
    waiting: dict[int, dict[str, PrintedNumber]] = {}
    records: list[StepRecord] = []
    verdicts: list[Verdict] = []
    for row in rows:
        numbers = waiting.pop(row.step, {}) | {prefix + name: number for name, number in row.numbers.items()}
        told = names.logged_step({name: number.value for name, number in numbers.items()}, float(row.step))
        if not row.complete:
            text = f"{path}:{row.line}: step {row.step} was cut off: what stands behind the cut is left out"
            verdicts.append(Verdict("note", "value-cut-off", text))
        if told is None or not told.timed:
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
        records.append(StepRecord(told.step, {}, told.numbers, {}, None, path, row.line, rounding))
    read = steps_in_sequence(records, path)
    read.verdicts = verdicts + read.verdicts
    return Imported(read, form)
