"""Reads a verl console log: lines such as `step:3 - timing_s/gen:382.913 - ...`."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from sys import intern

from common.errors import UserError
from common.verdicts import Verdict, count_of, first_of_each_code
from trainers.logs.log_files import (
    PrintedNumber,
    Printout,
    fixed_decimals,
    half_digit,
    leading_number,
    parse_number,
    printouts,
)
from trainers.logs.record import TIMERS, Imported, SourceRead, StepRecord
from trainers.logs.restarts import split_commands, steps_in_sequence
from trainers.logs.sync_cycles import training_steps
from trainers.verl.log_facts import LogFacts

FORMAT = "verl-console"
# `training/global_step:1 - ` and `timing_s/step:4.1 - ` are quantities inside a line.
STEP_LINE = re.compile(r"(?<![\w/.])step:(\d{1,18}) - ")
SEPARATOR = " - "
# Guides print one number a line: the step alone, and ` - timing_s/gen:24.5` under it.
_STEP_ALONE = re.compile(r"step:(\d{1,18})\s*")
_TIMER_ALONE = re.compile(r"\s*-\s+timing_s/[\w/.-]+: ?\d+\.?\d*\s*")
# wandb's console capture truncates a line there.
CUT_AT_CHARS = 4096
# verl 0.1.0 ray_trainer.py; later releases log timing_s/.
_TIMERS_OF_0_1 = "timing/"
# A step of verl has dozens of numbers; other lines that begin like one have fewer than this.
FEW_NUMBERS = 10


@dataclass
class _OpenLine:
    """A step's line; one that names the step alone has its numbers on the next lines."""

    step: int
    first: Printout
    text: str
    last: Printout
    whole: bool


@dataclass(frozen=True, slots=True)
class _Line:
    """A complete step line, the actor that printed it, and whether some of its numbers may be cut off.

    `inexact` is the name that ends it, unless its number surely has all its decimals.
    """

    record: StepRecord
    actor: str
    cut: bool
    inexact: str
    verdicts: tuple[Verdict, ...]


def read_verl_console(path: Path) -> Imported:
    """The steps of a verl console log, with every number under verl's name, and the printed configuration.

    - Step 0 (validation before training) is skipped, and so are texts and None.
    - One number a line, as guides print a step, is read as well.
    - A truncated line, or one that a terminal has wrapped, gives a verdict.
    - Numbers printed with three decimals get half of the last digit as rounding.
    - Lines that only begin like a step are skipped (see `_only_verls`).

    `UserError` if the file holds several runs, one after the other or mixed.
    """
    lines: list[_Line] = []
    log = LogFacts()
    current: _OpenLine | None = None
    for part in printouts(path):
        begins = (STEP_LINE.search(part.text) or _STEP_ALONE.fullmatch(part.text)) if "step:" in part.text else None
        if begins is not None:
            lines += _close(current, path)
            text = part.text[begins.end() :]
            current = _OpenLine(int(begins[1]), part, text, part, whole=bool(text.strip()))
            continue
        if current is not None:
            if (piece := _next_number(current, part)) is not None:
                current.text = f"{current.text}{SEPARATOR}{piece}" if current.text else piece
                current.last = part
                continue
            if part.text.strip() and part.line > current.last.line:
                lines += _close(current, path)
                current = None
        if not lines and current is None:
            log.command.feed(part.text)
        log.note(part)
    lines += _close(current, path)
    _require_one_experiment(log, path)
    everything = lines
    lines, verdicts = _only_verls(lines, path)
    lines = _without_cut_numbers(lines, path)
    named = frozenset(name for one in everything if len(everything) > len(lines) for name in one.record.scalars)
    verdicts += first_of_each_code(verdict for line in lines for verdict in line.verdicts)
    for line in lines:
        if any(key.startswith(TIMERS) for key in line.record.scalars):
            _note_runner(log, line.actor, line.record.line, path)
    records = [line.record for line in lines if line.record.scalars]
    records, more = training_steps(records, str(path))
    read = steps_in_sequence(records, path, {step + 1 for step in log.resumes})
    read.verdicts = [*log.configs.verdicts(path), *verdicts, *more, *read.verdicts]
    return _imported(log, read, records, named)


def _imported(
    log: LogFacts, read: SourceRead, records: Sequence[StepRecord] = (), names_left_out: frozenset[str] = frozenset()
) -> Imported:
    """`records` are the steps in file order."""
    config, later = log.configs.by_step(records)
    versions = {"verl": next(iter(log.versions))} if len(log.versions) == 1 else {}
    found = Imported(read, FORMAT, config, versions, overrides=log.command.overrides, later=later)
    found.names_left_out = names_left_out
    return found


def _require_one_experiment(log: LogFacts, path: Path) -> None:
    if len(log.experiments) > 1:
        (name, _), (other, at), *_ = log.experiments.items()
        raise UserError(
            f"{path} holds several runs: its configuration names experiment {name!r} and, from line {at}, "
            f"{other!r}; {split_commands(path, at - 1)}"
        )


def _next_number(current: _OpenLine, part: Printout) -> str | None:
    """The one number of the next line, as guides print a step; None for any other line."""
    if part.line != current.last.line + 1 or part.actor not in ("", current.first.actor) or current.whole:
        return None
    _, dash, piece = part.text.partition("- ")
    return piece.strip() if dash and _pair(piece.strip()) is not None else None


def _pair(piece: str) -> tuple[str, PrintedNumber] | None:
    """`name:number`; None if the text is not a number."""
    name, _, text = piece.rpartition(":")
    number = parse_number(text) if name.strip() else None
    return (name.strip(), number) if number is not None else None


def _only_verls(lines: Sequence[_Line], path: Path) -> tuple[list[_Line], list[Verdict]]:
    """The lines that verl printed itself, and a verdict on the others.

    A response, a prompt or a reward function may print `step:3 - timing_s/step:0.001`. verl prints the same dozens of
    numbers with every step, except those of a validation (`val*`). A line is not verl's if it is complete, has few
    numbers, and has less than half of the upper quartile of the complete lines.
    """
    counts = [sum(not name.startswith("val") for name in line.record.scalars) for line in lines]
    whole = sorted(count for line, count in zip(lines, counts, strict=True) if not line.cut)
    usual = whole[3 * len(whole) // 4] if whole else 0
    # In a log that was shortened by hand most steps may have few numbers.
    few = [2 * count < usual and count < FEW_NUMBERS for count in counts]
    timed = [TIMERS + "step" in line.record.scalars for line in lines]
    thinned = 2 * sum(f and t for f, t in zip(few, timed, strict=True)) > sum(timed)
    kept: list[_Line] = []
    others: list[tuple[_Line, int]] = []
    for line, count, is_few, is_timed in zip(lines, counts, few, timed, strict=True):
        if is_few and not line.cut and not (thinned and is_timed):
            others.append((line, count))
        else:
            kept.append(line)
    if not others:
        return kept, []
    line, count = others[0]
    shown = "" if len(others) == 1 else f" So do {count_of(len(others) - 1, 'more line')}."
    text = (
        f"{path}:{line.record.line} begins like step {line.record.step} and has {count_of(count, 'number')}; this "
        f"log's steps have {usual}.{shown} Skipped: another line cut it, or another program printed it, such as a "
        "response"
    )
    # A step without another line may have been verl's.
    known = {line.record.step for line in kept}
    elsewhere = all(line.record.step in known for line, _ in others)
    return kept, [Verdict("note" if elsewhere else "warning", "no-step-line", text)]


def _close(current: _OpenLine | None, path: Path) -> list[_Line]:
    """The complete line of a step; none for a validation."""
    if current is None or current.step == 0 or not current.text:
        return []
    verdicts: list[Verdict] = []
    pieces = current.text.rstrip().split(SEPARATOR)
    pairs = [pair for piece in pieces if (pair := _pair(piece)) is not None]
    last = _pair(pieces[-1])
    if last is None and ":" in pieces[-1]:
        # A progress bar or Ray's "[repeated 2x across cluster]" right after the last number.
        name, _, text = pieces[-1].partition(":")
        number = parse_number(leading_number(text.strip()))
        if number is not None and name.strip():
            last = (name.strip(), number)
            pairs.append(last)
    fixed = fixed_decimals([number for _, number in pairs[: -1 if last else None]])
    at_the_cut = current.last.line_chars >= CUT_AT_CHARS and not any(name == TIMERS + "step" for name, _ in pairs)
    cut_off = not current.last.ended or at_the_cut
    usual = {number.decimals for _, number in pairs[:-1] if number.decimals is not None}
    # "38" may have been 382.913: a number at a cut counts only if its decimals are complete.
    inexact = last[0] if last is not None and not (fixed and usual == {last[1].decimals}) else ""
    if inexact and cut_off:
        verdicts.append(_cut_off(path, current.last.line, current.step, inexact))
        pairs, inexact = pairs[:-1], ""
    scalars = {name: number.value for name, number in pairs}
    timed = any(name.startswith(TIMERS) for name in scalars)
    if not timed and scalars and all(name.startswith("val") for name in scalars):
        return []
    if TIMERS + "step" not in scalars:
        cut = f", cut off after {current.last.line_chars} characters" if at_the_cut else ""
        why = (
            "the capture truncated the line (wandb's keeps 4096 characters) or wrapped it, or the run ended in it. "
            "Import the trainer's own log, the wandb run or verl's file logger instead, or as well"
        )
        if old := [name for name in scalars if name.startswith(_TIMERS_OF_0_1)]:
            why = f"its timers are those of verl 0.1 ({old[0]}), which does not time the whole step"
        text = f"{path}:{current.first.line}: step {current.step} has no timing_s/step{cut}: {why}"
        verdicts.append(Verdict("warning", "timings-missing", text))
    rounding = {name: half_digit(number.decimals) for name, number in pairs if fixed and number.decimals is not None}
    record = StepRecord(current.step, {}, scalars, {}, None, path, current.first.line, rounding)
    return [_Line(record, intern(current.first.actor), cut_off, inexact, tuple(verdicts))]


def _cut_off(path: Path, line: int, step: int, name: str) -> Verdict:
    text = f"{path}:{line}: step {step} is truncated in or after {name}; that value is left out"
    return Verdict("note", "value-cut-off", text)


def _without_cut_numbers(lines: Sequence[_Line], path: Path) -> list[_Line]:
    """The lines without the number in which another process's output may have cut them.

    Such a line lacks the number that ends most lines, or ends in a timer without that of the whole step. A name that
    ends several lines and stands within none, such as a checkpoint's timer, is how these lines end.
    """
    names = [[*line.record.scalars] for line in lines if line.record.scalars]
    ends = Counter(one[-1] for one in names)
    name, count = ends.most_common(1)[0] if ends else ("", 0)
    own_ends = {end for end, times in ends.items() if times > 1} - {other for one in names for other in one[:-1]}
    kept = []
    for line in lines:
        record = line.record
        short = 2 * count > len(lines) and name not in record.scalars and line.inexact not in own_ends
        within_timers = line.inexact.startswith(TIMERS) and TIMERS + "step" not in record.scalars
        if line.inexact in record.scalars and (short or within_timers):
            scalars, rounding = (
                {key: value for key, value in numbers.items() if key != line.inexact}
                for numbers in (record.scalars, record.rounding)
            )
            record = replace(record, scalars=scalars, rounding=rounding)
            verdict = _cut_off(path, record.line, record.step, line.inexact)
            line = replace(line, record=record, verdicts=(verdict, *line.verdicts))
        kept.append(line)
    return kept


def _note_runner(log: LogFacts, actor: str, line: int, path: Path) -> None:
    """Note which actor printed a step's timings; `UserError` if two actors print steps in turn: two jobs at once.

    A restarted run has another actor too, but only after the last step of the one before.
    """
    if not actor or log.runners[-1:] == [actor]:
        return
    if actor in log.runners:
        one, other = actor, log.runners[-1]
        file = shlex.quote(str(path))
        split = "; ".join(
            f"grep -F {shlex.quote(f'({name})')} {file} > {shlex.quote(str(path.with_stem(f'{path.stem}-{place}')))}"
            for place, name in enumerate((one, other), start=1)
        )
        raise UserError(
            f"{path} holds several runs at once: ({one}) prints steps before and, on line {line}, after those of "
            f"({other}). Split the file and import each run by itself: {split}"
        )
    log.runners.append(actor)


def is_step(part: Printout) -> bool:
    """Whether a line begins a step as verl prints it, or is a step's timer alone."""
    if "step:" in part.text and STEP_LINE.search(part.text) is not None:
        return True
    return TIMERS in part.text and _TIMER_ALONE.fullmatch(part.text) is not None
