"""Draws the report's figures from its tables."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from analysis.figures.bars import phase_bars
from analysis.figures.curves import length_figure, over_steps, reward_figure
from analysis.figures.drawing import Figure
from analysis.mismatch import DEFINITIONS, logged_definition
from analysis.planned import PlanRead
from analysis.wide import PHASE


def figures_of(plan: PlanRead, tables: Mapping[str, pd.DataFrame], lengths: pd.DataFrame) -> list[Figure]:
    """The figures of a report's tables and lengths (`Content`), in order, without those that have no data."""
    wide = tables["steps"]
    if not len(wide):
        return []
    made = [phase_bars(plan, tables)]
    # One step needs no figure over the steps.
    if wide["run_id"].duplicated().any():
        seconds = {"": wide[PHASE + "step"]}
        made += [
            over_steps(wide, plan, seconds, "step-time", "Seconds of each step", "seconds per step"),
            reward_figure(wide, plan),
            _mismatch_figure(wide, plan),
            length_figure(wide, plan, lengths),
        ]
    return [figure for figure in made if figure is not None]


def _mismatch_figure(wide: pd.DataFrame, plan: PlanRead) -> Figure | None:
    name = logged_definition(wide)
    title = "How far engine and trainer are apart"
    return over_steps(wide, plan, {"": wide[name]}, "mismatch", title, DEFINITIONS[name]) if name else None
