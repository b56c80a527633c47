"""Reads consoles whose steps are a number and a printed Python dictionary: OpenRLHF's, slime's and SkyRL's.

Their steps have wandb's names. SkyRL's may only have its timers' lines, `Finished: 'step', time cost: 12.34s`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from common.verdicts import Verdict
from trainers.logs.log_files import (
    PrintedNumber,
    Printout,
    fixed_decimals,
    half_digit,
    leading_number,
    parse_number,
    printouts,
)
from trainers.logs.record import EVALUATION, TIMERS, Imported, StepNames, StepRecord
from trainers.logs.restarts import steps_in_sequence
from trainers.protocol import LogFormat

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


def row_console(name: str, label: str, table: Mapping[str, str], names: StepNames) -> LogFormat:
    """A console that prints a row as a number and a dictionary, by its table in trainers.toml."""
    form, begins, step = f"{name}-console", re.compile(table["row"]), table.get("step", table["word"])
    return LogFormat(
        form,
        f"{label}'s console, with lines {table['example']}",
        lambda path: imported_rows(_rows(printouts(path), table, names), path, form, names, table.get("prefix", "")),
        is_step=lambda part: step in part.text and begins.search(part.text) is not None,
    )


def _rows(parts: Iterable[Printout], table: Mapping[str, str], names: StepNames) -> Iterator[PrintedRow]:
    """The rows of a console. An evaluation marks the next row with a step's total."""
    word, begins, evaluation = table["word"], re.compile(table["row"]), table.get("evaluation")
    before, after = names.timers[0]
    total, mark = (f"{before}{name}{after}" for name in (names.total, EVALUATION))
    evaluated = False
    for part in parts:
        if word not in part.text:
            continue
        if (found := begins.search(part.text)) is None:
            evaluated = evaluated or (evaluation is not None and re.search(evaluation, part.text) is not None)
            continue
        row = parse_row(part.text[found.end() :], int(found[1]), part.line)
        if evaluated and total in row.numbers:
            row.numbers[mark] = PrintedNumber(0.0, None)
            evaluated = False
        yield row


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
    latest = PrintedRow(0, {}, True, 0)
    for row in rows:
        if replace(row, line=latest.line) == latest:
            # Printed twice: by several processes, or into two streams of one file.
            continue
        latest = row
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
    if waiting and not records:
        before, after = names.timers[0]
        total = f"{before.removeprefix(prefix)}{names.total}{after}"
        text = f"none of its rows has {total}, the time of the whole step, which older releases do not print"
        verdicts.append(Verdict("warning", "timings-missing", text))
    read = steps_in_sequence(records, path, resumed_at)
    read.verdicts = verdicts + read.verdicts
    return Imported(read, form)


_OPENRLHF_PARTS = tuple(TIMERS + name for name in ("generation", "make_experience", "ppo_train", "broadcast"))
_OPENRLHF_TOTAL = TIMERS + "step_total"


def openrlhf_overlap(numbers: Mapping[str, float]) -> Mapping[str, float]:
    """The synchronous loop's total is the exact sum of its parts; the asynchronous loop's is a wall clock."""
    if _OPENRLHF_TOTAL not in numbers or not all(part in numbers for part in _OPENRLHF_PARTS):
        return {}
    summed = sum(value for name, value in numbers.items() if name.startswith(TIMERS) and name != _OPENRLHF_TOTAL)
    return {} if math.isclose(numbers[_OPENRLHF_TOTAL], summed, rel_tol=1e-9) else {"openrlhf/overlaps": 1.0}


def slime_overlap(numbers: Mapping[str, float]) -> Mapping[str, float]:
    """A rollout longer than the trainer's wait for it ran during the previous training (train_async.py)."""
    rollout, wait = (numbers.get(TIMERS + name) for name in ("rollout", "train_wait"))
    return {"slime/overlaps": 1.0} if rollout is not None and wait is not None and rollout > wait else {}


_SKYRL = "skyrl-console"
# The tracker `console` prints `Step 3: ` and, from the next line on, a dictionary of texts with four decimals.
_SKYRL_BLOCK = re.compile(r"(?<![\w/])Step (\d{1,18}): *$")
_LONGEST_BLOCK = 1000
_SKYRL_TIMER = re.compile(r"(Started|Finished): '([\w/.-]+)'(?:, time cost: (\d+\.\d\d)s)?")
_SKYRL_RESUMES = re.compile(r"Resuming from global_step: (\d{1,18})\b")
_SKYRL_TRAINED = frozenset(("train_critic_and_policy", "run_training"))
_SKYRL_STEP = "Finished: 'step', time cost: "


def _skyrl_blocks(path: Path, resumed_at: set[int]) -> Iterator[PrintedRow]:
    """The dictionaries that the tracker prints, also incomplete ones; adds the first steps after restarts."""
    head: tuple[int, Printout] | None = None
    lines: list[str] = []
    for part in printouts(path):
        if "Resuming from" in part.text and (resumes := _SKYRL_RESUMES.search(part.text)) is not None:
            resumed_at.add(int(resumes[1]) + 1)
        begins = _SKYRL_BLOCK.search(part.text) if "Step " in part.text else None
        if begins is not None:
            if head is not None and lines:
                yield parse_row("\n".join(lines), head[0], head[1].line)
            head, lines = (int(begins[1]), part), []
        elif head is not None and part.actor == head[1].actor:
            lines.append(part.text)
            if part.text.rstrip().endswith("}") or len(lines) > _LONGEST_BLOCK:
                yield parse_row("\n".join(lines), head[0], head[1].line)
                head = None
    if head is not None and lines:
        yield parse_row("\n".join(lines), head[0], head[1].line)


def _skyrl_timed(path: Path) -> Iterator[StepRecord]:
    """The steps of the timers' own lines: `Finished: 'generate', time cost: 12.34s`.

    A step without an update discarded all its responses (dynamic sampling); its seconds count in the next step.
    """
    step, inside, from_step = 0, False, 0
    seconds: dict[str, float] = {}
    calls: dict[str, int] = {}
    for part in printouts(path):
        if "Resuming from" in part.text and (resumes := _SKYRL_RESUMES.search(part.text)) is not None:
            from_step = int(resumes[1])
        if "ed: '" not in part.text or (timer := _SKYRL_TIMER.search(part.text)) is None:
            continue
        event, name, cost = timer.groups()
        if name == "init_weight_sync_state" and event == "Started":
            # The trainer starts, from a checkpoint if the log names one before the first step.
            step, inside, seconds, calls = 0, False, {}, {}
        if event == "Started":
            if name == "step":
                step, from_step, inside = from_step or step, 0, True
        elif inside and cost is not None:
            seconds[name] = seconds.get(name, 0.0) + float(cost)
            calls[name] = calls.get(name, 0) + 1
            if name == "step":
                inside = False
                if _SKYRL_TRAINED & seconds.keys():
                    step += 1
                    scalars = {TIMERS + key: value for key, value in seconds.items()}
                    rounding = {TIMERS + key: half_digit(2) * times for key, times in calls.items()}
                    yield StepRecord(step, {}, scalars, {}, None, path, part.line, rounding)
                    seconds, calls = {}, {}


def _read_skyrl(names: StepNames, path: Path) -> Imported:
    """The steps that SkyRL's tracker prints; without them, those of its timers' lines.

    Timer lines have no step number: they count from 1, or from the checkpoint that the log names.
    """
    resumed_at: set[int] = set()
    found = imported_rows(_skyrl_blocks(path, resumed_at), path, _SKYRL, names, resumed_at=resumed_at)
    if found.read.records:
        return found
    read = steps_in_sequence(list(_skyrl_timed(path)), path, resumed_at)
    if read.records:
        text = (
            f"{path}: its timer lines have no step numbers; steps count from 1, or from the checkpoint that the log "
            "names. If the head of the log is missing, the numbers are wrong: import the wandb run instead"
        )
        read.verdicts.append(Verdict("note", "step-by-place", text))
    return Imported(read, _SKYRL)


def skyrl_console(names: StepNames) -> LogFormat:
    """SkyRL's console: what its tracker prints, else its timers' lines."""
    return LogFormat(
        _SKYRL,
        "SkyRL's console, with lines Finished: 'step', time cost: 12.34s",
        partial(_read_skyrl, names),
        is_step=lambda part: _SKYRL_STEP in part.text or "'timing/step': '" in part.text,
    )
