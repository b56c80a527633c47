"""Whether the reward can be drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.runs import Run
from common.verdicts import Verdict, count_of
from trainers.quantities import QUANTITIES, logged_as

REWARD = "reward"


def reward_verdicts(wide: pd.DataFrame, runs: Sequence[Run]) -> list[Verdict]:
    """Runs that log no reward, and those whose reward is no finite number at some steps."""
    if not len(wide):
        return []
    if REWARD not in wide:
        return [Verdict("warning", "no-reward", f"no run logs {' or '.join(QUANTITIES[REWARD])}: no reward curve")]
    found = []
    silent = {run.run_id for run in runs if logged_as(REWARD, run.steps["name"].unique()) is None}
    for key, rows in wide.groupby("run_id", sort=False):
        run_id, bad = str(key), rows[~np.isfinite(rows[REWARD].astype(float))]
        if run_id in silent:
            text = f"run {run_id} logs no reward: it has no reward curve"
            found.append(Verdict("note", "run-without-reward", text))
        elif len(bad):
            text = (
                f"run {run_id}: the reward is no number at {count_of(len(bad), 'step')} (first: step "
                f"{int(bad['step'].min())}); not drawn there"
            )
            found.append(Verdict("warning", "bad-reward", text))
    return found
