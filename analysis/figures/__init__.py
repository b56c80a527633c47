"""Which figures the report has, in order."""

from __future__ import annotations

import pandas as pd

from analysis.figures.distributions import length_figure, length_scalars_figure, reward_distribution
from analysis.figures.drawing import Figure
from analysis.figures.forest import estimates_figure
from analysis.figures.over_steps import over_steps
from analysis.figures.paired import paired_figure
from analysis.figures.phase_bars import phase_bars
from analysis.figures.straggler_figure import straggler_figure
from analysis.figures.sweeps import sweep_figures
from analysis.figures.tables import FigureTables
from analysis.figures.thinning import with_tokens_per_second
from analysis.figures.waterfall_figure import waterfall_figure
from analysis.reward import REWARD
from analysis.wide import PHASE

__all__ = ["FigureTables", "figures_of"]


def figures_of(tables: FigureTables) -> list[Figure]:
    """The report's figures in order; one without data is left out."""
    t, wide, plan = tables, tables.wide, tables.plan
    if not len(wide):
        return []
    estimates = t.estimates if t.estimates is not None else pd.DataFrame()
    lengths = t.lengths if t.lengths is not None else pd.DataFrame()
    rates = with_tokens_per_second(wide)
    made = [
        estimates_figure(estimates, plan, t.noise),
        waterfall_figure(t.waterfall) if t.waterfall is not None else None,
        phase_bars(t.categories),
        paired_figure(wide, plan, t.estimates, t.noise),
        over_steps(wide, plan, PHASE + "step", "step-time", "Step time", "seconds per step", log_if_wide=True),
        length_figure(lengths, plan) if len(lengths) else length_scalars_figure(wide, plan),
        straggler_figure(wide, plan, t.stragglers, lengths),
        over_steps(wide, plan, REWARD, "reward", "Reward", "mean reward", from_zero=False),
        reward_distribution(wide, plan),
        over_steps(
            rates, plan, "tokens_per_s", "tokens-per-second", "Throughput", "response tokens per second of step"
        ),
        *sweep_figures(estimates, plan),
    ]
    return [figure for figure in made if figure is not None]
