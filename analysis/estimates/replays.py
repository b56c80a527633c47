"""Reads the replays that explain a ratio of trained arms, and says where they are of other work or another machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.estimates.bootstrap import Floats, Sums, block_length, resampled_sums
from analysis.estimates.comparable import ran_otherwise
from analysis.estimates.equal_work import GENERATION, LONGEST
from analysis.runs import PlanRead, Run, at
from analysis.speedup import MEAN_LENGTH, TOKENS
from common.verdicts import Verdict

# From here on the replay's completions are of other lengths than training's, and its ratio need not be training's.
OTHER_LENGTHS_FROM = 1.25


@dataclass(frozen=True)
class StepSample:
    """Paired steps of one kind: sums of columns, and what varies from step to step, run after run."""

    columns: Floats
    lengths: tuple[int, ...]
    series: Sequence[Floats]
    spent: int = 1

    def sums(self, resamples: int, seed: int) -> Sums:
        return resampled_sums(self.columns, self.lengths, block_length(self.series, self.spent), resamples, seed)


def chains_of(plan: PlanRead) -> dict[str, tuple[str, ...]]:
    """Each explained arm's replays; none where the report is made against a baseline of another engine."""

    def engine(arm: str) -> object:
        return plan.arms.get(arm, {}).get("engine")

    asked: Mapping[str, Sequence[str]] = plan.report.get("explain") or {}
    ends = {arm: ((plan.baseline, chain[0]), (arm, chain[-1])) for arm, chain in asked.items()}
    return {arm: tuple(asked[arm]) for arm, both in ends.items() if all(engine(one) == engine(r) for one, r in both)}


def replay_sample(
    wide: pd.DataFrame, runs: Sequence[Run], factors: str, chain: tuple[str, ...]
) -> tuple[StepSample | None, str]:
    """The replays' generation seconds, a column for each of the chain, over the steps that all have; or why none."""
    of_arm = {arm: [run for run in runs if run.arm == arm] for arm in chain}
    if absent := [arm for arm, some in of_arm.items() if not some]:
        return None, f"no run of the replay {' and '.join(absent)}"
    for arm in chain[1:]:
        if reasons := ran_otherwise(of_arm[chain[0]], of_arm[arm]):
            return None, f"the replays ran with {'; '.join(reasons.values())}"
    here = wide[wide["counted"].astype(bool) & (wide["factors"] == factors)]
    keys, names = ["seed", "step"], [GENERATION, TOKENS, LONGEST]
    if not set(names) <= set(here):
        return None, "the replays have no lengths"
    table = None
    for place, arm in enumerate(chain):
        one = here.loc[here["arm"] == arm, [*keys, *names]].rename(columns={name: f"{name}{place}" for name in names})
        table = one if table is None else table.merge(one, on=keys)
    assert table is not None
    table = table.sort_values(keys)
    if table.empty:
        return None, f"the replays {', '.join(chain)} have no counted step in common"
    of_all = {name: table[[f"{name}{place}" for place in range(len(chain))]].to_numpy(np.float64) for name in names}
    if any(not (of_all[name] == of_all[name][:, :1]).all() for name in (TOKENS, LONGEST)):
        return None, "the replays' completions are not of equal lengths in every step"
    seconds = of_all[GENERATION]
    if not (seconds > 0).all():
        return None, "the replays' generation is not timed in every step"
    lengths = tuple(int(n) for n in table.groupby("seed", sort=False).size())
    series = np.split(np.log(seconds[:, 0] / seconds[:, -1]), np.cumsum(lengths)[:-1])
    return StepSample(seconds, lengths, list(series)), ""


def replay_verdicts(wide: pd.DataFrame, runs: Sequence[Run], plan: PlanRead) -> Iterator[Verdict]:
    """Warns where a replay's completions are far from those of the arm that it explains, or its machine is another."""
    chains = chains_of(plan)
    counted = wide[wide["counted"].astype(bool)]
    pairs = {pair for arm, chain in chains.items() for pair in ((plan.baseline, chain[0]), (arm, chain[-1]))}
    for factors in counted["factors"].unique():
        here = counted[counted["factors"] == factors]
        for trained, alone in sorted(pairs):
            of = {arm: [r for r in runs if r.arm == arm and r.factors_key == factors] for arm in (trained, alone)}
            if not all(of.values()):
                continue
            if reasons := ran_otherwise(of[trained], of[alone]):
                text = (
                    f"{alone}, the replay of {trained}{at(factors)}, ran with {'; '.join(reasons.values())}: its "
                    "factor is of what it ran on"
                )
                yield Verdict("warning", "replay-ran-otherwise", text)
            if text := _other_lengths(here, trained, alone):
                yield Verdict("warning", "replay-other-lengths", f"{text}{at(factors)}: {OTHER_WORK}")


OTHER_WORK = "the ratio of the engines may be another at the lengths of training. Give the replay a run's own lengths"


def _other_lengths(counted: pd.DataFrame, trained: str, alone: str) -> str:
    for name, word in ((MEAN_LENGTH, "mean"), (LONGEST, "longest")):
        if name in counted:
            means = [float(counted.loc[counted["arm"] == arm, name].mean()) for arm in (alone, trained)]
            if min(means) > 0 and max(means) / min(means) > OTHER_LENGTHS_FROM:
                return (
                    f"the replay {alone} has a {word} completion of {means[0]:.0f} tokens, {trained} of {means[1]:.0f}"
                )
    return ""
