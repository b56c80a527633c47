"""Reads a verl console log: lines such as `step:3 - timing_s/gen:382.913 - ...`."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from sys import intern
from typing import Any

from common.errors import UserError
from common.verdicts import Verdict, count_of, first_of_each_code
from trainers.logs.log_files import Printout, printouts
from trainers.logs.printed import PrintedNumber, fixed_decimals, half_digit, leading_number, parse_number
from trainers.logs.record import TIMERS, Imported, SourceRead, StepRecord
from trainers.logs.restarts import split_commands, steps_in_sequence
from trainers.verl.command_line import CommandLine

FORMAT = "verl-console"
# `training/global_step:1 - ` and `timing_s/step:4.1 - ` are quantities, no beginnings.
STEP_LINE = re.compile(r"(?<![\w/.])step:(\d{1,18}) - ")
SEPARATOR = " - "
# A piece that a line's end has cut in its name or its number.
_BEGUN = re.compile(r"[^\s:]*(?::[^\s:]*)?")
# wandb's capture of the console cuts a line there.
CUT_AT_CHARS = 4096
# verl 0.1.0 ray_trainer.py; later releases log timing_s/.
_TIMERS_OF_0_1 = "timing/"
# A step of verl's has dozens of numbers; what else begins like one has not this many.
FEW_NUMBERS = 10
# What verl prints when it goes on from a checkpoint (ray_trainer.py, _load_checkpoint).
_RESUMES = re.compile(r"Setting global step to (\d{1,18})\b")
_EXPERIMENT = re.compile(r"'experiment_name': '([^']*)'")
_VERSION = re.compile(r"\bverl(?:==|-| version:? ?|, version )v?(\d+\.\d+(?:\.\w+)*)")
# main_ppo.py pretty-prints the whole configuration; longer is none.
_CONFIG_LINES = 5000


@dataclass
class _Open:
    """A step whose line may go on: where it began, and what was read of it so far."""

    step: int
    first: Printout
    text: str
    last: Printout
    joined: bool = False


@dataclass(frozen=True, slots=True)
class _Line:
    """What one line made, the actor that printed it, and whether a cut may have taken some of its numbers."""

    record: StepRecord
    actor: str
    cut: bool
    verdicts: tuple[Verdict, ...]


@dataclass
class _Log:
    """What a log says beside its steps."""

    resumes: set[int] = field(default_factory=set)
    experiments: dict[str, int] = field(default_factory=dict)
    """By name, the line where what the run printed begins, as far as that is known."""
    actors: dict[str, int] = field(default_factory=dict)
    """The first line of each of Ray's actors."""
    dictionaries: dict[str, int] = field(default_factory=dict)
    """The line where the last dictionary that an actor printed begins."""
    runners: list[str] = field(default_factory=list)
    """The actors that printed steps, in their order."""
    versions: set[str] = field(default_factory=set)
    command: CommandLine = field(default_factory=CommandLine)
    """What the run was started with, where the lines before its first step show it."""

    @property
    def told_versions(self) -> dict[str, str]:
        return {"verl": next(iter(self.versions))} if len(self.versions) == 1 else {}


def read_verl_console(path: Path) -> Imported:
    """The steps of a verl console log with every number under verl's name, and the configuration that it printed.

    Validation before training (step 0) is no step. A line that was wrapped is joined where what follows can be nothing
    else; one that was cut is a verdict. Texts and None are no numbers. Numbers that were printed with three decimals
    carry half of the last one. What only begins like a step is left out (see `_of_verl`). `UserError` where the file
    holds several runs, one behind the other or mixed.
    """
    lines: list[_Line] = []
    log, settings = _Log(), _Settings()
    current: _Open | None = None
    for part in printouts(path):
        begins = STEP_LINE.search(part.text) if "step:" in part.text else None
        # A terminal may have broken a line within `training/global_step:3`.
        broken = current is not None and current.text.endswith("global_") and _joined(current, part) is not None
        if begins is not None and not broken:
            lines += _close(current, path)
            current = _Open(int(begins[1]), part, part.text[begins.end() :], part)
            continue
        if current is not None:
            whole = _joined(current, part)
            if whole is not None:
                current.text, current.last, current.joined = whole, part, True
                continue
            if part.text.strip() and part.line > current.last.line:
                lines += _close(current, path)
                current = None
        if not lines and current is None:
            log.command.feed(part.text)
        _note(log, settings, part)
    lines += _close(current, path)
    if len(log.experiments) > 1:
        (name, _), (other, at), *_ = log.experiments.items()
        raise UserError(
            f"{path} holds several runs: its configuration names experiment {name!r} and, from line {at}, {other!r}. "
            f"Which is meant is not guessed: {split_commands(path, at - 1)}"
        )
    everything = lines
    lines, verdicts = _of_verl(lines, path)
    named = frozenset(name for one in everything if len(everything) > len(lines) for name in one.record.scalars)
    verdicts += first_of_each_code(told for line in lines for told in line.verdicts)
    for line in lines:
        if any(key.startswith(TIMERS) for key in line.record.scalars):
            _note_runner(log, line.actor, line.record.line, path)
    records = [line.record for line in lines if line.record.scalars]
    read = steps_in_sequence(records, path, {step + 1 for step in log.resumes})
    read.verdicts = verdicts + read.verdicts
    overrides = log.command.overrides
    told = log.told_versions
    return Imported(read, FORMAT, settings.found, told, overrides=overrides, names_left_out=named)


def _joined(current: _Open, part: Printout) -> str | None:
    """The step's text with a line that can only be its continuation; None where it is not certain.

    A terminal breaks a line anywhere, within a name or a number too, and loses a space at the break. Every piece from
    the break on must be `name:number`; the last one may have only begun, where the line holds others.
    """
    if part.line != current.last.line + 1 or part.actor not in ("", current.first.actor) or not part.text.strip():
        return None
    # The last of several lines of one width may hold the rest of a number alone.
    width = current.first.line_chars
    # A row may have lost the space at its end.
    rest_only = current.joined and abs(current.last.line_chars - width) <= 1 and part.line_chars <= width
    unbroken = current.text.count(SEPARATOR)
    for glue in ("", " "):
        whole = current.text + glue + part.text
        *pieces, last = whole.rstrip().removesuffix(" -").split(SEPARATOR)[unbroken:]
        if not all(_is_pair(piece) for piece in pieces):
            continue
        if _is_pair(last) and (":" in part.text or rest_only):
            return whole
        if pieces and _BEGUN.fullmatch(last):
            return whole
    return None


def _is_pair(piece: str) -> bool:
    name, _, text = piece.strip().rpartition(":")
    return re.fullmatch(r"[^\s:]+", name) is not None and parse_number(text) is not None


def _pair(piece: str) -> tuple[str, PrintedNumber] | None:
    """`name:number`; None where the text is no number."""
    name, _, text = piece.rpartition(":")
    number = parse_number(text) if name.strip() else None
    return (name.strip(), number) if number is not None else None


def _of_verl(lines: Sequence[_Line], path: Path) -> tuple[list[_Line], list[Verdict]]:
    """The lines that verl printed itself, and what to say of the others.

    A response, a prompt or a reward function may print `step:3 - timing_s/step:0.001`. verl prints the same numbers
    with every step, but for those of a validation (`val*`): dozens from several families. A line with less than half
    of what a quarter of the whole lines have, and with few, is not its own, unless it was cut off.
    """
    counts = [sum(not name.startswith("val") for name in line.record.scalars) for line in lines]
    whole = sorted(count for line, count in zip(lines, counts, strict=True) if not line.cut)
    usual = whole[3 * len(whole) // 4] if whole else 0
    # In a log that was thinned by hand most steps may have few numbers.
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
        f"{path}:{line.record.line} begins like step {line.record.step} and has {count_of(count, 'number')}, where "
        f"this log's steps have {usual}.{shown} Cut by another line, printed by "
        "another part of verl, or by something else, such as a response: left out"
    )
    # A step that is nowhere else may have been verl's.
    known = {line.record.step for line in kept}
    elsewhere = all(line.record.step in known for line, _ in others)
    return kept, [Verdict("note" if elsewhere else "warning", "no-step-line", text)]


def _close(current: _Open | None, path: Path) -> list[_Line]:
    """The step whose line is complete; none for a validation."""
    if current is None or current.step == 0:
        return []
    verdicts: list[Verdict] = []
    pieces = current.text.rstrip().split(SEPARATOR)
    pairs = [pair for piece in pieces if (pair := _pair(piece)) is not None]
    last = _pair(pieces[-1])
    if last is None and ":" in pieces[-1]:
        # A progress bar or Ray's "[repeated 2x across cluster]" right behind the last number.
        name, _, text = pieces[-1].partition(":")
        whole = parse_number(leading_number(text.strip()))
        if whole is not None and name.strip():
            last = (name.strip(), whole)
            pairs.append(last)
    fixed = fixed_decimals([number for _, number in pairs[: -1 if last else None]])
    at_the_cut = current.last.line_chars >= CUT_AT_CHARS and not any(name == TIMERS + "step" for name, _ in pairs)
    cut_off = not current.last.ended or at_the_cut
    if last is not None and cut_off:
        usual = {number.decimals for _, number in pairs[:-1] if number.decimals is not None}
        if not (fixed and usual == {last[1].decimals}):
            # "38" may have been 382.913: a number at a cut counts only where its decimals are all there.
            pairs = pairs[:-1]
            text = (
                f"{path}:{current.last.line}: step {current.step} was cut off in or after {last[0]}: that value is "
                "left out"
            )
            verdicts.append(Verdict("note", "value-cut-off", text))
    scalars = {name: number.value for name, number in pairs}
    timed = any(name.startswith(TIMERS) for name in scalars)
    if not timed and scalars and all(name.startswith("val") for name in scalars):
        return []
    if TIMERS + "step" not in scalars:
        cut = f", cut off after {current.last.line_chars} characters" if at_the_cut else ""
        why = (
            "a line that was cut by what captured it (wandb's console capture keeps 4096 characters), or a run that "
            "was ended in it. Import the trainer's own log, the wandb run or verl's file logger instead, or beside it"
        )
        if old := [name for name in scalars if name.startswith(_TIMERS_OF_0_1)]:
            why = f"its timers are those of verl 0.1 ({old[0]}), which does not time the whole step"
        text = f"{path}:{current.first.line}: step {current.step} has no timing_s/step{cut}: {why}"
        verdicts.append(Verdict("warning", "timings-missing", text))
    rounding = {name: half_digit(number.decimals) for name, number in pairs if fixed and number.decimals is not None}
    record = StepRecord(current.step, {}, scalars, {}, None, path, current.first.line, rounding)
    return [_Line(record, intern(current.first.actor), cut_off, tuple(verdicts))]


def _note_runner(log: _Log, actor: str, line: int, path: Path) -> None:
    """Keeps which actor printed a step's timings; `UserError` where another did since it last had: two jobs at once.

    A run that was started again has another actor too, but only after the last step of the one before.
    """
    if not actor or log.runners[-1:] == [actor]:
        return
    if actor in log.runners:
        one, other = actor, log.runners[-1]
        whole = shlex.quote(str(path))
        split = "; ".join(
            f"grep -F {shlex.quote(f'({name})')} {whole} > {shlex.quote(str(path.with_stem(f'{path.stem}-{place}')))}"
            for place, name in enumerate((one, other), start=1)
        )
        raise UserError(
            f"{path} holds several runs at once: ({one}) prints steps before and, on line {line}, after those of "
            f"({other}). Which run is meant is not guessed: split the file and import each run by itself: {split}"
        )
    log.runners.append(actor)


def _note(log: _Log, settings: _Settings, part: Printout) -> None:
    text = part.text
    log.actors.setdefault(part.actor, part.line)
    if text.startswith("{'"):
        log.dictionaries[part.actor] = part.line
    if "Setting global step" in text and (resumes := _RESUMES.search(text)) is not None:
        log.resumes.add(int(resumes[1]))
    if "experiment_name" in text and (named := _EXPERIMENT.search(text)) is not None:
        # The name stands near the end of the configuration, which must not be cut in two.
        begins = log.dictionaries.get(part.actor, part.line)
        if part.actor and log.actors[part.actor] > max(log.experiments.values(), default=0):
            begins = log.actors[part.actor]
        log.experiments.setdefault(named[1], begins)
    if "verl" in text and (version := _VERSION.search(text)) is not None:
        log.versions.add(version[1])
    settings.feed(part)


class _Settings:
    """Picks the configuration out of the log: the lines of one pretty-printed dictionary."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self._lines: list[str] = []
        self._actor = ""

    def feed(self, part: Printout) -> None:
        if self.found:
            return
        if not self._lines:
            if part.text.startswith("{'"):
                self._lines, self._actor = [part.text], part.actor
        elif part.actor == self._actor:
            self._lines.append(part.text)
        if self._lines and part.text.rstrip().endswith("}"):
            self._try()
        if len(self._lines) > _CONFIG_LINES:
            self._lines = []

    def _try(self) -> None:
        text = "\n".join(self._lines)
        if text.count("{") > text.count("}"):
            return
        self._lines = []
        try:
            read = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return
        if isinstance(read, dict) and "actor_rollout_ref" in read and "trainer" in read:
            self.found = read


def told_before_steps(parts: Iterable[Printout]) -> Imported:
    """What a log tells of its run before its first step."""
    log, settings = _Log(), _Settings()
    for part in parts:
        if "step:" in part.text and STEP_LINE.search(part.text):
            break
        log.command.feed(part.text)
        _note(log, settings, part)
    return Imported(SourceRead(), FORMAT, settings.found, log.told_versions, overrides=log.command.overrides)


def told_anywhere(path: Path) -> dict[str, str]:
    """The versions by package that a log tells, as `read_verl_console` has them."""
    texts = (part.text for part in printouts(path) if "verl" in part.text)
    return _Log(versions={version[1] for text in texts if (version := _VERSION.search(text))}).told_versions


def looks_like_verl(parts: Iterable[Printout]) -> bool:
    """Whether one of the printouts begins a step as verl prints it."""
    return any("step:" in part.text and STEP_LINE.search(part.text) for part in parts)
