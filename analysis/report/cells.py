"""The report's tables as rows of cells, shared by the page and the Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.headline import ratio_text
from analysis.phases import RESIDUAL, shown_phase
from analysis.report.content import Content
from analysis.rows import rows_of
from analysis.runs import factors_label
from analysis.timers import in_order

DASH = "—"
BETWEEN_STEPS = "between_steps_s"


@dataclass(frozen=True)
class Cell:
    """A number as shown and in full; both are "" where there is none."""

    text: str
    value: str = ""


@dataclass(frozen=True)
class Row:
    """One row of a table: `kind` is phase, residual, total or outside (the step)."""

    label: str
    path: str
    description: str
    depth: int
    kind: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Block:
    """One factor combination's table."""

    factors: str
    groups: tuple[str, ...]
    rows: tuple[Row, ...]


def decimals(step_s: float) -> int:
    """Decimals that show a step of that many seconds to about five digits."""
    return 2 if step_s >= 100 else 3 if step_s >= 10 else 4


def seconds(value: float, digits: int) -> Cell:
    if math.isnan(value):
        return Cell(DASH)
    text = f"{value:,.{digits}f}"
    # A real minus sign, and none before a zero that rounding made.
    text = text.replace("-", "\N{MINUS SIGN}") if float(text.replace(",", "")) else text.removeprefix("-")
    return Cell(text, repr(float(value)))


def percent(value: float) -> Cell:
    return Cell(DASH) if math.isnan(value) else Cell(f"{100 * value:.1f} %", repr(float(value)))


def times(value: float) -> Cell:
    return Cell(DASH) if math.isnan(value) else Cell(ratio_text(value), repr(float(value)))


def phase_blocks(content: Content) -> list[Block]:
    """Table 1: per arm the mean and median of the whole phase, its own mean, and that one's share of the step."""
    blocks = []
    root = content.trees[0].root if content.trees else ""
    for factors, rows in content.phases.groupby("factors", sort=False):
        arms = list(rows["arm"].unique())
        by_key = {(r.arm, r.path): r for r in rows_of(rows)}
        digits = decimals(min(by_key[arm, root].mean_s for arm in arms))
        table: list[Row] = []
        outside: list[Row] = []
        for path in in_order(rows["path"], content.trees):
            phase = shown_phase(path, content.trees)
            cells: list[Cell] = []
            for arm in arms:
                found = by_key.get((arm, path))
                if found is None:
                    cells += [Cell(DASH)] * 4
                elif path == root:
                    cells += [seconds(found.mean_s, digits), seconds(found.median_s, digits), Cell(""), Cell("")]
                else:
                    cells += [seconds(found.mean_s, digits), seconds(found.median_s, digits)]
                    cells += [seconds(found.own_mean_s, digits), percent(found.own_share)]
            kind = "total" if path == root else "phase" if path.startswith(root + "/") else "outside"
            row = Row(phase.label, path, phase.description, phase.depth, kind, tuple(cells))
            (outside if kind == "outside" else table).append(row)
        residual, total = [], []
        for arm in arms:
            found = by_key[arm, root]
            residual += [Cell(""), Cell(""), seconds(found.own_mean_s, digits), percent(found.own_share)]
            inside = rows[(rows["arm"] == arm) & rows["own_share"].notna()]
            own_s = math.fsum(inside["own_mean_s"])
            total += [Cell(""), Cell(""), seconds(own_s, digits), percent(own_s / found.mean_s)]
        words = "The part of the step that no timer covers."
        table.append(Row("Residual", f"({RESIDUAL})", words, 1, "residual", tuple(residual)))
        table.append(Row("Sum of own times", "(sum)", "Equals the mean step.", 0, "total", tuple(total)))
        table += outside
        if between := _between_steps(content.steps, str(factors), arms, digits):
            words = "Logging, checkpoints and data between two steps: wall clock that is in no step."
            table.append(Row("Between steps", "(between)", words, 0, "outside", between))
        blocks.append(Block(factors_label(str(factors)), tuple(arms), tuple(table)))
    return blocks


def _between_steps(wide: pd.DataFrame, factors: str, arms: Sequence[str], digits: int) -> tuple[Cell, ...]:
    """Mean and median seconds before a counted step began; empty if the trainer does not tell them."""
    if BETWEEN_STEPS not in wide:
        return ()
    counted = wide[wide["counted"].astype(bool) & (wide["factors"] == factors)]
    cells: list[Cell] = []
    for arm in arms:
        told = counted.loc[counted["arm"] == arm, BETWEEN_STEPS].astype(float)
        cells += [seconds(told.mean(), digits), seconds(told.median(), digits), Cell(""), Cell("")]
    return tuple(cells)


def speedup_blocks(content: Content) -> list[Block]:
    """Table 2: mean seconds of both arms over the paired steps, seconds saved, and the raw speed-up."""
    blocks = []
    for (factors, arm), rows in content.speedups.groupby(["factors", "arm"], sort=False):
        step = rows[rows["depth"] == 0].iloc[0]
        digits = decimals(min(step["baseline_mean_s"], step["arm_mean_s"]))
        table = []
        for r in rows_of(rows):
            residual = r.path == f"({RESIDUAL})"
            cells = (
                seconds(r.baseline_mean_s, digits),
                seconds(r.arm_mean_s, digits),
                seconds(r.saved_s, digits),
                # The residual's ratio is one of two small remainders: the seconds say what matters.
                Cell(DASH) if residual else times(r.speedup),
            )
            kind = "residual" if residual else "total" if r.depth == 0 else "phase"
            depth = 1 if residual else r.depth
            words = "" if residual else shown_phase(r.path, content.trees).description
            table.append(Row(r.label, r.path, words, depth, kind, cells))
        blocks.append(Block(factors_label(str(factors)), (content.plan.baseline, str(arm)), tuple(table)))
    return blocks


COMPARISON_HEADS = (
    "runs paired",
    "steps paired",
    "baseline, s/step",
    "arm, s/step",
    "baseline, tokens/s",
    "arm, tokens/s",
    "raw speed-up",
    "per token",
)


def comparison_rows(content: Content) -> list[Row]:
    """One row per factor combination and arm, cells as in `COMPARISON_HEADS`."""
    table = []
    for r in rows_of(content.comparison):
        per_step = (r.baseline_s / r.paired_steps, r.arm_s / r.paired_steps)
        digits = decimals(min(per_step))
        cells = (
            Cell(f"{r.run_pairs:,}", str(r.run_pairs)),
            Cell(f"{r.paired_steps:,}", str(r.paired_steps)),
            seconds(per_step[0], digits),
            seconds(per_step[1], digits),
            seconds(r.baseline_tokens / r.baseline_s, 1),
            seconds(r.arm_tokens / r.arm_s, 1),
            times(r.raw_speedup),
            times(r.per_token_speedup),
        )
        table.append(Row(f"{r.arm} vs {r.baseline}", str(r.arm), factors_label(str(r.factors)), 0, "phase", cells))
    return table


PROVENANCE_HEADS = (
    "run",
    "arm",
    "factors",
    "seed",
    "steps counted",
    "attempts",
    "stack",
    "lock",
    "fingerprint",
    "data",
    "model",
)


def provenance_rows(content: Content) -> list[Sequence[str]]:
    """Where each run's numbers come from, as texts under `PROVENANCE_HEADS`."""
    rows: list[Sequence[str]] = []
    counted = content.steps.groupby("run_id")["counted"].sum()
    trained = content.steps.groupby("run_id").size()
    attempts = content.steps.groupby("run_id", sort=False)["attempt"].unique()
    for run in content.runs:
        spec, sha = run.spec, run.done.get("inputs") or {}
        rows.append(
            (
                run.run_id,
                run.arm,
                factors_label(run.factors_key),
                str(run.seed),
                f"{counted[run.run_id]} of {trained[run.run_id]}",
                ", ".join(str(n) for n in sorted(attempts[run.run_id])),
                str(spec.get("stack", "")),
                str(spec.get("lock_id", "")),
                str(spec.get("fingerprint", ""))[:12],
                str(sha.get("data_sha256", ""))[:12],
                str(sha.get("model_sha256", ""))[:12],
            )
        )
    return rows
