"""Draws the report's figures from its tables, in order."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from analysis.figures.bars import phase_bars, waterfall_figure
from analysis.figures.drawing import Figure
from analysis.figures.over_steps import (
    length_figure,
    length_scalars_figure,
    over_steps,
    straggler_figure,
)
from analysis.figures.ratios import estimates_figure, paired_figure
from analysis.figures.reward_curves import reward_distribution, reward_figures
from analysis.figures.sweeps import ranking_figure, sweep_figures
from analysis.figures.thinning import with_tokens_per_second
from analysis.runs import PlanRead
from analysis.wide import PHASE


@dataclass(frozen=True, kw_only=True)
class FigureTables:
    """The report's tables; one that is None or empty has its figure left out.

    wide: analysis/wide.py · categories: phases.category_table · lengths: wide.samples("response_length") ·
    waterfall: waterfall.py · estimates: estimates.py · noise: noise.py · stragglers: stragglers.py ·
    rewards: reward_change.py · ranking: ranking.py.
    """

    plan: PlanRead
    wide: pd.DataFrame
    categories: pd.DataFrame
    lengths: pd.DataFrame | None = None
    waterfall: pd.DataFrame | None = None
    estimates: pd.DataFrame | None = None
    noise: pd.DataFrame | None = None
    stragglers: pd.DataFrame | None = None
    rewards: pd.DataFrame | None = None
    ranking: pd.DataFrame | None = None


def figures_of(tables: FigureTables) -> list[Figure]:
    """The report's figures in order; one without data is left out."""
    t, wide, plan = tables, tables.wide, tables.plan
    if not len(wide):
        return []
    estimates = t.estimates if t.estimates is not None else pd.DataFrame()
    rewards = t.rewards if t.rewards is not None else pd.DataFrame({"reward": [], "weight": []})
    lengths = t.lengths if t.lengths is not None else pd.DataFrame()
    rate = ("tokens_per_s", "tokens-per-second", "Throughput", "response tokens per second of step")
    made = [
        estimates_figure(estimates, plan, t.noise),
        waterfall_figure(t.waterfall) if t.waterfall is not None else None,
        phase_bars(t.categories),
        paired_figure(wide, plan, t.estimates, t.noise),
        over_steps(wide, plan, PHASE + "step", "step-time", "Step time", "seconds per step", log_if_wide=True),
        length_figure(lengths, plan) if len(lengths) else length_scalars_figure(wide, plan),
        straggler_figure(wide, plan, t.stragglers, lengths),
        *reward_figures(wide, plan, rewards),
        reward_distribution(wide, plan),
        over_steps(with_tokens_per_second(wide), plan, *rate),
        *sweep_figures(estimates, plan),
        ranking_figure(t.ranking, plan) if t.ranking is not None else None,
    ]
    return [figure for figure in made if figure is not None]
