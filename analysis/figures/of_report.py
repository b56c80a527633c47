"""Draws the report's figures from its tables, in order."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from analysis.figures.bars import phase_bars
from analysis.figures.drawing import Figure
from analysis.figures.over_steps import length_figure, over_steps, reward_figures
from analysis.figures.ratios import estimates_figure, step_ratio_figure
from analysis.phases import category_table
from analysis.planned import PlanRead
from analysis.wide import PHASE


def figures_of(plan: PlanRead, tables: Mapping[str, pd.DataFrame], lengths: pd.DataFrame) -> list[Figure]:
    """The figures of a report's tables and lengths (`Content`), in order, without those that have no data."""
    wide, estimates = tables["steps"], tables["estimates"]
    if not len(wide):
        return []
    made = [
        estimates_figure(estimates, plan),
        phase_bars(category_table(tables["phases"], "step")),
    ]
    # One step needs no figure over the steps.
    if wide["run_id"].duplicated().any():
        rate_names = ("tokens_per_s", "tokens-per-second", "Throughput", "response tokens per second of step")
        rate = (wide.get("response_tokens", math.nan) / wide[PHASE + "step"]).where(wide[PHASE + "step"] > 0)
        made += [
            step_ratio_figure(wide, plan, estimates),
            over_steps(wide, plan, PHASE + "step", "step-time", "Step time", "seconds per step", log_if_wide=True),
            length_figure(wide, plan, lengths),
            *reward_figures(wide, plan, tables["rewards"]),
            over_steps(wide.assign(tokens_per_s=rate), plan, *rate_names),
        ]
    return [figure for figure in made if figure is not None]
