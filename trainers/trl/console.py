"""Reads the console log of TRL or ms-swift: one Python dictionary for each logged step, and progress bars."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import compress, pairwise
from pathlib import Path
from typing import Any

from common.verdicts import Verdict
from trainers.logs.hf_rows import (
    TRAIN,
    WALL,
    LoggedRow,
    imported_rows,
    is_surely_logged,
    is_training_row,
    logged_row,
)
from trainers.logs.log_files import Printout, printouts
from trainers.logs.printed import half_digit, parse_number
from trainers.logs.record import Imported
from trainers.trl.totals import Totals, clock_s

TRL, SWIFT = "trl-console", "swift-console"
BY_PLACE, BY_TOTAL = "step-by-place", "step-by-total"
# ms-swift tells the step in its rows; TRL does not.
SWIFT_STEP = "global_step/max_steps"
# What its Megatron trainer calls it; up to 3.12 it prints Megatron's own line, in which `memory(GiB)` is ms-swift's.
_ITERATION = "iteration"
_MEGATRON = re.compile(r"\biteration +(\d{1,18})/ *\d+ \| (?=.*\bmemory\(GiB\): )(.*)")
_MEGATRON_MS = "elapsed time per iteration (ms)"
# A row is a dictionary as Python prints it, of numbers and texts; numpy's numbers have brackets of their own.
_ROW = re.compile(r"\{'[^{}]*\}")
_PAIR = re.compile(
    r"'(?P<name>[^']+)': ?(?:'(?P<text>[^']*)'|\"(?P<quoted>[^\"]*)\"|(?P<value>[^,'\"()]+(?:\([^()]*\))?))"
)
# tqdm's bar: ` 12%|█▏    | 3/25 [00:41<05:02, 13.7s/it]`.
_BAR = re.compile(r"\d+%\|[^|]*\|\s*(?P<done>\d{1,12})/(?P<total>\d{1,12}) \[(?P<elapsed>(?:\d{1,6}:)?\d{1,2}:\d\d)?")
# What a bar of something else has before it is its name with a colon. Launchers put the rank there: `[rank0]:`, `0:`.
_NAMED = re.compile(r":\s*\Z")
_OWN = re.compile(r"\s*(?:\[\w+\]:|\d+:)?\s*(?:Train:)?\s*")


@dataclass(frozen=True, slots=True)
class _Bar:
    """A progress bar: so many steps of so many, and the seconds since it was first drawn."""

    done: int
    total: int
    elapsed_s: float | None = field(compare=False)


@dataclass(slots=True)
class _Bars:
    """The last bar before a row, whether it stands on the row's line, and the first bar behind the row."""

    before: _Bar | None
    on_its_line: bool
    behind: _Bar | None = None


def read_trl_console(path: Path) -> Imported:
    """The steps of a TRL or ms-swift console log, under wandb's names.

    TRL's rows have no step. Its progress bar, redrawn behind each row, has; without such bars the steps of the whole
    training tell it (`Totals`); else a row's place in the log is its step, and a verdict says so. Evaluations, the
    summary at the end and what other code prints are no steps.
    """
    totals = Totals()
    rows: list[LoggedRow] = []
    bars: list[_Bars] = []
    latest: _Bar | None = None
    sure: list[bool] = []
    swift: list[bool] = []
    verdicts: list[Verdict] = []
    for part in printouts(path):
        totals.see(part.text)
        if (iteration := _iteration(part)) is not None:
            rows.append(iteration)
            bars.append(_Bars(None, False))
            sure.append(True)
            swift.append(True)
            continue
        at = 0
        for piece in _ROW.finditer(part.text):
            text = part.text[at : piece.start()]
            latest = _seen(text, bars, totals) or latest
            at = piece.end()
            row = row_of(piece[0])
            totals.see_summary(row)
            if is_training_row(row):
                rows.append(logged_row(swift_step(row) or 0, row, part.line))
                bars.append(_Bars(latest, text.endswith("]") and "|" in text))
                latest = None
                sure.append(is_surely_logged(row))
                swift.append(is_swift(row))
        latest = _seen(part.text[at:], bars, totals) or latest
        if "{'" in part.text[at:] and not part.ended:
            text = f"{path}:{part.line}: the last row was cut off and is left out"
            verdicts.append(Verdict("note", "value-cut-off", text))
    if any(sure):
        rows, bars, swift = list(compress(rows, sure)), list(compress(bars, sure)), list(compress(swift, sure))
    if any(swift):
        return imported_rows([row for row in rows if row.step], path, SWIFT, verdicts)
    placed, told = _by_the_bar(rows, bars, totals, path)
    unnumbered = any(one.code in (BY_PLACE, BY_TOTAL) for one in told)
    return imported_rows(placed, path, TRL, verdicts + told, unnumbered=unnumbered)


def row_of(text: str) -> dict[str, Any]:
    """A printed dictionary of numbers and texts; what is neither (None, True) is left out."""
    row: dict[str, Any] = {}
    for pair in _PAIR.finditer(text):
        if pair["value"] is None:
            row[pair["name"]] = pair["text"] if pair["text"] is not None else pair["quoted"]
        elif (number := parse_number(pair["value"].rstrip("} "))) is not None:
            row[pair["name"]] = number.value
    return row


def _seen(text: str, bars: list[_Bars], totals: Totals) -> _Bar | None:
    """The last bar of a text that can be the training's; the first is noted behind the last row, `totals` note all."""
    last = None
    for found in _BAR.finditer(text) if "|" in text else ():
        before = text[: found.start()]
        if _NAMED.search(before) is None or _OWN.fullmatch(before):
            last = _Bar(int(found["done"]), int(found["total"]), clock_s(found["elapsed"]))
            totals.see_bar(last.done, last.total, last.elapsed_s or 0.0)
            if bars and bars[-1].behind is None:
                bars[-1].behind = last
    return last


def _iteration(part: Printout) -> LoggedRow | None:
    """The row that Megatron's line of an iteration is, with the seconds since the line before; None for any other."""
    found = _MEGATRON.search(part.text) if _MEGATRON_MS in part.text else None
    if found is None or int(found[1]) == 0:
        return None
    told = (pair.partition(": ") for pair in found[2].split(" | "))
    row = {name.strip(): value.strip(" |") for name, _, value in told}
    took = parse_number(row.pop(_MEGATRON_MS, ""))
    if took is None:
        return None
    logged = logged_row(int(found[1]), {name.replace(" ", "_"): value for name, value in row.items()}, part.line)
    off = half_digit(took.decimals or 0) / 1000.0
    return replace(
        logged,
        numbers={**logged.numbers, WALL: took.value / 1000.0},
        rounding={**logged.rounding, WALL: off},
    )


def is_swift(row: dict[str, Any]) -> bool:
    """Whether a row tells its step as ms-swift does."""
    return SWIFT_STEP in row or swift_step(row) is not None


def swift_step(row: dict[str, Any]) -> int | None:
    """The step in ms-swift's `3/25`; None where it is not there, or before the first."""
    match = re.fullmatch(r"(\d{1,18})/\d+", str(row.get(SWIFT_STEP, row.get(_ITERATION, ""))).strip())
    return int(match[1]) or None if match else None


def _by_the_bar(
    rows: list[LoggedRow], bars: list[_Bars], totals: Totals, path: Path
) -> tuple[list[LoggedRow], list[Verdict]]:
    """The rows with their steps: as the bars beside them tell, if those that there are agree; else as the steps of the
    whole training do; else their place in the log.

    tqdm draws its bar again behind a row; where stdout came later than stderr, that bar stands before the row, and the
    one behind is of a later step.
    """
    behind, before = [one.behind for one in bars], [one.before for one in bars]
    steps, beside = None, behind
    if len(rows) > 1:
        steps = _multiples(behind)
        if steps is None and None not in before:
            steps, beside = _multiples(before), before
    if steps is None:
        later = all(one.on_its_line for one in bars) or any(a and a == b for a, b in pairwise(behind))
        beside = before if later else behind
        steps = _each(beside)
    if steps is not None:
        clocks = [bar.elapsed_s if bar else None for bar in beside]
        return [replace(row, step=step, elapsed_s=s) for row, step, s in zip(rows, steps, clocks, strict=True)], []
    counted = ([row.numbers.get(TRAIN + name) for row in rows] for name in ("epoch", "num_tokens"))
    if (steps := totals.steps_of(*counted)) is not None:
        text = (
            f"{path} has no progress bar behind its {len(rows)} rows; its {totals.steps_done()} steps in all tell that "
            f"they are steps {steps[0]} to {steps[-1]}"
        )
        verdict = [Verdict("note", BY_TOTAL, text)] if len(rows) > 1 else []
        return [replace(row, step=step) for row, step in zip(rows, steps, strict=True)], verdict
    planned = f" of {'or '.join(map(str, sorted(totals.planned)))} that were planned" if totals.planned else ""
    text = (
        f"{path} does not tell the steps of its {len(rows)} rows (no progress bar of the training behind them): they "
        f"count as steps 1 to {len(rows)}{planned}. With logging_steps above 1 they are not: import trainer_state.json "
        "instead"
    )
    verdict = [Verdict("warning", BY_PLACE, text)] if rows else []
    return [replace(row, step=place) for place, row in enumerate(rows, start=1)], verdict


def _of_training(bars: list[_Bar | None]) -> list[_Bar]:
    """The bars that there are, where they go on, to one end: others may have no name either (an evaluation's, a reward
    function's)."""
    told = [bar for bar in bars if bar is not None]
    done = {bar.done for bar in told}
    goes_on = len(done) > 1 or len(told) == len(bars) == 1
    return told if goes_on and 0 not in done and len({bar.total for bar in told}) == 1 else []


def _each(bars: list[_Bar | None]) -> list[int] | None:
    """The steps of rows that have a bar each."""
    told = _of_training(bars)
    return [bar.done for bar in told] if told and len(told) == len(bars) else None


def _multiples(bars: list[_Bar | None]) -> list[int] | None:
    """The multiples of logging_steps, where every bar that there is fits it from the run's start."""
    told = _of_training(bars)
    places = [place for place, bar in enumerate(bars, start=1) if bar is not None]
    every = told[-1].done // places[-1] if told else 0
    fits = every > 0 and all(bar.done == every * place for place, bar in zip(places, told, strict=True))
    return [every * place for place in range(1, len(bars) + 1)] if fits else None


def looks_like_trainer(parts: Iterable[Printout]) -> str | None:
    """Which of the two formats a log has, by its rows; None for neither."""
    for part in parts:
        if _iteration(part) is not None:
            return SWIFT
        for piece in _ROW.finditer(part.text):
            row = row_of(piece[0])
            if is_training_row(row):
                return SWIFT if is_swift(row) else TRL
    return None
