"""Makes the report's tables of where the step goes: phases, how their sums close, and phase speed-ups."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.phases import RESIDUAL, shown_phase
from analysis.report.cells import DASH, Cell, Table, TableRow, decimals, fixed, percent, seconds, times
from analysis.report.content import Content
from analysis.runs import factors_label, rows_of
from common.verdicts import count_of
from trainers.timers.tree import in_order

_MEAN, _OWN, _NOTHING = ("mean_s", "median_s"), ("own_mean_s", "own_share"), ("", "")
_Numbers = tuple[str, Mapping[str, Any], tuple[str, ...]]
"""What a line shows of each arm: a table of tables/, its row by arm, and four of its columns ("" for none)."""
MOST_TIMERS = 5


def phase_blocks(content: Content) -> list[Table]:
    """Per factor combination: per arm the mean and median of each phase, its own mean, and that one's share."""
    root = content.trees[0].root if content.trees else ""
    return [_phase_table(content, str(factors), rows, root) for factors, rows in _by_factors(content.tables["phases"])]


def _by_factors(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(str(factors), rows) for factors, rows in frame.groupby("factors", sort=False)]


def _phase_table(content: Content, factors: str, rows: pd.DataFrame, root: str) -> Table:
    arms = list(rows["arm"].unique())
    of: dict[str, dict[str, Any]] = {}
    for r in rows_of(rows):
        of.setdefault(r.path, {})[r.arm] = r
    all_sums = content.tables["sums"]
    sums = {r.arm: r for r in rows_of(all_sums[all_sums["factors"] == factors])}
    digits = decimals(min(step.mean_s for step in of[root].values()))
    # A single step has no median apart from its mean.
    medians = int(rows["steps"].max()) > 1
    heads = ("mean", "median", "own", "own, share") if medians else ("seconds", "own", "own, share")

    def line(label: str, path: str, words: str, depth: int, kind: str, numbers: _Numbers) -> TableRow:
        table, of_arm, columns = numbers
        shown = columns if medians else (columns[0], *columns[2:])
        rounding = "own_rounding_s" if kind == "residual" else ""
        cells = (_cell(table, of_arm.get(arm), column, digits, rounding) for arm in arms for column in shown)
        return TableRow(label, path, tuple(cells), words, depth, kind)

    inside: list[TableRow] = []
    outside: list[TableRow] = []
    for path in in_order(rows["path"], content.trees):
        phase = shown_phase(path, content.trees)
        kind = "total" if path == root else "phase" if path.startswith(root + "/") else "outside"
        seconds_of = ("phases", of[path], (*_MEAN, *(_NOTHING if path == root else _OWN)))
        of_kind = outside if kind == "outside" else inside
        of_kind.append(line(phase.label, path, phase.description, phase.depth, kind, seconds_of))
    words = "The part of the step that no timer covers."
    own = ("phases", of[root], (*_NOTHING, *_OWN))
    inside.append(line("Residual", f"({RESIDUAL})", words, 1, "residual", own))
    total = ("sums", sums, (*_NOTHING, "own_sum_s", "own_sum_share"))
    inside.append(line("Sum of own times", "(sum)", "Equals the mean step.", 0, "total", total))
    if any(not math.isnan(sums[arm].between_steps_mean_s) for arm in arms):
        words = "Logging, checkpoints and data between two steps: wall clock that is in no step."
        between = ("sums", sums, ("between_steps_mean_s", "between_steps_median_s", *_NOTHING))
        outside.append(line("Between steps", "(between)", words, 0, "outside", between))
    return Table(
        name="phases",
        caption="Seconds per step, by phase and arm" + _at(factors),
        corner="phase",
        heads=heads * len(arms),
        rows=(*inside, *outside),
        groups=tuple((str(arm), len(heads)) for arm in arms),
        factors=factors_label(factors),
    )


def _cell(table: str, row: Any, column: str, digits: int, rounding: str) -> Cell:
    """A number of a row, a dash where the arm has no such row; `rounding` is the column with the error of seconds."""
    if row is None or not column:
        return Cell(DASH if column else "")
    value = getattr(row, column)
    off_s = getattr(row, rounding) if rounding else math.nan
    made = percent(value) if column.endswith("_share") else seconds(value, digits, off_s)
    return made.at(table, row.Index, column)


SUMS = (
    ("all_timers_s", "Sum of all logged timers", "Added up as logs list them; of those in others what all arms log."),
    (
        "nested_s",
        "of which counted twice",
        "Inside another timer, so counted twice in the sum above: their seconds are in a parent's.",
    ),
    ("without_nested_s", "Sum without nested timers", "The step's own children alone: every second once."),
    ("step_s", "Step", "The step's own timer."),
    ("residual_s", "Residual", "The step less its children: what no timer covers."),
)


def sums_blocks(content: Content) -> list[Table]:
    """Per factor combination: the plain sum of all timers, the sum without nested ones, the step and the residual."""
    tables, phases = [], content.tables["phases"]
    for factors, rows in _by_factors(content.tables["sums"]):
        arms = list(rows_of(rows))
        digits = decimals(min(r.step_s for r in arms))
        lines = []
        for column, label, words in SUMS:
            cells = []
            for r in arms:
                rounding_s = r.residual_rounding_s if column == "residual_s" else math.nan
                cells.append(seconds(getattr(r, column), digits, rounding_s).at("sums", r.Index, column))
            kind = {"step_s": "total", "residual_s": "residual"}.get(column, "phase")
            lines.append(TableRow(label, column, tuple(cells), words, int(column == "nested_s"), kind))
        root = content.trees[0].root if content.trees else ""
        said = nesting_text(phases[phases["factors"] == factors], root, digits)
        if any(r.residual_rounding_s > 0 for r in arms):
            said += " ±: how far the digits that the source printed leave the residual open, at worst."
        tables.append(
            Table(
                name="sums",
                caption="How the sums close, mean seconds per step" + _at(factors),
                corner="sum",
                heads=tuple(str(r.arm) for r in arms),
                rows=tuple(lines),
                note=said,
                factors=factors_label(factors),
            )
        )
    return tables


def nesting_text(phases: pd.DataFrame, root: str, digits: int) -> str:
    """A sentence for each timer of all arms that lies inside another, with its mean seconds in each arm.

    `phases`: the rows of one factor combination, as of `phase_table`. Timers inside others that only some arms log are
    in no sum (`sums_table`); they are named at the end.
    """
    inside = phases[phases["path"].str.startswith(root + "/") & (phases["parent"] != root)]
    labels = dict(zip(phases["path"], phases["label"], strict=True))
    arms = phases["arm"].nunique()
    shared: list[tuple[str, pd.DataFrame]] = []
    partial: list[tuple[str, pd.DataFrame]] = []
    for path in inside["path"].unique():
        rows = inside[inside["path"] == path]
        (shared if len(rows) == arms else partial).append((str(labels[path]), rows))
    if not shared and not partial:
        return "No timer lies inside another."
    told = []
    for label, rows in shared[:MOST_TIMERS]:
        for parent, mine in rows.groupby("parent", sort=False):
            each = [f"{fixed(r.mean_s, digits)} s ({r.arm})" for r in rows_of(mine)]
            told.append(f"{label} runs inside {labels[parent]}: adding up both counts {_listed(each)} twice.")
    if len(shared) > MOST_TIMERS:
        told.append(f"Inside others, too: {count_of(len(shared) - MOST_TIMERS, 'more timer')}.")
    for label, rows in partial[:MOST_TIMERS]:
        who, parent = _listed([str(arm) for arm in rows["arm"]]), labels[rows["parent"].iloc[0]]
        told.append(f"{label} runs inside {parent}, too, but only {who} logs it: it is in no sum here.")
    return " ".join(told)


def _listed(words: list[str]) -> str:
    """`a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def speedup_blocks(content: Content) -> list[Table]:
    """Per factor combination and arm: mean seconds of both arms over the paired steps, saved, and the raw ratio."""
    tables = []
    for (factors, arm), rows in content.tables["phase_speedups"].groupby(["factors", "arm"], sort=False):
        step = rows[rows["depth"] == 0].iloc[0]
        digits = decimals(min(step["baseline_mean_s"], step["arm_mean_s"]))
        lines = []
        for r in rows_of(rows):
            residual = r.path == f"({RESIDUAL})"
            cells = [
                seconds(getattr(r, column), digits).at("phase_speedups", r.Index, column)
                for column in ("baseline_mean_s", "arm_mean_s", "saved_s")
            ]
            # The residual's ratio is one of two small remainders: the seconds say what matters.
            cells.append(Cell(DASH) if residual else times(r.speedup).at("phase_speedups", r.Index, "speedup"))
            kind = "residual" if residual else "total" if r.depth == 0 else "phase"
            words = "" if residual else shown_phase(r.path, content.trees).description
            lines.append(TableRow(r.label, r.path, tuple(cells), words, 1 if residual else r.depth, kind))
        base = content.plan.baseline
        tables.append(
            Table(
                name="speedups",
                caption=f"{arm} against {base}, mean seconds over the paired steps{_at(str(factors))}",
                corner="phase, with what it contains",
                heads=(base, str(arm), "saved", "raw speed-up"),
                rows=tuple(lines),
                factors=factors_label(str(factors)),
                versus=f"{arm} against {base}",
            )
        )
    return tables


def _at(factors: str) -> str:
    return f" ({factors_label(factors)})" if factors else ""
