"""Reads the replays that explain a ratio of trained arms, and reports those of other work or another machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.estimates.bootstrap import Floats, Sums, block_length, resampled_sums
from analysis.estimates.comparable import different_conditions
from analysis.estimates.equal_work import GENERATION, LONGEST
from analysis.factors import at
from analysis.pairs import MEAN_LENGTH, TOKENS
from analysis.planned import PlanRead
from analysis.runs import Run
from analysis.wide import counted_rows
from common.verdicts import Verdict

# From this ratio of lengths on the replay's ratio may differ from that in training.
OTHER_LENGTHS_FROM = 1.25


@dataclass(frozen=True)
class StepSample:
    """Paired steps of one kind, with the runs in sequence."""

    columns: Floats
    """What is summed, by step and quantity."""
    lengths: tuple[int, ...]
    """The steps of each run."""
    series: Sequence[Floats]
    """Each run's step by step values, which give the block length."""
    spent: int = 1

    def sums(self, resamples: int, seed: int) -> Sums:
        return resampled_sums(self.columns, self.lengths, block_length(self.series, self.spent), resamples, seed)


def chains_of(plan: PlanRead) -> dict[str, tuple[str, ...]]:
    """Each explained arm's replays; none where the report's baseline has another engine."""
    explain: Mapping[str, Sequence[str]] = plan.report.get("explain") or {}
    engines = {arm: settings.get("engine") for arm, settings in plan.arms.items()}
    return {
        arm: tuple(chain)
        for arm, chain in explain.items()
        if engines.get(plan.baseline) == engines.get(chain[0]) and engines.get(arm) == engines.get(chain[-1])
    }


def replay_sample(
    wide: pd.DataFrame, runs: Sequence[Run], factors: str, chain: tuple[str, ...]
) -> tuple[StepSample | None, str]:
    """The generation seconds of the chain's replays, a column each, over the steps that all have; or why none."""
    of_arm = {arm: [run for run in runs if run.arm == arm] for arm in chain}
    if absent := [arm for arm, its in of_arm.items() if not its]:
        return None, f"no run of the replay {' and '.join(absent)}"
    for arm in chain[1:]:
        if reasons := different_conditions(of_arm[chain[0]], of_arm[arm]):
            return None, f"the replays ran with {'; '.join(reasons.values())}"
    keys, names = ["seed", "step"], [GENERATION, TOKENS, LONGEST]
    here = counted_rows(wide, "factors", "arm", *keys, *names)
    here = here[here["factors"] == factors]
    if not set(names) <= set(here):
        return None, "the replays have no lengths"
    steps = [here.loc[here["arm"] == arm, [*keys, *names]].set_index(keys) for arm in chain]
    table = pd.concat(steps, axis=1, join="inner", keys=range(len(chain))).sort_index()
    if table.empty:
        return None, f"the replays {', '.join(chain)} have no counted step in common"
    of_all = {name: table.xs(name, axis=1, level=1).to_numpy(np.float64) for name in names}
    if any(not (of_all[name] == of_all[name][:, :1]).all() for name in (TOKENS, LONGEST)):
        return None, "the replays' completions are not of equal lengths in every step"
    seconds = of_all[GENERATION]
    if not (seconds > 0).all():
        return None, "the replays' generation is not timed in every step"
    lengths = tuple(int(n) for n in table.groupby(level="seed", sort=False).size())
    series = np.split(np.log(seconds[:, 0] / seconds[:, -1]), np.cumsum(lengths)[:-1])
    return StepSample(seconds, lengths, list(series)), ""


def replay_verdicts(wide: pd.DataFrame, runs: Sequence[Run], plan: PlanRead) -> Iterator[Verdict]:
    """Warns where a replay has other lengths than the arm that it explains, or another machine."""
    chains = chains_of(plan)
    counted = counted_rows(wide, "factors", "arm", MEAN_LENGTH, LONGEST)
    pairs = {pair for arm, chain in chains.items() for pair in ((plan.baseline, chain[0]), (arm, chain[-1]))}
    for factors in counted["factors"].unique():
        here = counted[counted["factors"] == factors]
        for trained, alone in sorted(pairs):
            of = {arm: [r for r in runs if r.arm == arm and r.factors_key == factors] for arm in (trained, alone)}
            if not all(of.values()):
                continue
            if reasons := different_conditions(of[trained], of[alone]):
                text = (
                    f"{alone}, the replay of {trained}{at(factors)}, ran with {'; '.join(reasons.values())}: its "
                    "factor is that of its own conditions"
                )
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
