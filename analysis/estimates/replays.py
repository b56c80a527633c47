"""Reports replays whose lengths or machine differ from those of the training with the same engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from analysis.compared import LONGEST, MEAN_LENGTH
from analysis.estimates.comparable import different_conditions
from analysis.factors import at
from analysis.planned import PlanRead
from analysis.runs import Run
from analysis.wide import counted_rows
from common.verdicts import Verdict
from engines import UNKNOWN

# From this ratio of lengths on the replay's ratio may differ from that in training.
OTHER_LENGTHS_FROM = 1.25


def replay_verdicts(wide: pd.DataFrame, runs: Sequence[Run], plan: PlanRead) -> Iterator[Verdict]:
    """Warns where an engine alone had other lengths than the training with that engine, or another machine."""
    counted = counted_rows(wide, "factors", "arm", MEAN_LENGTH, LONGEST)
    engines = {arm: str(settings.get("engine")) for arm, settings in plan.arms.items()}
    trainings = [arm for arm in plan.arms if plan.trains(arm) and engines[arm] != UNKNOWN]
    pairs = [(arm, alone) for arm in trainings for alone in plan.arms if not plan.trains(alone)]
    for factors in counted["factors"].unique():
        here = counted[counted["factors"] == factors]
        for trained, alone in pairs:
            of = {arm: [r for r in runs if r.arm == arm and r.factors_key == factors] for arm in (trained, alone)}
            if engines[trained] != engines[alone] or not all(of.values()):
                continue
            if reasons := different_conditions(of[trained], of[alone]):
                text = f"{alone}, the engine of {trained}{at(factors)} alone, ran with {'; '.join(reasons.values())}"
                yield Verdict("warning", "replay-ran-otherwise", text)
            if text := _other_lengths(here, trained, alone):
                text += (
                    f"{at(factors)}: the engines' ratio may differ at the lengths of training. Give the replay a run's "
                )
                yield Verdict("warning", "replay-other-lengths", f"{text}own lengths")


def _other_lengths(counted: pd.DataFrame, trained: str, alone: str) -> str:
    for name, label in ((MEAN_LENGTH, "mean"), (LONGEST, "longest")):
        if name in counted:
            a, b = (float(counted.loc[counted["arm"] == arm, name].mean()) for arm in (alone, trained))
            if min(a, b) > 0 and max(a, b) / min(a, b) > OTHER_LENGTHS_FROM:
                return f"the replay {alone} has a {label} completion of {a:.0f} tokens, {trained} of {b:.0f}"
    return ""
