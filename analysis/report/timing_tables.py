"""Builds the report's tables of speed: each arm against the baseline, and where its step goes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from analysis.estimates.estimate_table import EQUAL_WORK, legible
from analysis.phases import shown_phase
from analysis.planned import factors_label
from analysis.report.content import Content
from analysis.report.tables import (
    Cell,
    Column,
    Table,
    count,
    decimals,
    fixed,
    number,
    percent,
    records_of,
    shown_table,
    significant,
    times,
)
from analysis.roofline.floors import efficiencies
from analysis.runs import rows_of
from analysis.verdict.claim import UNITS
from trainers.timers.tree import in_order

# Columns of an estimate: the seconds of both, the ratio and its interval.
SHOWN = {"baseline_s": "baseline, s", "arm_s": "arm, s", "value": "times as fast", "low": "95% from", "high": "to"}
# Rows that are no part of the step, and their columns of tables/sums; but for the first of timers, if there are any.
OUTSIDE = {
    "Between steps": "between_steps_mean_s",
    "All timers added up": "all_timers_s",
    "The same without nested ones": "without_nested_s",
}


def shown_speed(content: Content) -> Table:
    """One row per factor combination and arm: seconds of both, both estimates with their intervals, runs and steps."""
    estimates = legible(content.tables["estimates"])
    compared = {(row["factors"], row["arm"]): row for row in records_of(content.tables["comparison"])}
    records: dict[tuple[str, str], dict[str, Any]] = {}
    for row in records_of(estimates):
        key = (row["factors"], row["arm"])
        record = records.setdefault(
            key, {"label": f"{row['arm']} vs {row['baseline']}", **row, **compared.get(key, {})}
        )
        record |= {f"{row['estimate']}/{name}": row[name] for name in SHOWN}
    seconds = number(decimals(content.tables["comparison"][["baseline_step_s", "arm_step_s"]].min().min()))
    columns = [*_of_both("step_s", "seconds a step, as measured", seconds)]
    for name, unit in UNITS.items():
        # Those per step are the measured ones.
        heads = {key: head for key, head in SHOWN.items() if name == EQUAL_WORK or not key.endswith("_s")}
        shown = {key: seconds if key.endswith("_s") else times for key in heads}
        columns += [Column(f"{name}/{key}", head, shown[key], unit) for key, head in heads.items()]
    columns += [*_of_both("runs", "runs", count), *_of_both("steps", "steps of all runs", count)]
    columns += [*_of_both("tokens_per_s", "response tokens a second, of all GPUs", significant)]
    caption = f"Seconds over the steps that are compared, and how many times as fast as {content.plan.baseline}"
    return shown_table("speed", caption, "arms", columns, list(records.values()))


def _of_both(name: str, group: str, show: Any) -> tuple[Column, Column]:
    return Column(f"baseline_{name}", "baseline", show, group), Column(f"arm_{name}", "arm", show, group)


def shown_phases(content: Content) -> list[Table]:
    """Per factor combination: each phase's seconds by arm, its own, their share, and how many times as fast it is."""
    groups = content.tables["phases"].groupby("factors", sort=False)
    return [_phase_table(content, str(factors), _alike(rows)) for factors, rows in groups]


def _alike(rows: pd.DataFrame) -> pd.DataFrame:
    """The phases, with own seconds that may be compared.

    A timer that not all arms have, inside one of its own kind, is in that one's own seconds: else the arm that also
    times the engine's calls would seem to generate in no time.
    """
    own = ["own_mean_s", "own_share"]
    rows = rows.assign(**{name: rows[name].astype(float) for name in own})
    timed_by = rows.groupby("path")["arm"].agg(set)
    at = {(row.arm, row.path): row for row in rows_of(rows)}
    for arm, path in sorted(at, key=lambda key: -key[1].count("/")):
        inner = [at[arm, path]]
        while (above := at.get((arm, inner[-1].parent))) is not None and above.category == inner[0].category:
            inner.append(above)
        if timed_by[path] == timed_by[inner[-1].path]:
            continue
        for name in own:
            rows.loc[inner[1].Index, name] += rows[name][inner[0].Index]
            rows.loc[inner[0].Index, name] = math.nan
    return rows


def _phase_table(content: Content, factors: str, rows: pd.DataFrame) -> Table:
    root, arms = content.trees[0].root, [str(arm) for arm in rows["arm"].unique()]
    steps = {r.arm: r for r in rows_of(rows[rows["path"] == root])}
    digits = decimals(min(step.mean_s for step in steps.values()))
    records = [*_of_phases(content, factors, rows, digits), *_of_step(content, factors, steps, digits)]
    # What is outside the step comes after its sum.
    records.sort(key=lambda record: bool(record["kind"] == "outside"))
    groups = {"seconds": "seconds", "times": "times as fast", "own": "own seconds", "share": "own share"}
    columns = [
        Column(f"{arm}/{key}", arm, lambda cell: cell or Cell(""), group)
        for key, group in groups.items()
        for arm in arms
    ]
    rounded = any(step.own_rounding_s > 0 for step in steps.values())
    note = "±: the largest error from the source's own rounding." if rounded else ""
    at = f" ({factors_label(factors)})" if factors else ""
    return shown_table(
        "phases", f"Mean seconds of the counted steps, by phase{at}", "phase", columns, records, note, False
    )


def _of_phases(content: Content, factors: str, rows: pd.DataFrame, digits: int) -> Iterator[dict[str, Any]]:
    """A row for each phase, of all arms that time it."""
    root, seconds, gains = content.trees[0].root, number(digits), content.tables["phase_speedups"]
    faster = {(r.path, r.arm): r.speedup for r in rows_of(gains[gains["factors"] == factors])}
    of = {(r.path, r.arm): r for r in rows_of(rows)}
    for path in in_order(rows["path"], content.trees):
        phase, inside = shown_phase(path, content.trees), path.startswith(root + "/")
        kind = "total" if path == root else "phase" if inside else "outside"
        record: dict[str, Any] = {"label": phase.label, "depth": phase.depth, "kind": kind}
        for arm in rows["arm"].unique():
            found = of.get((path, arm))
            record[f"{arm}/seconds"] = seconds(found and found.mean_s)
            if path != root:
                record[f"{arm}/own"] = seconds(found and found.own_mean_s)
                record[f"{arm}/share"] = percent(found and found.own_share)
            if arm != content.plan.baseline:
                record[f"{arm}/times"] = times(faster.get((path, arm)))
        yield record


def _of_step(content: Content, factors: str, steps: Mapping[str, Any], digits: int) -> Iterator[dict[str, Any]]:
    """The rows of what no timer covers, of sums, of the time between steps and of efficiency."""
    every, known = content.tables["sums"], efficiencies(content.tables["steps"])
    sums = {r.arm: r for r in rows_of(every[every["factors"] == factors])}
    seconds = number(digits)

    def row(label: str, kind: str, **columns: Mapping[str, Cell]) -> dict[str, Any]:
        shown = {f"{arm}/{column}": cell for column, cells in columns.items() for arm, cell in cells.items()}
        return {"label": label, "depth": int(kind == "residual"), "kind": kind, **shown}

    rest = {}
    for arm, step in steps.items():
        rest[arm] = seconds(step.own_mean_s)
        if step.own_rounding_s > 0:
            places = max(digits, -math.floor(math.log10(step.own_rounding_s)))
            text = f"{fixed(step.own_mean_s, places)} ± {fixed(step.own_rounding_s, places)}"
            rest[arm] = Cell(text, rest[arm].value)
    is_timed = any(s.all_timers_s > 0 for s in sums.values())
    if is_timed:
        shares = [{arm: percent(s.own_share) for arm, s in steps.items()}]
        shares += [{arm: percent(s.own_sum_share) for arm, s in sums.items()}]
        yield row("No timer", "residual", own=rest, share=shares[0])
        own = {arm: seconds(s.own_sum_s) for arm, s in sums.items()}
        yield row("Sum of own seconds", "total", own=own, share=shares[1])
    for label, column in OUTSIDE.items() if is_timed else [next(iter(OUTSIDE.items()))]:
        cells = {arm: seconds(getattr(s, column)) for arm, s in sums.items()}
        if any(cell.value for cell in cells.values()):
            yield row(label, "outside", seconds=cells)
    if shown := {arm: percent(known[factors, arm]) for arm in steps if (factors, arm) in known}:
        yield row("Efficiency: decode floor / generation", "outside", share=shown)
