"""Reads the console log of TRL or ms-swift: a Python dictionary for each logged step, and progress bars."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from common.verdicts import Verdict
from trainers.logs.hf_rows import STEP_TIME, TRAIN, imported_rows, is_training_row, row_record
from trainers.logs.hf_work import samples_of, samples_of_plan
from trainers.logs.log_files import Printout, half_digit, parse_number, printouts
from trainers.logs.record import WALL, Imported, StepRecord
from trainers.logs.restarts import same_numbers
from trainers.trl.totals import Totals, clock_s

TRL, SWIFT = "trl-console", "swift-console"
BY_PLACE, BY_TOTAL = "step-by-place", "step-by-total"
# The step in ms-swift's rows; TRL's rows have none.
SWIFT_STEP = "global_step/max_steps"
# The same in ms-swift's Megatron trainer. Up to 3.12 it prints Megatron's own line, with ms-swift's `memory(GiB)`.
_ITERATION = "iteration"
_MEGATRON = re.compile(r"\biteration +(\d{1,18})/ *\d+ \| (?=.*\bmemory\(GiB\): )(.*)")
_MEGATRON_MS = "elapsed time per iteration (ms)"
# A row is a printed dictionary of numbers and texts; numpy's numbers have their own brackets.
_ROW = re.compile(r"\{'[^{}]*\}")
_PAIR = re.compile(
    r"'(?P<name>[^']+)': ?(?:'(?P<text>[^']*)'|\"(?P<quoted>[^\"]*)\"|(?P<value>[^,'\"()]+(?:\([^()]*\))?))"
)
# Only a trainer writes these. If one row has one, rows without them are another program's.
_TRAINERS_OWN = ("learning_rate", "step_time")
# tqdm's bar: ` 12%|█▏    | 3/25 [00:41<05:02, 13.7s/it]`.
_BAR = re.compile(r"\d+%\|[^|]*\|\s*(?P<done>\d{1,12})/(?P<total>\d{1,12}) \[(?P<elapsed>(?:\d{1,6}:)?\d{1,2}:\d\d)?")
# The bar of another task has a name with a colon. Launchers write the rank there instead: `[rank0]:`, `0:`.
_NAMED = re.compile(r":\s*\Z")
_OWN = re.compile(r"\s*(?:\[\w+\]:|\d+:)?\s*(?:Train:)?\s*")


@dataclass(frozen=True, slots=True)
class _Bar:
    """A progress bar: steps done, steps in all, and seconds since it was first drawn."""

    done: int
    total: int
    elapsed_s: float | None = field(compare=False)


@dataclass(slots=True)
class _ConsoleRow:
    """A training row, the last bar before it, whether that is on the row's line, and the first bar after it."""

    record: StepRecord
    certain: bool
    """Whether only a trainer can have written it."""
    swift: bool
    before: _Bar | None = None
    on_its_line: bool = False
    after: _Bar | None = None
    reached: dict[int, int] | None = None
    """By the total of each bar so far how far it has come, if a bar precedes the row."""


def read_trl_console(path: Path) -> Imported:
    """The steps of a TRL or ms-swift console log, under wandb's names.

    TRL's rows have no step. The progress bar redrawn after each row has it; without such bars the number of trained
    steps gives it (`Totals`), else a row's place in the log, with a verdict. Evaluations, the summary at the end and
    the output of other code are skipped.
    """
    totals, samples = Totals(), None
    rows: list[_ConsoleRow] = []
    latest: _Bar | None = None
    verdicts: list[Verdict] = []
    for part in printouts(path):
        totals.read_plan(part.text)
        samples = samples_of_plan(part.text, path, part.line) or samples
        if (iteration := _iteration(part, path)) is not None:
            rows.append(_ConsoleRow(iteration, certain=True, swift=True))
            continue
        at = 0
        for piece in _ROW.finditer(part.text):
            text = part.text[at : piece.start()]
            latest = _last_bar(text, rows, totals) or latest
            at = piece.end()
            row = row_of(piece[0])
            totals.read_summary(row)
            samples = samples or samples_of(row, path, part.line)
            if is_training_row(row):
                record = row_record(swift_step(row) or 0, row, path, part.line)
                if rows and STEP_TIME in record.scalars and same_numbers(record, rows[-1].record):
                    # Printed twice: by several processes, or into two streams of one file.
                    continue
                certain, on_its_line = any(n in row for n in _TRAINERS_OWN), text.endswith("]") and "|" in text
                rows.append(_ConsoleRow(record, certain, is_swift(row), latest, on_its_line))
                rows[-1].reached = totals.reached() if latest else None
                latest = None
        latest = _last_bar(part.text[at:], rows, totals) or latest
        if "{'" in part.text[at:] and not part.ended:
            text = f"{path}:{part.line}: the last row is truncated and is left out"
            verdicts.append(Verdict("note", "value-cut-off", text))
    if any(one.certain for one in rows):
        rows = [one for one in rows if one.certain]
    if any(one.swift for one in rows):
        return imported_rows([o.record for o in rows if o.record.step], path, SWIFT, verdicts, samples=samples)
    steps = [int(one.record.scalars.get(f"{TRAIN}step", 0.0)) for one in rows]
    if rows and all(steps):
        own = [replace(one.record, step=step) for one, step in zip(rows, steps, strict=True)]
        return imported_rows(own, path, TRL, verdicts, samples=samples)
    numbered, more = _numbered(rows, totals, path)
    return imported_rows(numbered, path, TRL, verdicts + more, bool(more), samples)


def row_of(text: str) -> dict[str, Any]:
    """The numbers and texts of a printed dictionary; other values (None, True) are left out."""
    row: dict[str, Any] = {}
    for pair in _PAIR.finditer(text):
        if pair["value"] is None:
            row[pair["name"]] = pair["text"] if pair["text"] is not None else pair["quoted"]
        elif (number := parse_number(pair["value"].rstrip("} "))) is not None:
            row[pair["name"]] = number.value
    return row


def _last_bar(text: str, rows: Sequence[_ConsoleRow], totals: Totals) -> _Bar | None:
    """The last bar of a text that may be the training's. The first is stored in the last row, all in `totals`."""
    last = None
    for found in _BAR.finditer(text) if "|" in text else ():
        before = text[: found.start()]
        if _NAMED.search(before) is None or _OWN.fullmatch(before):
            last = _Bar(int(found["done"]), int(found["total"]), clock_s(found["elapsed"]))
            totals.add_bar(last.done, last.total, last.elapsed_s or 0.0)
            if rows and rows[-1].after is None:
                rows[-1].after = last
    return last


def _iteration(part: Printout, path: Path) -> StepRecord | None:
    """The record of Megatron's line of an iteration, with the seconds since the line before; None for other lines."""
    found = _MEGATRON.search(part.text) if _MEGATRON_MS in part.text else None
    if found is None or int(found[1]) == 0:
        return None
    pairs = (pair.partition(": ") for pair in found[2].split(" | "))
    row = {name.strip(): value.strip(" |") for name, _, value in pairs}
    took = parse_number(row.pop(_MEGATRON_MS, ""))
    if took is None:
        return None
    row = {name.replace(" ", "_"): value for name, value in row.items()}
    record = row_record(int(found[1]), row, path, part.line)
    scalars = {**record.scalars, WALL: took.value / 1000.0}
    rounding = {**record.rounding, WALL: half_digit(took.decimals or 0) / 1000.0}
    return replace(record, scalars=scalars, rounding=rounding)


def is_swift(row: dict[str, Any]) -> bool:
    """Whether a row has its step as ms-swift writes it."""
    return SWIFT_STEP in row or swift_step(row) is not None


def swift_step(row: dict[str, Any]) -> int | None:
    """The step in ms-swift's `3/25`; None if it is missing or 0."""
    match = re.fullmatch(r"(\d{1,18})/\d+", str(row.get(SWIFT_STEP, row.get(_ITERATION, ""))).strip())
    return int(match[1]) or None if match else None


def _numbered(rows: Sequence[_ConsoleRow], totals: Totals, path: Path) -> tuple[list[StepRecord], list[Verdict]]:
    """The rows with their steps: from the bars next to them if those agree, else from the number of trained steps,
    else from their place in the log.

    tqdm redraws its bar after a row. If stdout came later than stderr, that bar is before the row, and the one after it
    belongs to a later step.
    """
    records = [one.record for one in rows]
    after, before = [one.after for one in rows], [one.before for one in rows]
    steps, bars = None, after
    if len(rows) > 1:
        steps = _multiples(after)
        if steps is None and None not in before:
            steps, bars = _multiples(before), before
    if steps is None:
        late = all(one.on_its_line for one in rows) or any(a and a == b for a, b in pairwise(after))
        bars = before if late else after
        steps = _each(bars)
    if steps is not None:
        beside = [bar.elapsed_s if bar else None for bar in bars]
        clocks = totals.clocks(steps) if None in beside else beside
        return [replace(one, step=step, elapsed_s=s) for one, step, s in zip(records, steps, clocks, strict=True)], []
    epochs, tokens = ([one.scalars.get(TRAIN + name) for one in records] for name in ("epoch", "num_tokens"))
    if (steps := totals.steps_of(epochs, tokens, [one.reached for one in rows])) is not None:
        text = (
            f"{path} has no progress bar after its {len(rows)} rows. They are steps {steps[0]} to {steps[-1]}, by its "
            f"{totals.steps_done()} trained steps"
        )
        verdict = [Verdict("note", BY_TOTAL, text)] if len(rows) > 1 else []
        clocks = totals.clocks(steps)
        return [replace(o, step=step, elapsed_s=s) for o, step, s in zip(records, steps, clocks, strict=True)], verdict
    planned = f" of {'or '.join(map(str, sorted(totals.planned)))} that were planned" if totals.planned else ""
    text = (
        f"{path} does not give the steps of its {len(rows)} rows (no progress bar of the training follows them). They "
        f"count as steps 1 to {len(rows)}{planned}. That is wrong with logging_steps above 1: import "
        "trainer_state.json instead"
    )
    verdict = [Verdict("warning", BY_PLACE, text)] if rows else []
    return [replace(one, step=place) for place, one in enumerate(records, start=1)], verdict


def _of_training(bars: list[_Bar | None]) -> list[_Bar]:
    """The bars if they are one training's: they advance to one total. Other bars may also have no name (an
    evaluation's, a reward function's)."""
    found = [bar for bar in bars if bar is not None]
    done = {bar.done for bar in found}
    advances = len(done) > 1 or len(found) == len(bars) == 1
    return found if advances and 0 not in done and len({bar.total for bar in found}) == 1 else []


def _each(bars: list[_Bar | None]) -> list[int] | None:
    """The steps of rows that have a bar each."""
    found = _of_training(bars)
    return [bar.done for bar in found] if found and len(found) == len(bars) else None


def _multiples(bars: list[_Bar | None]) -> list[int] | None:
    """The multiples of logging_steps from the run's start, if all bars agree with them."""
    found = _of_training(bars)
    places = [place for place, bar in enumerate(bars, start=1) if bar is not None]
    every = found[-1].done // places[-1] if found else 0
    fits = every > 0 and all(bar.done == every * place for place, bar in zip(places, found, strict=True))
    return [every * place for place in range(1, len(bars) + 1)] if fits else None


def format_of_row(part: Printout) -> str | None:
    """The format of the first training row in a part of a console; None without one."""
    if _iteration(part, Path()) is not None:
        return SWIFT
    rows = (row_of(piece[0]) for piece in _ROW.finditer(part.text))
    return next((SWIFT if is_swift(row) else TRL for row in rows if is_training_row(row)), None)
