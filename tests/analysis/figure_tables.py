"""Made-up tables with the columns that the figures draw: test data, no results."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.figures.curves import figures_of
from analysis.planned import PlanRead

ESTIMATES = ("equal_work", "per_step")


@dataclass(frozen=True, kw_only=True)
class FigureTables:
    """The tables that figures are drawn from, and their plan."""

    plan: PlanRead
    wide: pd.DataFrame
    categories: pd.DataFrame
    estimates: pd.DataFrame

    def drawn(self):
        tables = {"estimates": self.estimates}
        tables["ranking"] = pd.DataFrame({"factors": [], "arm": []})
        own = {"steps": self.wide, "phases": self.categories.assign(path="step")}
        return figures_of(self.plan, tables | own)


def plan_of(arms, warmup_steps=2):
    return PlanRead("made-up", "", arms[0], {arm: {"trainer": "trl"} for arm in arms}, warmup_steps, (), {})


def wide_of(arms, seeds=2, steps=12, factors=None, warmup_steps=2):
    """Steps of arms each 1.3 times as fast as the one before, down to the tenth."""
    random = np.random.default_rng(7)
    keys = [json.dumps(f, sort_keys=True, ensure_ascii=False) for f in factors or []] or [""]
    frames = []
    for f, key in enumerate(keys):
        for a, arm in enumerate(arms):
            for seed in range(seeds):
                step = np.arange(1, steps + 1)
                mean = random.normal(400, 40, steps) * (1 + step / steps / 4)
                longest = mean * random.uniform(2.5, 3.5, steps)
                frames.append(
                    pd.DataFrame(
                        {
                            "run_id": f"r{f}-{a}-{seed}",
                            "arm": arm,
                            "factors": key,
                            "seed": seed,
                            "step": step,
                            "counted": step > warmup_steps,
                            "timing_s/step": longest
                            / 1.3 ** min(a, 10)
                            * random.uniform(0.09, 0.11, steps)
                            * (1 + f / 20),
                            "reward": 0.3 + 0.4 * step / steps + random.normal(0, 0.05, steps),
                            "mean_response_length": mean,
                            "max_response_length": longest,
                            "response_tokens": mean * 64,
                        }
                    )
                )
    return pd.concat(frames, ignore_index=True)


def keys_of(wide):
    return wide[["factors", "arm"]].drop_duplicates()


def categories_of(wide, residual=0.01):
    shares = {
        "generation": 0.7,
        "weight sync": 0.02,
        "log-probs": 0.1,
        "rewards": 0.005,
        "loss+backward": 0.15,
        "optimizer": 0.01,
        "residual": residual,
    }
    means = wide[wide["counted"]].groupby(["factors", "arm"], sort=False)["timing_s/step"].mean()
    rows = [(f, a, c, s * mean) for (f, a), mean in means.items() for c, s in shares.items()]
    return pd.DataFrame(rows, columns=["factors", "arm", "category", "own_mean_s"])


def estimates_of(wide, plan, interval=0.12):
    random = np.random.default_rng(3)
    rows = []
    for n, (factors, arm) in enumerate(keys_of(wide).itertuples(index=False)):
        if arm == plan.baseline:
            continue
        for e, estimate in enumerate(ESTIMATES):
            value = float(math.exp(random.normal(0.1 + 0.05 * e, 0.15)))
            low, high = value * (1 - interval), value * (1 + interval)
            verdict = "+" if low > 1 else "-" if high < 1 else "~"
            row = [factors, arm, estimate, value, low, high, verdict, ""]
            if estimate == "equal_work" and n % 3 == 1:
                row[3:] = [math.nan, math.nan, math.nan, "x", "hardly a step of both has like lengths"]
            rows.append(row)
    return pd.DataFrame(rows, columns=["factors", "arm", "estimate", "value", "low", "high", "verdict", "why"])


def tables_of(arms, seeds=2, steps=12, factors=None, residual=0.01, warmup_steps=2):
    plan, wide = plan_of(arms, warmup_steps), wide_of(arms, seeds, steps, factors, warmup_steps)
    return FigureTables(
        plan=plan,
        wide=wide,
        categories=categories_of(wide, residual),
        estimates=estimates_of(wide, plan),
    )
