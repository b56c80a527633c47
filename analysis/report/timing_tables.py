"""Builds the report's tables of speed: each arm's, and where its step goes (phases, their sums, their speed-ups)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.estimates.estimate_table import legible
from analysis.factors import factors_label
from analysis.phases import RESIDUAL, shown_phase
from analysis.report.cells import (
    DASH,
    Cell,
    Column,
    Table,
    TableRow,
    count,
    decimals,
    factor_names,
    fixed,
    frame_table,
    interval_columns,
    number,
    percent,
    seconds,
    text_column,
    times,
)
from analysis.report.content import Content
from analysis.runs import rows_of
from common.messages import join_first
from common.verdicts import count_of
from trainers.timers.tree import in_order

MOST_REASONS = 6
ESTIMATE_LABELS = {
    "equal_work": "at equal work",
    "per_step": "per step",
}
VERDICT_LABELS = {"+": "+ faster", "-": "− slower", "~": "~ not resolved", "x": "× no value"}
SIZE_COLUMNS = (
    Column("baseline_runs", "runs of the baseline", count),
    Column("arm_runs", "runs of the arm", count),
    Column("baseline_steps", "their steps", count),
    Column("arm_steps", "its steps", count),
)
MOST_TIMERS = 5
_NONE = ("", "")


def comparison_block(content: Content) -> Table:
    """One row per factor combination and arm, over the steps that both arms have."""
    frame = content.tables["comparison"]
    digits = decimals(frame[["baseline_step_s", "arm_step_s"]].min().min())
    columns = (
        Column("baseline_step_s", "baseline, s/step", lambda step_s: seconds(step_s, digits)),
        Column("arm_step_s", "arm, s/step", lambda step_s: seconds(step_s, digits)),
        Column("baseline_tokens_per_s", "baseline, tokens/s", lambda rate: number(rate, 1)),
        Column("arm_tokens_per_s", "arm, tokens/s", lambda rate: number(rate, 1)),
        *SIZE_COLUMNS,
    )
    caption = "Seconds and tokens over the steps that are compared"
    if factor_names(content.runs):
        caption += ", one row per factor combination"
    return frame_table(content, "comparison", columns, caption, corner="arms")


def estimates_block(content: Content) -> Table:
    """One row per factor combination, arm and estimate, with its interval and its basis."""
    frame = legible(content.tables["estimates"])
    columns = (
        text_column("estimate", "estimate", ESTIMATE_LABELS),
        Column("value", "speed-up", times),
        *interval_columns(times),
        text_column("verdict", "verdict", VERDICT_LABELS),
        *SIZE_COLUMNS,
        Column("minimum_detectable_ratio", "least detectable", times),
        Column("runs_to_resolve", "more runs of each arm to resolve", count),
    )
    caption = "Speed against the baseline"
    if frame["low"].notna().any():
        caption += ", with 95% intervals"
    return frame_table(content, "estimates", columns, caption, corner="arms", note=_reasons(frame), shown=frame)


def _reasons(estimates: pd.DataFrame) -> str:
    """Why some rows have no value or verdict: each reason once, with its factor combinations."""
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for r in rows_of(estimates):
        if isinstance(r.why, str) and r.why:
            places[ESTIMATE_LABELS.get(r.estimate, str(r.estimate)), r.why].append(r.factors)
    reasons = []
    for (name, why), keys in places.items():
        where = [factors_label(key) for key in dict.fromkeys(keys)]
        at = f" at {join_first(where, MOST_REASONS)}" if len(where) < estimates["factors"].nunique() else ""
        reasons.append(f"{name}{at}: {why}")
    more = f"; and {len(reasons) - MOST_REASONS} more, in tables/estimates.csv" if len(reasons) > MOST_REASONS else ""
    note = f"Why: {'; '.join(reasons[:MOST_REASONS])}{more}." if reasons else ""
    known = estimates["runs_to_resolve"].notna()
    if known.any() and (estimates["value"].notna() & ~known).any():
        note += (
            ' "More runs to resolve" is computed from the interval. It is blank without an interval, without any'
            " variation, and above 1,000."
        )
    return note.strip()


def phase_blocks(content: Content) -> list[Table]:
    """Per factor combination: each phase's mean and median by arm, its own mean, and the share of that."""
    groups = content.tables["phases"].groupby("factors", sort=False)
    return [_phase_table(content, str(factors), rows) for factors, rows in groups]


def _phase_table(content: Content, factors: str, rows: pd.DataFrame) -> Table:
    root = content.trees[0].root
    arms = list(rows["arm"].unique())
    phases: dict[str, dict[str, Any]] = {}
    for r in rows_of(rows):
        phases.setdefault(r.path, {})[r.arm] = r
    every = content.tables["sums"]
    sums = {r.arm: r for r in rows_of(every[every["factors"] == factors])}
    digits = decimals(min(step.mean_s for step in phases[root].values()))
    # The median of a single step is its mean.
    medians = int(rows["steps"].max()) > 1
    heads = ("mean", "median", "own", "own, share") if medians else ("seconds", "own", "own, share")

    def cells(of_arm: Mapping[str, Any], columns: tuple[str, ...], rounding: str = "") -> tuple[Cell, ...]:
        """Four columns of a table for each arm; "" is a blank cell."""
        shown = columns if medians else (columns[0], *columns[2:])
        return tuple(_cell(of_arm.get(arm), column, digits, rounding) for arm in arms for column in shown)

    own, made = ("own_mean_s", "own_share"), []
    for path in in_order(rows["path"], content.trees):
        phase = shown_phase(path, content.trees)
        kind = "total" if path == root else "phase" if path.startswith(root + "/") else "outside"
        of_phase = cells(phases[path], ("mean_s", "median_s", *(_NONE if path == root else own)))
        made.append(TableRow(phase.label, path, of_phase, phase.description, phase.depth, kind))
    text = "The part of the step that no timer covers."
    residual = cells(phases[root], (*_NONE, *own), "own_rounding_s")
    made.append(TableRow("Residual", f"({RESIDUAL})", residual, text, 1, "residual"))
    summed = cells(sums, (*_NONE, "own_sum_s", "own_sum_share"))
    made.append(TableRow("Sum of own times", "(sum)", summed, "Equals the mean step.", 0, "total"))
    if any(not math.isnan(sums[arm].between_steps_mean_s) for arm in arms):
        text = "Logging, checkpoints and data between two steps: this wall clock is in no step."
        between = cells(sums, ("between_steps_mean_s", "between_steps_median_s", *_NONE))
        made.append(TableRow("Between steps", "(between)", between, text, 0, "outside"))
    return Table(
        name="phases",
        caption="Seconds per step, by phase and arm" + _at(factors),
        corner="phase",
        heads=heads * len(arms),
        rows=tuple(sorted(made, key=lambda row: row.kind == "outside")),
        groups=tuple((str(arm), len(heads)) for arm in arms),
        factors=factors_label(factors),
    )


def _cell(row: Any, column: str, digits: int, rounding: str) -> Cell:
    """A number of a row, a dash where the arm has no such row; `rounding` names the column with the seconds' error."""
    if row is None or not column:
        return Cell(DASH if column else "")
    value = getattr(row, column)
    rounding_s = getattr(row, rounding) if rounding else math.nan
    return percent(value) if column.endswith("_share") else seconds(value, digits, rounding_s)


# Each row of the sums table: the column of tables/sums, its kind, label and description.
SUMS = (
    (
        "all_timers_s",
        "phase",
        "Sum of all logged timers",
        "All timers of the log added up; of the nested ones, those that every arm logs.",
    ),
    (
        "nested_s",
        "phase",
        "of which counted twice",
        "Timers inside another timer: the sum above counts their seconds twice.",
    ),
    ("without_nested_s", "phase", "Sum without nested timers", "The step's own children: every second once."),
    ("step_s", "total", "Step", "The step's own timer."),
    ("residual_s", "residual", "Residual", "The step less its children: the part that no timer covers."),
)


def sums_blocks(content: Content) -> list[Table]:
    """Per factor combination: the plain sum of all timers, the sum without nested ones, the step and the residual."""
    tables, phases = [], content.tables["phases"]
    for factors, group in content.tables["sums"].groupby("factors", sort=False):
        factors, arms = str(factors), list(rows_of(group))
        digits = decimals(min(r.step_s for r in arms))
        rows = []
        for column, kind, label, description in SUMS:
            cells = []
            for r in arms:
                rounding_s = r.residual_rounding_s if kind == "residual" else math.nan
                cells.append(seconds(getattr(r, column), digits, rounding_s))
            rows.append(TableRow(label, column, tuple(cells), description, int(column == "nested_s"), kind))
        note = nesting_text(phases[phases["factors"] == factors], content.trees[0].root, digits)
        if any(r.residual_rounding_s > 0 for r in arms):
            note += " ±: the largest error of the residual from the source's own rounding."
        tables.append(
            Table(
                name="sums",
                caption="How the sums close, mean seconds per step" + _at(factors),
                corner="sum",
                heads=tuple(str(r.arm) for r in arms),
                rows=tuple(rows),
                note=note,
                factors=factors_label(factors),
            )
        )
    return tables


def nesting_text(phases: pd.DataFrame, root: str, digits: int) -> str:
    """A sentence for each timer of all arms that is inside another timer, with its mean seconds in each arm.

    `phases` are the rows of one factor combination of `phase_table`. Nested timers that only some arms log are in no
    sum (`sums_table`); the last sentences name them.
    """
    nested = phases[phases["path"].str.startswith(root + "/") & (phases["parent"] != root)]
    labels = dict(zip(phases["path"], phases["label"], strict=True))
    of_timers = [(str(labels[path]), rows) for path, rows in nested.groupby("path", sort=False)]
    arms = phases["arm"].nunique()
    shared = [(label, rows) for label, rows in of_timers if len(rows) == arms]
    partial = [(label, rows) for label, rows in of_timers if len(rows) < arms]
    if not of_timers:
        return "No timer is inside another."
    sentences = []
    for label, rows in shared[:MOST_TIMERS]:
        for parent, same in rows.groupby("parent", sort=False):
            each = [f"{fixed(r.mean_s, digits)} s ({r.arm})" for r in rows_of(same)]
            sentences.append(f"{label} is inside {labels[parent]}: adding both counts {_and(each)} twice.")
    if len(shared) > MOST_TIMERS:
        sentences.append(f"Also nested: {count_of(len(shared) - MOST_TIMERS, 'more timer')}.")
    for label, rows in partial[:MOST_TIMERS]:
        parent = labels[rows["parent"].iloc[0]]
        sentences.append(f"{label} is inside {parent}, but only {_and(list(rows['arm']))} logs it: no sum includes it.")
    return " ".join(sentences)


def _and(texts: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def speedup_blocks(content: Content) -> list[Table]:
    """Per factor combination and arm: mean seconds of both arms over the compared steps, seconds saved, raw ratio."""
    tables = []
    for (factors, arm), group in content.tables["phase_speedups"].groupby(["factors", "arm"], sort=False):
        step = group[group["depth"] == 0].iloc[0]
        digits = decimals(min(step["baseline_mean_s"], step["arm_mean_s"]))
        rows = []
        for r in rows_of(group):
            residual = r.path == f"({RESIDUAL})"
            cells = [seconds(getattr(r, column), digits) for column in ("baseline_mean_s", "arm_mean_s", "saved_s")]
            # The residual's ratio divides two small remainders: its seconds are what matters.
            cells.append(Cell(DASH) if residual else times(r.speedup))
            kind = "residual" if residual else "total" if r.depth == 0 else "phase"
            description = "" if residual else shown_phase(r.path, content.trees).description
            rows.append(TableRow(r.label, r.path, tuple(cells), description, 1 if residual else r.depth, kind))
        versus = f"{arm} against {content.plan.baseline}"
        tables.append(
            Table(
                name="speedups",
                caption=f"{versus}, mean seconds over the steps that are compared{_at(str(factors))}",
                corner="phase, with what it contains",
                heads=(content.plan.baseline, str(arm), "saved", "raw speed-up"),
                rows=tuple(rows),
                factors=factors_label(str(factors)),
                versus=versus,
            )
        )
    return tables


def _at(factors: str) -> str:
    return f" ({factors_label(factors)})" if factors else ""
