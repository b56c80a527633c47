"""Which columns of a table have the step's seconds and its phases, and in which unit: found by name, then tested.

Seconds are positive, phases add up to their step, a clock only rises. Where two columns may be the step's seconds,
neither is taken.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import add
from pathlib import Path
from statistics import median
from typing import Literal

from analysis.sources.table_columns import TableColumns
from analysis.sources.table_texts import (
    UNITS,
    is_averaged,
    is_bare,
    is_since,
    is_time,
    stem_of,
    unit_of,
    unit_of_step_rate,
    whole_rank,
    without_spreads,
)
from common.errors import UserError
from common.messages import did_you_mean, join_first

FLAG = "--step-seconds"
# A test holds if it holds in this share of the rows: a step may be cut off, or not a number.
ENOUGH = 0.95
# Phases that add up to less of a column say nothing about it.
LEAST_COVERED = 0.8
# More rows tell nothing new about sums.
MOST_ROWS = 2000
# Clocks are read a moment apart.
TOLERANCE_SHARE, TOLERANCE_S = 2e-3, 2e-3
# So many rising seconds in a row are no chance, and so often at most a clock begins anew.
CLOCK_ROWS = 8
# A column `time` may be a clock or a step's time: so many say which.
LEAST_CLOCK_ROWS = 3
# No step is so long: such seconds are a time of day. Times of day in milliseconds are above the second.
LONGEST_S, LATEST_S = 100 * 86400.0, 1e11
Columns = Mapping[str, Sequence[float]]


def in_seconds(columns: Columns, table: TableColumns) -> dict[str, Sequence[float]]:
    """The columns with their times in seconds; others as they are."""
    found = dict(columns)
    for name, unit in _units_of([name for name in columns if name not in table.seconds and is_time(name)], table):
        scale = UNITS[unit]
        while scale * median(filter(math.isfinite, columns[name])) > LATEST_S:
            scale /= 1000.0
        if scale != 1.0:
            found[name] = [scale * value for value in columns[name]]
    return found


def take_rates(columns: dict[str, Sequence[float]], table: TableColumns, given: str | None) -> None:
    """Make a step's seconds of the steps in a second, where no column is of a time, or such a rate is given."""
    rates = {name: UNITS[unit] for name in columns if (unit := unit_of_step_rate(name))}
    if given in rates or not any(is_time(name) or name in table.seconds for name in columns):
        table.seconds.update(rates)
        for name, unit_s in rates.items():
            columns[name] = [unit_s / rate if rate > 0 else math.nan for rate in columns[name]]


def _units_of(names: Sequence[str], table: TableColumns) -> Iterator[tuple[str, str]]:
    """Each column's unit, by its name; `step_time_min` beside `step_time_max` is a minimum in seconds."""
    stems = Counter(map(stem_of, table.values))
    for name in names:
        unit = "s" if name in table.seconds else unit_of(name) or "s"
        yield name, "s" if unit == "min" and stems[stem_of(name)] > 1 else unit


@dataclass(frozen=True, slots=True)
class Times:
    """The column with the step's seconds, and those with its phases."""

    root: str
    parts: tuple[str, ...] = ()
    milliseconds: tuple[str, ...] = ()
    """Those of them that add up to the step, or to which the phases add up, only as milliseconds."""
    spans: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The clocks' differences from row to row, for one step."""


def times_of(
    path: Path, columns: Columns, table: TableColumns, steps: Sequence[int], given: str | None, clock: str
) -> Times:
    """What the step's seconds are; `clock` is the column that is known to be one."""
    if given is not None and given not in columns:
        hint = did_you_mean(given, list(columns))
        raise UserError(f"{path} has no column {given} with numbers{hint}; it has {join_first(list(columns), 12)}")
    named = [name for name in columns if name != clock and (is_time(name) or name in table.seconds)]
    clocks = [name for name in named if _is_clock(name, columns[name], steps, name in table.seconds)]
    durations = [name for name in without_spreads(named) if name not in clocks and _is_duration(columns[name])]
    # The same seconds may have two names.
    distinct = {tuple(columns[name]): name for name in reversed(durations)}
    fixed = [name for some, name in distinct.items() if len(set(some)) == 1 and len(distinct) > 1]
    durations = [name for name in durations if name in distinct.values() and name not in fixed] or durations
    if given is not None and given not in clocks and _is_clock(given, columns[given], steps, given in table.seconds):
        clocks.append(given)
    spans = {name: _differences(columns[name], steps) for name in (*clocks, clock) if name}
    if given is None and len(durations) < 2 and spans and not any(map(whole_rank, durations)):
        # Of several the longest: the time in one phase may be a clock, too, and the time of day beside the elapsed one.
        total = {name: sum(filter(math.isfinite, span)) for name, span in spans.items()}
        given = max(spans, key=total.__getitem__)
        durations += [name for name in clocks if total[name] < (1 - TOLERANCE_SHARE) * total[given]]
    values = {**columns, **spans}
    sample = {name: some[:: max(1, len(some) // MOST_ROWS)] for name, some in values.items()}
    # What never changes may be a phase, and no whole step: a time limit.
    with_fixed, without = _Parts([*durations, *fixed], sample, table), _Parts(durations, sample, table)
    fits = {root: with_fixed.fits(root) or without.fits(root) for root in ([given] if given is not None else durations)}
    if given is None:
        summed = [fit for some in fits.values() for fit in some if fit.share >= LEAST_COVERED]
        plain = [fit for fit in summed if not fit.in_milliseconds]
        surest = max([1, *map(whole_rank, durations)])
        whole = [name for name in durations if whole_rank(name) == surest]
        by_sum = (summed, [fit for fit in summed if fit.root in whole], plain)
        chosen = next((some[0] for some in by_sum if len(some) == 1), None)
        if chosen is not None and len(durations) > 1:
            return chosen.times(spans)
        given = next((some[0] for some in (durations, whole) if len(some) == 1), None)
        if given is None:
            raise UserError(_undecided(path, named, durations, columns) + not_read(table))
    best = max(fits[given], key=lambda fit: fit.share, default=None)
    return best.times(spans) if best is not None else Times(given, spans=spans)


@dataclass(frozen=True, slots=True)
class _PhaseSum:
    """A way in which columns are the phases of a whole, and the median share of it that they cover."""

    share: float
    root: str
    stems: Mapping[str, tuple[str, ...]]
    in_milliseconds: Literal["", "root", "parts"]

    def times(self, spans: Columns) -> Times:
        """The same by the columns' names."""
        own = stem_of(self.root)
        parts = tuple(name for name, stem in self.stems.items() if stem != own)
        milliseconds = {"": (), "root": (self.root,), "parts": parts}[self.in_milliseconds]
        return Times(self.root, parts, milliseconds, spans)


class _Parts:
    """Columns that may be the phases of a whole. There may be thousands, so they are summed once."""

    def __init__(self, names: Sequence[str], columns: Columns, table: TableColumns) -> None:
        self._columns, self._table = columns, table
        self._stems = {name: stem_of(name) for name in names}
        self._with_unit = {stem for name, stem in self._stems.items() if self._has_unit(name)}
        self._sums: dict[tuple[str, ...], list[float]] = {}
        for name, stem in self._stems.items():
            known = [value if math.isfinite(value) else 0.0 for value in columns[name]]
            self._sums[stem] = [*map(add, self._sums[stem], known)] if stem in self._sums else known
        self._rows = [*map(sum, zip(*self._sums.values(), strict=True))]

    def _has_unit(self, name: str) -> bool:
        return bool(unit_of(name)) or name in self._table.seconds

    def fits(self, root: str) -> list[_PhaseSum]:
        """The ways in which the others are its phases.

        One of two units that no name says is milliseconds if the columns add up only so.
        """
        whole, own = self._columns[root], stem_of(root)
        none = [0.0] * len(whole)
        rows = zip(whole, self._rows or none, self._sums.get(own, none), strict=True)
        sums = [(total, parts - of_root) for total, parts, of_root in rows if total > 0]
        found = []
        with_unit = len(self._with_unit) > (own in self._with_unit)
        ways: Sequence[tuple[Literal["", "root", "parts"], float, bool]]
        ways = (("", 1.0, False), ("parts", 1e-3, with_unit), ("root", 1e3, self._has_unit(root)))
        for in_milliseconds, factor, has_unit in ways:
            off_s = TOLERANCE_S * max(1.0, factor)
            if not _holds(factor * parts <= total * (1 + TOLERANCE_SHARE) + off_s for total, parts in sums):
                continue
            share = median(factor * parts / total for total, parts in sums)
            if not in_milliseconds or (share >= LEAST_COVERED and not has_unit):
                found.append(_PhaseSum(share, root, self._stems, in_milliseconds))
        return found


def _is_clock(name: str, values: Sequence[float], steps: Sequence[int], is_text: bool) -> bool:
    """Whether seconds only rise, but where a clock began anew.

    So may those of a few steps by chance, and those of ever longer steps; but they do not grow as the steps do. A time
    of day, such as the text 14:03:21, does not either.
    """
    known = [(value, step) for value, step in zip(values, steps, strict=True) if not math.isnan(value)]
    if CLOCK_ROWS * sum(b < a for (a, _), (b, _) in pairwise(known)) > len(known) or len(set(values)) < 2:
        return False
    (low, first), (high, last) = min(known), max(known)
    grown = high >= low * math.sqrt(max(last, 1) / max(first, 1))
    if is_since(name) or low > LONGEST_S:
        return True
    return (grown or is_text) and len(known) >= (LEAST_CLOCK_ROWS if is_bare(name) else CLOCK_ROWS)


def _is_duration(values: Sequence[float]) -> bool:
    known = [value for value in values if not math.isnan(value)]
    return (
        bool(known) and sum(value > 0 for value in known) >= LEAST_COVERED * len(known) and median(known) <= LONGEST_S
    )


def _holds(tests: Iterator[bool]) -> bool:
    found = list(tests)
    return bool(found) and sum(found) >= ENOUGH * len(found)


def windows_of(steps: Sequence[int]) -> list[int]:
    """The steps since the row before, of each row."""
    return [1, *(max(1, after - before) for before, after in pairwise(steps))]


def _differences(values: Sequence[float], steps: Sequence[int]) -> list[float]:
    """A clock's seconds for one step since the row before; not a number where it began."""
    passed = [math.nan, *(b - a if b >= a else math.nan for a, b in pairwise(values))]
    return [seconds / window for seconds, window in zip(passed, windows_of(steps), strict=True)]


def _undecided(path: Path, named: Sequence[str], durations: Sequence[str], columns: Columns) -> str:
    if not columns:
        return (
            f"{path} has no column of numbers; give a table with a row for each step, and numbers with a decimal point"
        )
    if named and not durations:
        shown = join_first(list(named), 6)
        return f"{path}: {shown} is not above 0 in nearly all rows; give a table whose seconds are, or {FLAG} COLUMN"
    if not durations:
        return (
            f"{path}: no column is named like seconds; its numbers are in {join_first(list(columns), 12)}. Name the "
            f"column with the step's seconds: {FLAG} COLUMN (in a configuration import.step_seconds)"
        )
    means = [(name, [v for v in columns[name] if not math.isnan(v)]) for name in durations]
    by_name = [f"{name} (mean {sum(values) / len(values):.3g} s)" for name, values in means]
    return (
        f"{path}: no column is the step's seconds for certain: {join_first(by_name, 6)}. Name that of the "
        f"whole step: {FLAG} {durations[0]} (in a configuration import.step_seconds)"
    )


def not_read(table: TableColumns, rank: int = -1) -> str:
    """The first column that is named more surely like a whole step than this rank, whose texts are no times here."""
    texts = {name: text for name, text in table.unread.items() if text[0].isdigit() and name not in table.values}
    name = next((name for name in texts if is_time(name) and whole_rank(name) > rank), None)
    said = "which is no time here: write 2026-03-01 10:00:40 or seconds"
    return f"; {name} has {texts[name][:40]!r}, {said}" if name is not None else ""


def taken(counter: str, times: Times, table: TableColumns, given: str | None) -> str:
    """Which column was taken for what, in words."""
    counts = f"{counter} counts the steps" if counter else "no column counts the steps, so rows count as steps from 1"
    parts, units = list(times.parts), list(times.milliseconds)
    phases = f", {join_first(parts, 6)} {'its phase' if len(parts) == 1 else 'its phases'}" if parts else ""
    minutes = [name for name, unit in _units_of((times.root, *parts), table) if UNITS[unit] == 60.0]
    said = f"; {join_first(minutes, 6)} in minutes" if minutes else ""
    said += f"; {join_first(units, 6)} in milliseconds: only so they add up" if units else ""
    if times.root in times.spans:
        return f"{counts}; {times.root} is a clock, and the step's seconds are its differences{phases}{said}"
    if is_averaged(times.root, table.values):
        said += f"; if {times.root} is an average over the steps before, its values are not those of single steps"
    inverse = "one over " if times.root in table.seconds and unit_of_step_rate(times.root) else ""
    if given is None and not (parts or inverse or whole_rank(times.root)):
        return f"{counts}; {times.root} is the only time: if it is a phase, its ratio is no step's{said}"
    return f"{counts}; {inverse}{times.root} is the step's seconds{phases}{said}"
