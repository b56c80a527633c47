"""Draws the score and each of its rewards over the training steps, and how the scores are spread."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from analysis.figures.drawing import Figure
from analysis.figures.over_steps import over_steps, spread
from analysis.figures.thinning import cumulative_shares
from analysis.reward_change import first_of
from analysis.runs import PlanRead
from analysis.wide import REWARD, SINGLE_REWARD
from common.verdicts import count_of
from trainers.quantities import single_rewards

MAX_REWARDS = 8
REWARD_SHARE = "share of the arm's steps up to that reward"


def reward_figures(wide: pd.DataFrame, plan: PlanRead, rewards: pd.DataFrame) -> list[Figure]:
    """The score over the steps; where it is the sum of several rewards, each of them: the first `MAX_REWARDS`.

    `rewards` is the table of analysis/reward_change.py, which has their weights.
    """
    single = single_rewards(map(str, wide.columns))
    weights = {name: _weight(rewards, name) for name in single}
    caption = ""
    if len(single) > 1 and all(weights.values()):
        caption = f"The score, a weighted sum: {', '.join(f'{name} × {weight}' for name, weight in weights.items())}. "
    drawn = [
        over_steps(
            wide, plan, REWARD, "reward", "Reward", "mean reward", from_zero=False, interval=True, caption=caption
        )
    ]
    for reward, columns in list(single.items())[:MAX_REWARDS] if len(single) > 1 else ():
        name = SINGLE_REWARD + re.sub(r"[^A-Za-z0-9_-]+", "-", reward)
        weight = (
            f"Its weight in the score is {weights[reward]}; drawn before it. "
            if weights[reward]
            else "Before its weight. "
        )
        caption = f"{weight}Completions without a value are left out. "
        column, unit, title = "single reward", f"mean of {reward}", f"Reward: {reward}"
        frame = wide.assign(**{column: first_of(wide, columns)})
        drawn.append(
            over_steps(frame, plan, column, name, title, unit, from_zero=False, interval=True, caption=caption)
        )
    return [figure for figure in drawn if figure is not None]


def _weight(rewards: pd.DataFrame, name: str) -> str:
    """A reward's weights over arms and factor combinations; "" where a run does not say it."""
    weights = rewards.loc[rewards["reward"] == name, "weight"]
    if weights.empty or weights.isna().any():
        return ""
    return " or ".join(f"{weight:g}" for weight in dict.fromkeys(weights.astype(float)))


def reward_distribution(wide: pd.DataFrame, plan: PlanRead) -> Figure | None:
    """How the counted steps' mean rewards are spread, by arm, as cumulative shares."""
    if REWARD not in wide:
        return None
    counted = wide[wide["counted"].astype(bool)]
    rewards = pd.DataFrame({"arm": counted["arm"], "value": pd.to_numeric(counted[REWARD], errors="coerce")})
    rewards = rewards[np.isfinite(rewards["value"])]
    frame = cumulative_shares(rewards)
    if frame.empty:
        return None
    svg, how = spread(frame, plan, "value", "mean reward of a step", REWARD_SHARE)
    stats = rewards.groupby("arm", sort=False)["value"].agg(["min", "median", "max", "size"])
    words = "; ".join(
        f"{arm}: from {s['min']:.4g} over the median {s['median']:.4g} to {s['max']:.4g}, "
        f"{count_of(int(s['size']), 'step')}"
        for arm, s in stats.iterrows()
    )
    return Figure(
        "reward-distribution",
        "How the rewards are spread",
        "Mean rewards of the counted steps: how large a share of an arm's steps had that reward or less. A curve "
        "further right means higher rewards. Rewards rise while a policy learns: arms compare where they trained the "
        f"same steps.{how}",
        f"Cumulative distribution of the counted steps' mean rewards. {words}",
        svg,
        "steps",
    )
