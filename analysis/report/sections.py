"""Builds the report's sections of one table with its figures and sentences."""

from __future__ import annotations

import math
from dataclasses import dataclass

from analysis.estimates.gate import LABELS
from analysis.estimates.ranking import ranking_lines
from analysis.logged_rewards import SINGLE_REWARD
from analysis.report.cells import (
    MINUS,
    Cell,
    Column,
    Table,
    count,
    frame_table,
    in_full,
    interval_columns,
    significant,
    step_seconds,
    text_column,
    times,
)
from analysis.report.content import Content


@dataclass(frozen=True)
class ReportSection:
    """A heading, a table (perhaps without rows), and the names of the figures under it."""

    id: str
    title: str
    table: Table
    figures: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    """Sentences under the table."""


def sections(content: Content) -> list[ReportSection]:
    """The sections that have a table or a figure, in the page's order."""
    drawn = [figure.name for figure in content.figures]
    single = (name for name in drawn if name.startswith(SINGLE_REWARD))
    reward_figures = ("reward", *single)
    rewards = rewards_block(content)
    under_gate, under_rewards = ((), reward_figures) if rewards.rows else (reward_figures, ())
    ranked = tuple(ranking_lines(content.tables["ranking"], content.plan))
    every = [
        ReportSection("ranking", "Settings, the fastest first", ranking_block(content), (), ranked),
        ReportSection("gate", "Do the arms train the same?", gate_block(content), under_gate),
        ReportSection("rewards", "What was rewarded", rewards, under_rewards),
        ReportSection("cost", "What it costs", cost_block(content)),
    ]
    return [section for section in every if section.table.rows or set(drawn) & set(section.figures)]


def ranking_block(content: Content) -> Table:
    """The settings of a sweep or of engines alone, each against the first of its workload."""
    columns = (
        Column("step_s", "s/step", step_seconds),
        Column("ratio", "times the first's seconds", times),
        *interval_columns(times),
        Column("runs", "runs", count),
        text_column("why", "why no ratio"),
    )
    note = (
        "A run is one number: its mean seconds over the steps that all settings of a workload have. The ratios are of "
        "step times, with Welch's interval over runs; of trainings they include the luck of response lengths. The "
        "intervals are independent: of twenty settings as fast as the first, about one seems slower by chance."
    )
    return frame_table(content, "ranking", columns, "Settings sorted by seconds of a step", note=note)


def gate_block(content: Content) -> Table:
    """Reward, truncated responses, and how far the rollout is from the trainer, against the baseline."""
    columns = (
        text_column("quantity", "quantity", LABELS),
        Column("baseline", content.plan.baseline, significant),
        Column("arm_value", "arm", significant),
        Column("difference", "difference", significant),
        *interval_columns(significant),
        text_column("verdict", "verdict"),
        Column("baseline_runs", "runs of the baseline", count),
        Column("arm_runs", "runs of the arm", count),
        Column("steps", "steps", count),
        Column("baseline_missing", f"steps that only {content.plan.baseline} lacks", _positive_count),
        Column("arm_missing", "steps that only the arm lacks", _positive_count),
    )
    note = (
        "Means over the steps that are compared. Alike: the interval of the difference contains 0. An arm that is "
        "worse here is not faster at the same training. A quantity that a trainer does not log is not in the table."
    )
    return frame_table(content, "gate", columns, "The correctness gate", note=note)


def rewards_block(content: Content) -> Table:
    """Each reward's weight, and its change over training."""
    columns = (
        text_column("reward", "reward"),
        Column("weight", "weight", _weight),
        Column("first", "first quarter", significant),
        Column("last", "last quarter", significant),
        Column("change", "change", significant),
        *interval_columns(significant),
        Column("runs", "runs", count),
        Column("steps", "steps of a quarter", count),
    )
    note = (
        "Means before the weight, over the first and the last quarter of each run's steps, warm-up included. The "
        "interval is over runs (Student's t); one run has none. A change whose interval contains 0 may be chance."
    )
    return frame_table(content, "rewards", columns, "Each reward over training", note=note)


def cost_block(content: Content) -> Table:
    """GPU-hours, and with a price what a number of steps costs."""
    cost = content.tables["cost"]
    currency = str(cost["currency"].iloc[0]) if len(cost) else ""
    columns = (
        Column("gpus", "GPUs", count),
        Column("gpu_hours", "GPU-hours used", significant),
        Column("step_gpu_s", "GPU-seconds a step", significant),
        Column("price", f"{currency} per GPU-hour", significant),
        Column("cost", f"{currency}, of the used", significant),
        Column("to_steps", "for steps", count),
        Column("gpu_hours_to_steps", "GPU-hours for these", significant),
        Column("cost_to_steps", f"{currency} for these", significant),
        text_column("why", "what is left out"),
    )
    notes = {
        "Used: all steps, warm-up included, and the logged time between them. Start, validation and checkpoints are "
        "not included. A step: the mean of the counted steps that all arms have.": True,
        "For steps: that many mean steps of one run.": bool(cost["to_steps"].notna().any()),
        "Left out: GPU-hours that were used but are in no number here. The true cost is higher.": bool(
            cost["why"].astype(bool).any()
        ),
        "No price is set: report.price_per_gpu_hour in the configuration sets one.": not (cost["price"] > 0).any(),
    }
    note = " ".join(text for text, applies in notes.items() if applies)
    return frame_table(content, "cost", columns, "GPU-hours and cost", note=note)


def _positive_count(value: float) -> Cell:
    """A count; blank where it is zero."""
    return count(value) if value > 0 else Cell("")


def _weight(value: float) -> Cell:
    return Cell(f"{value:g}".replace("-", MINUS), in_full(value)) if math.isfinite(value) else Cell("")
