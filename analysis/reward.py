"""Whether the reward can be drawn."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.quantities import QUANTITIES
from analysis.verdicts import Verdict

REWARD = "reward"


def reward_verdicts(wide: pd.DataFrame) -> list[Verdict]:
    """Runs whose reward is missing or no finite number at some steps."""
    if not len(wide):
        return []
    if REWARD not in wide:
        return [Verdict("warning", "no-reward", f"no run logs {' or '.join(QUANTITIES[REWARD])}: no reward curve")]
    found = []
    bad = wide[~np.isfinite(wide[REWARD].astype(float))]
    for run_id, rows in bad.groupby("run_id", sort=False):
        first = int(rows["step"].min())
        text = f"run {run_id}: the reward is no number at {len(rows)} steps (first: step {first}); not drawn there"
        found.append(Verdict("warning", "bad-reward", text))
    return found
