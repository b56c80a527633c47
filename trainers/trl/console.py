"""Reads the console log of TRL or ms-swift: one Python dictionary for each logged step, and progress bars."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

from common.verdicts import Verdict
from trainers.logs.hf_rows import TRAIN, LoggedRow, imported_rows, is_surely_logged, is_training_row, logged_row
from trainers.logs.log_files import Printout, printouts
from trainers.logs.printed import printed
from trainers.logs.record import Imported
from trainers.trl.totals import Totals

TRL, SWIFT = "trl-console", "swift-console"
BY_PLACE, BY_TOTAL = "step-by-place", "step-by-total"
# ms-swift tells the step in its rows; TRL does not.
SWIFT_STEP = "global_step/max_steps"
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
    """A progress bar: so many steps of so many."""

    done: int
    total: int


def read_trl_console(path: Path) -> Imported:
    """The steps of a TRL or ms-swift console log, under wandb's names.

    TRL's rows have no step. Its progress bar, redrawn behind each row, has; without such bars the steps of the whole
    training tell it (`Totals`); else a row's place in the log is its step, and a verdict says so. Evaluations, the
    summary at the end and what other code prints are no steps.
    """
    totals = Totals()
    rows: list[LoggedRow] = []
    bars: list[_Bar | None] = []
    sure: list[bool] = []
    swift: list[bool] = []
    verdicts: list[Verdict] = []
    for part in printouts(path):
        totals.see(part.text)
        at = 0
        for piece in _ROW.finditer(part.text):
            _bars(part.text[at : piece.start()], rows, bars, totals)
            at = piece.end()
            row = row_of(piece[0])
            totals.see_summary(row)
            if is_training_row(row):
                rows.append(logged_row(swift_step(row) or 0, row, part.line))
                bars.append(None)
                sure.append(is_surely_logged(row))
                swift.append(SWIFT_STEP in row)
        _bars(part.text[at:], rows, bars, totals)
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
        elif (number := printed(pair["value"].rstrip("} "))) is not None:
            row[pair["name"]] = number.value
    return row


def _bars(text: str, rows: list[LoggedRow], bars: list[_Bar | None], totals: Totals) -> None:
    """The first bar behind a row tells its step, where it can be the training's; `totals` note all of them."""
    if "|" not in text:
        return
    for bar in _BAR.finditer(text):
        before = text[: bar.start()]
        if _NAMED.search(before) is None or _OWN.fullmatch(before):
            done, total = int(bar["done"]), int(bar["total"])
            totals.see_bar(done, total, bar["elapsed"] or "0")
            if rows and bars[-1] is None:
                bars[-1] = _Bar(done, total)


def swift_step(row: dict[str, Any]) -> int | None:
    """The step in ms-swift's `3/25`; None where it is not there, or before the first."""
    match = re.fullmatch(r"(\d{1,18})/\d+", str(row.get(SWIFT_STEP, "")).strip())
    return int(match[1]) or None if match else None


def _by_the_bar(
    rows: list[LoggedRow], bars: list[_Bar | None], totals: Totals, path: Path
) -> tuple[list[LoggedRow], list[Verdict]]:
    """The rows with their steps: as the bars behind them tell, if those that there are agree; else as the steps of the
    whole training do; else their place in the log."""
    told = [bar for bar in bars if bar is not None]
    done = {bar.done for bar in told}
    # The training's bars go on, to one end. Others may have no name either: an evaluation's, a reward function's.
    if 0 not in done and (len(done) > 1 or len(told) == len(rows) == 1) and len({bar.total for bar in told}) == 1:
        every = _rows_apart(bars)
        if every is not None:
            return [replace(row, step=every * place) for place, row in enumerate(rows, start=1)], []
        if len(told) == len(rows):
            return [replace(row, step=bar.done) for row, bar in zip(rows, told, strict=True)], []
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


def _rows_apart(bars: list[_Bar | None]) -> int | None:
    """logging_steps, where every bar that there is fits it from the run's start; None where none does."""
    told = [(place, bar.done) for place, bar in enumerate(bars, start=1) if bar is not None]
    if not told:
        return None
    place, bar = told[-1]
    every = bar // place if bar % place == 0 else 0
    return every if every > 0 and all(b == every * p for p, b in told) else None


def looks_like_trainer(parts: Iterable[Printout]) -> str | None:
    """Which of the two formats a log has, by its rows; None for neither."""
    for part in parts:
        for piece in _ROW.finditer(part.text):
            row = row_of(piece[0])
            if is_training_row(row):
                return SWIFT if SWIFT_STEP in row else TRL
    return None
