"""Reads a table with a row for each step: a header, a column of steps and one of the step's seconds (docs/import.md).

A table with the names that a known trainer gives wandb is read as that trainer's. No column and no unit is guessed.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pandas as pd

from analysis.imports.source_check import trainers_by_data
from analysis.sources.phase_table import is_phases, name_taken, read_phases
from analysis.sources.table_frame import (
    COUNTERS,
    FORMAT,
    frame_of,
    half_of_last_digit,
    names_of,
    numbers_of,
    of_one_run,
    plain_name,
)
from analysis.sources.wandb_rows import WANDB_STEP, steps_of
from analysis.wide import ABSURD_S
from common.errors import UserError
from common.messages import did_you_mean, join_first
from common.verdicts import Verdict
from trainers.logs.hf_rows import STEP_TIME
from trainers.logs.record import STEPS_LOGGED, TIMERS, WALL, Imported, StepRecord, TablePhase
from trainers.logs.restarts import steps_in_sequence
from trainers.registry import trainer_named, trainers

COLUMNS_TAKEN = "columns-taken"
"""The code of the verdict that says which column was taken for what."""
FLAG = "--step-seconds"
SECONDS = ("step_time", "time/step", "time/total", "timing_s/step", "iteration_time")
"""The columns with the step's seconds; each may have its unit at the end, and `step` with a unit is one, too."""
CLOCKS = ("timestamp", "wall_time", "elapsed", "elapsed_time", "runtime")
"""The columns that say when a row was written: the step's seconds are their differences."""
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0}
"""The units of --unit, in seconds."""
# The zeros of a whole second.
_ZEROS = {"ms": 3, "us": 6}
_IN_WORDS = {"ms": "milliseconds", "us": "microseconds", "min": "minutes"}
_WORDS = {"s": "s sec secs second seconds", "ms": "ms msec millis milliseconds", "us": "us usec micros microseconds"}
_UNIT_OF = {word: unit for unit, words in (_WORDS | {"min": "min mins minutes"}).items() for word in words.split()}
# Phases may exceed their step by so much, and by more in so few rows: clocks are read a moment apart.
_TOLERANCE, _FEW = 2e-3, 0.05
_MOST_SHOWN, _MOST_OFFERED = 12, 4


def read_table(
    path: Path,
    step_seconds: str | None = None,
    names: Collection[str] = (),
    trainer: str | None = None,
    unit: str | None = None,
) -> Imported:
    """The steps of a file with a row for each step, or for each phase of one.

    `step_seconds` is the column with the step's seconds, or several, joined by `+`; `unit` is theirs. `names` select
    one run in a table of several. A table with a known trainer's names is of that trainer, unless `trainer` is another
    or `step_seconds` is given.
    """
    cells, verdicts = frame_of(path)
    if is_phases(cells):
        found = read_phases(cells, path, names)
    else:
        cells, exported = _of_one_export(cells, names, path)
        cells, selected = of_one_run(cells, names, path)
        known = _of_known_trainer(cells, path) if step_seconds is None else None
        is_known = known is not None and trainer in (None, known.read.written_by)
        found = known if known and is_known else table_of(cells, path, step_seconds, unit)
        found.selected = selected | exported
    found.read.verdicts += verdicts
    return found


def _of_one_export(cells: pd.DataFrame, names: Collection[str], path: Path) -> tuple[pd.DataFrame, dict[str, str]]:
    """The columns of one run of wandb's export of a chart, which names them `run - metric`, and what selects them."""
    first, *others = names_of(cells) or [""]
    runs = {name: name.rpartition(" - ")[0] for name in others}
    if not runs or not all(runs.values()):
        return cells, {}
    every = list(dict.fromkeys(runs.values()))
    chosen = [run for run in every if run in names] if len(every) > 1 else every
    if len(chosen) != 1:
        raise UserError(
            f"{path} holds several runs: {join_first(every, 6)}. Name the arm as its run (compare "
            f"{shlex.quote(f'{every[0]}={path}')}), or export each run by itself"
        )
    metrics = {name: name.removeprefix(f"{run} - ") for name, run in runs.items() if run == chosen[0]}
    own = [name for name, metric in metrics.items() if not metric.endswith(("__MIN", "__MAX"))]
    return cells[[first, *own]].rename(columns=metrics), {"run": chosen[0]} if len(every) > 1 else {}


def _counter(cells: pd.DataFrame) -> str:
    plain = {plain_name(name): name for name in reversed(names_of(cells))}
    return next((plain[name] for name in COUNTERS if name in plain), "")


def _of_known_trainer(cells: pd.DataFrame, path: Path) -> Imported | None:
    """The steps by the names of a known trainer's rows; None if they are not those of one."""
    counter, known = _counter(cells), [trainer.logs.rows for trainer in trainers() if trainer.logs.rows is not None]
    marks = {STEP_TIME, *(names.mark for names in known)}
    if not counter or not any(name.startswith(TIMERS) or name in marks for name in names_of(cells)):
        return None
    frame, *_ = numbers_of(cells)
    if counter not in frame:
        return None
    totals = [name for names in known if names.first == 1 and (name := TIMERS + names.total) in frame]
    # A row of step 0 that has a step's seconds is a training step.
    first = bool(frame.loc[frame[counter] == 0, totals].notna().any(axis=None))
    columns, counts = names_of(frame), (frame[counter] + first).tolist()
    rows = (
        (path, line, {n: v for n, v in zip(columns, row, strict=True) if v == v} | {WANDB_STEP: step})
        for step, (line, *row) in zip(counts, frame.itertuples(name=None), strict=True)
    )
    read = steps_of(rows, path.name)
    writers = trainers_by_data(read)
    names = trainer_named(writers[0]).logs.rows if len(writers) == 1 else None
    # A table may lack the column that times these steps.
    untimed = names is not None and not any(TIMERS + names.total in one.scalars for one in read.records.values())
    if len(writers) != 1 or untimed:
        return None
    read.written_by = writers[0]
    timers = [name for name in columns if name.startswith(TIMERS) or name == STEP_TIME]
    halves = {name: half_of_last_digit(frame[name]) for name in timers}
    for step, one in read.records.items():
        read.records[step] = replace(one, rounding={name: halves[name] for name in timers if name in one.scalars})
    return Imported(read, FORMAT)


def table_of(
    cells: pd.DataFrame, path: Path, step_seconds: str | None = None, unit: str | None = None, clock: str = ""
) -> Imported:
    """The steps of a table's cells; `clock` is a column that says when a row was written."""
    counter = _counter(cells)
    frame, texts, in_seconds = numbers_of(cells)
    plain = {*map(plain_name, names_of(cells))}
    named = {name: _named(name, plain) for name in names_of(cells) if name != counter}
    if not (columns := _chosen(named, step_seconds, path)):
        raise UserError(_undecided(named, [name for name in named if name in frame and name not in texts], path))
    for name in filter(texts.__contains__, (counter, *columns)):
        line, text = texts[name]
        raise UserError(
            f"{path}:{line}: {name} is {text[:40]!r}, no plain number such as 1234.5: write it so, with its unit in "
            "the column's name (step_time_ms), or leave the row out"
        )
    verdicts = [name_taken(path)] if STEPS_LOGGED in frame else []
    frame = frame.reindex(columns=list(dict.fromkeys([*names_of(frame), *columns])))
    frame = frame.drop(columns=STEPS_LOGGED, errors="ignore")
    units = ["s" if name in (*in_seconds, clock) else unit or named[name][1] for name in columns]
    off_s = 0.0
    for name, said in zip(columns, units, strict=True):
        off_s += half_of_last_digit(frame[name], _ZEROS.get(said or "s", 0)) * UNITS[said or "s"]
        frame[name] *= UNITS[said or "s"]
    is_clock = named[columns[0]][0] in CLOCKS or ABSURD_S < frame[columns].sum(axis=1).median() < math.inf
    frame = _a_row_a_step(frame, counter, columns, is_clock, path)
    whole = frame[columns].sum(axis=1, skipna=False).rename("+".join(columns))
    parts = frame[columns] if len(columns) > 1 else _beside(frame, columns[0], unit, named)
    timers, what = _differences(whole, frame, counter, path) if is_clock else _with_phases(whole, parts, path, units[0])
    records = _records(frame.drop(columns=columns), timers, counter, path, frame[clock] if clock else None)
    total, times = names_of(timers)[0], 2 if is_clock else 1
    records = [
        replace(one, rounding={total: times * off_s / one.scalars.get(STEPS_LOGGED, 1.0)})
        if off_s and total in one.scalars
        else one
        for one in records
    ]
    read = steps_in_sequence(records, path, {b.step for a, b in pairwise(records) if a.file != b.file})
    if is_clock and records:
        window = int(records[0].scalars.get(STEPS_LOGGED, 1))
        read.untimed_from = max(1, records[0].step - 2 * window + 1)
    counts = f"{counter} counts the steps" if counter else "no column counts the steps, so rows count as steps from 1"
    read.verdicts = [Verdict("note", COLUMNS_TAKEN, f"{path}: {counts}; {what}"), *verdicts, *read.verdicts]
    root, *phases = (name.removeprefix(TIMERS) for name in names_of(timers) if name != STEPS_LOGGED)
    tree = {root: TablePhase("", "", 1, path)} | {name: TablePhase(root, "", 1, path) for name in phases}
    name = "a clock" if is_clock else "+".join(named[name][0] for name in columns)
    return Imported(read, FORMAT, tree=tree, column={"name": name, "unit": units[0] if all(units) else None})


def _named(name: str, every: Collection[str]) -> tuple[str, str]:
    """A column's plain name without its unit, and the unit that it ends with, "" for none; `every` are plain names."""
    plain = plain_name(name)
    stem, _, last = plain.rpartition("_")
    unit = _UNIT_OF.get(last, "") if stem else ""
    if unit == "min" and f"{stem}_max" in every:
        unit = ""  # a minimum
    return (stem, unit) if unit else (plain, "s" if name.startswith(TIMERS) else "")


def _chosen(named: Mapping[str, tuple[str, str]], given: str | None, path: Path) -> list[str]:
    """The columns of the step's seconds: those that are given, or the one that has such a name; none without one."""
    if given is not None:
        chosen = [given] if given in named else given.split("+")
        if unknown := next((name for name in chosen if name not in named), ""):
            hint = did_you_mean(unknown, named)
            raise UserError(f"{path} has no column {unknown}{hint}; it has {join_first(list(named), _MOST_SHOWN)}")
        return chosen
    chosen = [name for name, (stem, unit) in named.items() if stem in SECONDS or (stem == "step" and unit)]
    if len(chosen) > 1:
        flags = " or ".join(map(_flag, chosen))
        raise UserError(f"{path} has several columns named as the step's seconds; name one of them: {flags}")
    clocks = {stem: name for name, (stem, _) in named.items()}
    return chosen or [clocks[stem] for stem in CLOCKS if stem in clocks][:1]


def _flag(name: str) -> str:
    return f"{FLAG} {shlex.quote(name)}"


def _undecided(named: Mapping[str, tuple[str, str]], numeric: Sequence[str], path: Path) -> str:
    """That no column has a name of the step's seconds, and a flag that names one, in one line."""
    numeric = [name for name in numeric if "_per_" not in name and "/s" not in name]
    wholes = [name for name in numeric if named[name][0].endswith(("step_time", "time_per_step"))]
    times = [n for n in numeric if named[n][1] or named[n][0].endswith(("time", "seconds", "duration"))]
    flags = " or ".join(map(_flag, (wholes or times or numeric)[:_MOST_OFFERED]))
    todo = f"Name the one of the whole step: {flags}"
    if len(wholes) > 1:
        todo = "Save a table for each arm, with the columns step,step_time"
    elif len(times) > 1 and not wholes:
        todo = f"If one is the whole step, name it; if they follow each other, name all: {_flag('+'.join(times))}"
    elif not numeric:
        todo = "Give it a first line of names such as step,step_time, and numbers below"
    shown = join_first(list(named), _MOST_SHOWN) or "none but the step"
    return f"{path}: no column is named as the step's seconds (step_time; docs/import.md); it has {shown}. {todo}"


def _a_row_a_step(frame: pd.DataFrame, counter: str, columns: list[str], is_clock: bool, path: Path) -> pd.DataFrame:
    """The rows with a step, in order; rows of one step are joined, if they do not time it twice."""
    if not counter:
        return frame
    steps = frame[counter]
    odd = steps.notna() & ((steps % 1 != 0) | (steps < 0))
    odd |= steps.isna() & frame[columns].notna().any(axis=1) & (not is_clock)
    if odd.any():
        raise UserError(f"{path}:{frame.index[odd][0]}: {counter} is no whole number; correct it, or leave the row out")
    frame = frame[steps.notna()]
    begins = frame[counter].ne(frame[counter].shift())
    if not begins.all():
        groups = frame.groupby(begins.cumsum().to_numpy())
        if not is_clock and (groups[columns].nunique() > 1).any(axis=None):
            raise UserError(
                f"{path} has several rows a step ({counter}) with other seconds. Of several processes (ranks, "
                "micro-batches): write the sum, or the slowest; of several runs: give each a name in a column run; "
                "leave rows of evaluations out"
            )
        frame = groups.first().set_axis(frame.index[begins])
    return frame.sort_values(counter) if frame[counter].is_unique else frame


def _steps(frame: pd.DataFrame, counter: str) -> pd.Series:
    return frame[counter] if counter else pd.Series(range(1, len(frame) + 1), frame.index, dtype=float)


def _differences(times: pd.Series, frame: pd.DataFrame, counter: str, path: Path) -> tuple[pd.DataFrame, str]:
    """A clock's seconds of each step since the last row that shows another time, and the number of these steps."""
    times = times[times.abs() < math.inf]
    if len(times := times[times.diff() != 0]) < 2:
        raise UserError(f"{path}: {times.name} is a clock with 1 time; a step's seconds are the difference of two")
    windows = _steps(frame, counter)[times.index].diff().clip(lower=1)
    # A clock that falls began anew.
    passed = (times.diff() / windows).where(times.diff() > 0)
    timers = pd.DataFrame({WALL: passed, STEPS_LOGGED: windows.where(windows > 1)})[1:]
    return timers, f"{times.name} is a clock, and the step's seconds are its differences"


def _beside(frame: pd.DataFrame, column: str, unit: str | None, named: Mapping[str, tuple[str, str]]) -> pd.DataFrame:
    """The columns with the prefix of the step's (`time/`), in seconds; a unit is in all names or in none."""
    prefix, slash, _ = column.rpartition("/")
    like = [name for name in named if slash and name.startswith(prefix + slash) and name != column and name in frame]
    like = [n for n in like if bool(named[n][1]) == bool(named[column][1]) and "_per_" not in n and "*" not in n]
    return pd.DataFrame({name: frame[name] * UNITS[unit or named[name][1] or "s"] for name in like}, frame.index)


def _with_phases(whole: pd.Series, parts: pd.DataFrame, path: Path, unit: str | None) -> tuple[pd.DataFrame, str]:
    """The step's seconds, and its phases; parts that are longer than the step together are none: some are nested."""
    timed = whole[(whole > 0) & (whole < math.inf)]
    if timed.empty:
        raise UserError(f"{path}: {whole.name} is no finite number above 0 in any row; give the step's seconds")
    what = f"{whole.name} is the step's " + (f"time in {_IN_WORDS[unit]}" if unit in _IN_WORDS else "seconds")
    if (parts.loc[timed.index].sum(axis=1) > timed * (1 + _TOLERANCE) + _TOLERANCE).mean() > _FEW:
        what += f"; {join_first(list(parts), 6)} together exceed it, so some are inside others, and none is a phase"
        parts = parts[[]]
    elif len(parts.columns):
        what += f", {join_first(list(parts), 6)} its phase{'s' * (len(parts.columns) > 1)}"
    timers = pd.concat([whole.where(whole > 0), parts], axis=1)
    return timers.rename(columns=lambda name: TIMERS + name.removeprefix(TIMERS)), what


def _records(
    frame: pd.DataFrame, timers: pd.DataFrame, counter: str, path: Path, times: pd.Series | None
) -> list[StepRecord]:
    """The steps from 1; a table that times a step 0 counts from 0."""
    steps = _steps(frame, counter)[timers.index]
    if WALL not in timers and timers[steps == 0].notna().any(axis=None):
        steps += 1
    others = frame.loc[timers.index]
    others = others[[name for name in names_of(frame) if name != counter and TIMERS + name not in timers]]
    rows = pd.concat([timers, others], axis=1).to_numpy()
    written = [None] * len(rows) if times is None else times[timers.index].tolist()
    names, records = [*names_of(timers), *names_of(others)], []
    for place, step, row, time in zip(timers.index, steps.tolist(), rows, written, strict=True):
        if step >= 1:
            file, line = place if isinstance(place, tuple) else (path, place)
            scalars = {name: value for name, value in zip(names, row.tolist(), strict=True) if not math.isnan(value)}
            records.append(StepRecord(int(step), {}, scalars, {}, None, file, line, time=time))
    return records
