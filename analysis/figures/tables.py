"""Which tables the figures are drawn from."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from analysis.runs import PlanRead


@dataclass(frozen=True, kw_only=True)
class FigureTables:
    """The report's tables; one that is None or empty has its figure left out.

    wide: analysis/wide.py · categories: phases.category_table · lengths: wide.samples("response_length") ·
    waterfall: waterfall.py · estimates: estimates.py · noise: noise.py · stragglers: stragglers.py.
    """

    plan: PlanRead
    wide: pd.DataFrame
    categories: pd.DataFrame
    lengths: pd.DataFrame | None = None
    waterfall: pd.DataFrame | None = None
    estimates: pd.DataFrame | None = None
    noise: pd.DataFrame | None = None
    stragglers: pd.DataFrame | None = None
