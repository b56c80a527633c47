"""Reads SkyRL's console: what its tracker prints, else its timers' lines `Finished: 'step', time cost: 12.34s`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from common.verdicts import Verdict
from trainers.imported.dictionary_consoles import PrintedRow, imported_rows, parse_row
from trainers.logs.log_files import Printout, printouts
from trainers.logs.printed import half_digit
from trainers.logs.record import TIMERS, Imported, StepNames, StepRecord
from trainers.logs.restarts import steps_in_sequence
from trainers.protocol import LogFormat

_FORMAT = "skyrl-console"
# The tracker `console` prints `Step 3: ` and, from the next line on, a dictionary of texts with four decimals.
_BLOCK = re.compile(r"(?<![\w/])Step (\d{1,18}): *$")
_LONGEST_BLOCK = 1000
_TIMER = re.compile(r"(Started|Finished): '([\w/.-]+)'(?:, time cost: (\d+\.\d\d)s)?")
_RESUMES = re.compile(r"Resuming from global_step: (\d{1,18})\b")
_TRAINED = frozenset(("train_critic_and_policy", "run_training"))
_STEP = "Finished: 'step', time cost: "


def _blocks(parts: Iterable[Printout]) -> Iterator[PrintedRow]:
    """The dictionaries that the tracker prints, also those whose end is missing."""
    head: tuple[int, Printout] | None = None
    lines: list[str] = []
    for part in parts:
        begins = _BLOCK.search(part.text) if "Step " in part.text else None
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


def _timed(parts: Iterable[Printout], path: Path) -> Iterator[StepRecord]:
    """The steps of the timers' own lines: `Finished: 'generate', time cost: 12.34s`.

    A step without an update discarded all its responses (dynamic sampling); its seconds count in the next step.
    """
    step, inside, from_step = 0, False, 0
    seconds: dict[str, float] = {}
    calls: dict[str, int] = {}
    for part in parts:
        if "Resuming from" in part.text and (resumes := _RESUMES.search(part.text)) is not None:
            from_step = int(resumes[1])
        if "ed: '" not in part.text or (timer := _TIMER.search(part.text)) is None:
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
                if _TRAINED & seconds.keys():
                    step += 1
                    scalars = {TIMERS + key: value for key, value in seconds.items()}
                    rounding = {TIMERS + key: half_digit(2) * times for key, times in calls.items()}
                    yield StepRecord(step, {}, scalars, {}, None, path, part.line, rounding)
                    seconds, calls = {}, {}


def _noting_restarts(parts: Iterable[Printout], resumed_at: set[int]) -> Iterator[Printout]:
    """The same parts; the first step after each restart is added to `resumed_at`."""
    for part in parts:
        if "Resuming from" in part.text and (resumes := _RESUMES.search(part.text)) is not None:
            resumed_at.add(int(resumes[1]) + 1)
        yield part


def _read_console(names: StepNames, path: Path) -> Imported:
    """The steps that SkyRL's tracker prints; without them, those of its timers' lines.

    Timer lines have no step number: they count from 1, or from the checkpoint that the log names.
    """
    resumed_at: set[int] = set()
    parts = _noting_restarts(printouts(path), resumed_at)
    found = imported_rows(_blocks(parts), path, _FORMAT, names, resumed_at=resumed_at)
    if found.read.records:
        return found
    read = steps_in_sequence(list(_timed(printouts(path), path)), path, resumed_at)
    if read.records:
        text = (
            f"{path}: its timer lines have no step numbers; steps count from 1, or from the checkpoint that the log "
            "names. If the head of the log is missing, the numbers are wrong: import the wandb run instead"
        )
        read.verdicts.append(Verdict("note", "step-by-place", text))
    return Imported(read, _FORMAT)


def console(names: StepNames) -> LogFormat:
    """The steps under wandb's names."""
    return LogFormat(
        _FORMAT,
        "SkyRL's console, with lines Finished: 'step', time cost: 12.34s",
        partial(_read_console, names),
        is_step=lambda part: _STEP in part.text or "'timing/step': '" in part.text,
    )
