"""Checks that a faster arm trains equally well: reward, truncated responses, distance of rollout and trainer."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from analysis.estimates.bootstrap import block_length, interval_of, resampled_sums
from analysis.pairs import compared
from analysis.planned import PlanRead
from analysis.windows import mean_of, pair_weights

# Quantity: the sign of a worse value. Each trainer logs another measure of the rollout's distance.
WORSE = {"reward": -1, "truncated_share": 1, "rollout_kl": 1, "rollout_logp_gap": 1, "rollout_probability_gap": 1}
LABELS = {
    "reward": "reward",
    "truncated_share": "share of truncated responses",
    "rollout_kl": "KL of rollout against trainer",
    "rollout_logp_gap": "|log-probability| of rollout minus trainer",
    "rollout_probability_gap": "|probability| of rollout minus trainer",
}
ALIKE, WORSE_ARM, BETTER_ARM, UNKNOWN = "alike", "worse", "better", "unknown"
COLUMNS = [
    *("factors", "arm", "quantity"),
    *("baseline", "arm_value", "difference", "low", "high", "verdict"),
    *("run_pairs", "paired_steps", "baseline_missing", "arm_missing"),
]
# Every trainer logs these, so they are never replaced by another measure.
ALWAYS = ("reward",)


def gate_table(wide: pd.DataFrame, plan: PlanRead) -> pd.DataFrame:
    """One row per factor combination, arm and quantity that both arms log (columns: `COLUMNS`).

    Means are over the paired steps with a number in both; `difference` is arm minus baseline, with its 95% interval.
    The verdict is `alike` where the interval includes 0, otherwise `worse` or `better`. It is `unknown` without an
    interval, for one pair of runs whose interval excludes 0, and where one side misses numbers that the other has
    (`baseline_missing`, `arm_missing`), because the missing steps may differ. The reward has a row even where one side
    never has a number.
    """
    rows = []
    for factors, arm, pairs in compared(wide, plan, tuple(WORSE)):
        for quantity in WORSE:
            names = [f"{quantity}_{side}" for side in "ab"]
            if not set(names) <= set(pairs.columns):
                continue
            finite = np.isfinite(pairs[names].to_numpy(dtype=np.float64))
            both = pairs[finite.all(axis=1)]
            if len(both) or (quantity in ALWAYS and finite.any()):
                missing = (finite.any(axis=1) & ~finite.T).sum(axis=1)
                row: dict[str, object] = {"factors": factors, "arm": arm, "quantity": quantity}
                row |= _difference(both, names, WORSE[quantity])
                if missing.any() and row["verdict"] != WORSE_ARM:
                    row["verdict"] = UNKNOWN
                rows.append(row | {"baseline_missing": int(missing[0]), "arm_missing": int(missing[1])})
    return pd.DataFrame(rows, columns=COLUMNS)


def _difference(pairs: pd.DataFrame, names: list[str], worse: int) -> dict[str, object]:
    if pairs.empty:
        nothing = dict.fromkeys(("baseline", "arm_value", "difference", "low", "high"), math.nan)
        return {**nothing, "verdict": UNKNOWN, "run_pairs": 0, "paired_steps": 0}
    a, b = (pairs[name].to_numpy(dtype=np.float64) for name in names)
    lengths = [int(n) for n in pairs.groupby("seed", sort=False).size()]
    series = np.split(b - a, np.cumsum(lengths)[:-1])
    steps = pair_weights(pairs)
    sums = resampled_sums(np.stack([steps, (b - a) * steps], axis=1), lengths, block_length(list(series)))
    found = interval_of(lambda drawn: drawn[..., 1] / drawn[..., 0], sums)
    verdict = UNKNOWN
    # One pair of runs does not show how much other runs differ: its interval claims no direction, as for speed.
    if found is not None and (len(lengths) > 1 or found.low <= 0 <= found.high):
        side = -1 if found.high < 0 else 1 if found.low > 0 else 0
        verdict = ALIKE if side == 0 else WORSE_ARM if side == worse else BETTER_ARM
    return {
        "baseline": mean_of(pairs[names[0]].astype(float), steps),
        "arm_value": mean_of(pairs[names[1]].astype(float), steps),
        "difference": mean_of(pd.Series(b - a, index=pairs.index), steps),
        "low": found.low if found else math.nan,
        "high": found.high if found else math.nan,
        "verdict": verdict,
        "run_pairs": len(lengths),
        "paired_steps": int(steps.sum()),
    }


def missing_numbers(gate: pd.DataFrame) -> pd.DataFrame:
    """The rows with numbers that one side misses and the other has."""
    return gate[(gate["baseline_missing"] > 0) | (gate["arm_missing"] > 0)]
