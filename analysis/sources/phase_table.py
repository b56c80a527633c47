"""Reads a table with a row for each phase of a step: the columns step, phase and seconds.

Its phases are the timers of a known trainer, or, with a column parent, of a tree of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import pandas as pd

from analysis.sources.table_frame import FORMAT, FULL_DECIMALS, PHASE_COLUMNS, names_of, of_one_run
from common.errors import UserError
from common.shown import shown
from common.verdicts import Verdict
from trainers.logs.log_files import PrintedNumber, half_digit, parse_number
from trainers.logs.record import STEPS_LOGGED, TIMERS, Imported, SourceRead, StepRecord, TablePhase
from trainers.timers.own import NOT_SUMMED, add_phase, category_of, require_name

# A table with the first of these has its own timer tree (trainers/timers/own.py).
PARENT, CATEGORY = "parent", "category"
_Steps = dict[int, dict[str, tuple[int, PrintedNumber]]]
"""The line and the seconds of each phase, by step and the record's name of the phase."""


def is_phases(cells: pd.DataFrame) -> bool:
    """Whether a table has a row for each phase."""
    return {*map(str.lower, names_of(cells))} >= PHASE_COLUMNS


def name_taken(path: Path) -> Verdict:
    """The finding on a user's numbers whose name has a meaning in our tables; they are left out."""
    text = f"{path}: {STEPS_LOGGED} is left out: our tables have that name for the steps of a row. Rename it"
    return Verdict("warning", "name-taken", text)


def read_phases(cells: pd.DataFrame, path: Path, names: Collection[str] = ()) -> Imported:
    """The phases of one run, under verl's names (`gen` is `timing_s/gen`); `names` select one run of several.

    The rounding of all seconds is half a unit of the last decimal that any of them has. With a column parent the phases
    have their own tree, and a phase outside the step's sum keeps its own name and rounding. `UserError` for a row that
    is not as its columns say, and for a phase that comes again with other seconds.
    """
    cells, selected = of_one_run(cells.rename(columns=str.lower), names, path)
    texts = cells.astype(object).fillna("").map(lambda cell: str(cell).strip())
    columns = names_of(texts)
    steps: _Steps = {}
    tree: dict[str, TablePhase] = {}
    outside: dict[str, int] = {}
    for line, *row_cells in texts.itertuples(name=None):
        row = dict(zip(columns, row_cells, strict=True))
        where, parent = f"{path}:{line}", row.get(PARENT, "").removeprefix(TIMERS)
        name = _add_seconds(steps, line, row, where)
        if PARENT in row:
            for one in (row["phase"], parent):
                require_name(one, where)
            if parent == NOT_SUMMED:
                outside.setdefault(name, line)
            else:
                category = category_of(row.get(CATEGORY, ""), f"{where}: phase {name}")
                add_phase(tree, name, TablePhase(parent, category, line, path))
    for name in tree.keys() & outside.keys():
        raise UserError(
            f"phase {name} is outside the step on line {outside[name]} of {path} (parent -), and inside it on "
            f"{tree[name].place}. Give it one parent"
        )
    taken = [one.pop(STEPS_LOGGED, None) for one in steps.values()]
    read = SourceRead(_records(steps, path), [name_taken(path)] if any(taken) else [])
    return Imported(read, FORMAT, selected=selected, tree=tree if PARENT in cells else None)


def _add_seconds(steps: _Steps, line: int, row: dict[str, str], where: str) -> str:
    """Adds a row's seconds to its step; returns the phase's name."""
    texts = [row.get(column, "") for column in ("step", "phase", "seconds")]
    step, seconds, phase = parse_number(texts[0]), parse_number(texts[2]), shown(texts[1].removeprefix(TIMERS))
    if step is None or not (step.value >= 1 and step.value.is_integer()) or seconds is None or not phase:
        raise UserError(
            f"{where}: step must be a whole number from 1, phase a name and seconds a plain number such as 12.5 (got "
            f"{', '.join(shown(one[:80]) or 'nothing' for one in texts)}); correct the row, or leave it out"
        )
    name = phase if row.get(PARENT) == NOT_SUMMED else TIMERS + phase
    first, earlier = steps.setdefault(int(step.value), {}).setdefault(name, (line, seconds))
    if str(earlier.value) != str(seconds.value):
        raise UserError(
            f"{where}: {phase} of step {step.value:g} is on line {first} too, with other seconds. Leave one out; of "
            "several runs give each a name in a column run; of ranks or micro-batches write the sum, or the slowest"
        )
    return phase


def _records(steps: _Steps, path: Path) -> dict[int, StepRecord]:
    groups: dict[str, list[PrintedNumber]] = {}
    for found in steps.values():
        for name, (_, number) in found.items():
            groups.setdefault(_group(name), []).append(number)
    rounding = {group: _rounding(numbers) for group, numbers in groups.items()}
    records = {}
    for step, found in sorted(steps.items()):
        scalars = {name: number.value for name, (_, number) in found.items()}
        halves = {name: half for name in found if (half := rounding[_group(name)])}
        origins = {name: (path, line) for name, (line, _) in found.items()}
        first = min((line for line, _ in found.values()), default=0)
        records[step] = StepRecord(step, {}, scalars, {}, False, path, first, halves, origins)
    return records


def _group(name: str) -> str:
    """What is rounded alike: all phases of the step, or a phase outside it."""
    return TIMERS if name.startswith(TIMERS) else name


def _rounding(values: Sequence[PrintedNumber]) -> float:
    """Half a unit of the last decimal that the table shows: a spreadsheet drops zeros at the end."""
    decimals = max((v.decimals for v in values if v.decimals is not None), default=0)
    return 0.0 if decimals > FULL_DECIMALS or any(v.in_full for v in values) else half_digit(decimals)
