"""Makes the table of each arm's speed against the baseline, in four ways that define equal work differently.

docs/estimates.md says what each of them removes; equal_work.py computes them, and bootstrap.py their intervals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from analysis.estimates.arm import UNSETTLED, disagreement, estimates, needed, no_value, rounding_reach
from analysis.estimates.bootstrap import CONFIDENCE, RESAMPLES, confidence_at
from analysis.estimates.comparable import ALL_COMPARABLE, Comparable
from analysis.estimates.equal_work import ESTIMATES, Row, discarded
from analysis.estimates.noise import noise_bands, repetition_of
from analysis.factors import at
from analysis.pairs import compared
from analysis.planned import PlanRead
from analysis.verdict.arm_verdict import WIDE, is_too_wide
from common.verdicts import Verdict

# From this logarithm on a warning reports the effect of printed rounding on the ratio.
ROUNDING_MATTERS_FROM = 0.01

COLUMNS = [
    *("factors", "baseline", "arm", "estimate", "value", "low", "high", "verdict"),
    *("scope", "run_pairs", "paired_steps", "minimum_detectable_ratio", "runs_to_resolve", "why"),
]


def estimate_table(
    wide: pd.DataFrame, plan: PlanRead, comparable: Comparable = ALL_COMPARABLE, resamples: int = RESAMPLES
) -> tuple[pd.DataFrame, list[Verdict]]:
    """One row per factor combination, arm and estimate (columns: `COLUMNS`), and the findings.

    verdict: `+` faster, `-` slower, `~` not resolved, `x` not comparable or without a value (`why` says which). `low`
    and `high` are the 95% interval; `runs_to_resolve` is the number of additional run pairs that would resolve it.
    """
    rows: list[Row] = []
    verdicts: list[Verdict] = []
    bands = {factors: noise_bands(wide, plan, factors, resamples, comparable) for factors in wide["factors"].unique()}
    for factors, arm, pairs in compared(wide, plan, needed()):
        if not wide["arm"].eq(arm).any():
            continue
        head: Row = {"factors": factors, "baseline": plan.baseline, "arm": arm}
        reason = comparable.refused.get((factors, arm), "")
        if reason or pairs.empty:
            reason = reason or _not_in_common(wide, factors, plan.baseline, arm)
            rows += [head | no_value(name, reason) for name in ESTIMATES]
            continue
        confidence = confidence_at(pairs["seed"].nunique(), plan.most) if plan.most else CONFIDENCE
        overlap = comparable.throughput_only.get((factors, arm), "")
        found = estimates(pairs, overlap, resamples, confidence, plan.until)
        if not repetition_of(plan, arm):
            found = [_within_noise(row, bands[factors]) for row in found]
        rows += [head | row for row in found]
        verdicts += _verdicts(f"{arm} against {plan.baseline}{at(factors)}", found, pairs, repetition_of(plan, arm))
    return pd.DataFrame(rows, columns=COLUMNS), verdicts


def _not_in_common(wide: pd.DataFrame, factors: str, baseline: str, arm: str) -> str:
    present = set(wide.loc[wide["factors"] == factors, "arm"])
    absent = [name for name in (baseline, arm) if name not in present]
    return (f"{' and '.join(absent)} has no run" if absent else "no counted step in common") + at(factors)


def _within_noise(row: Row, bands: Mapping[str, float]) -> Row:
    """The row, not resolved where the A/A arms are as far from 1; smaller ratios are not detectable either."""
    band = bands.get(row["estimate"])
    if band is None or not row["value"] > 0:
        return row
    if row["minimum_detectable_ratio"] < math.exp(band):
        row = row | {"minimum_detectable_ratio": math.exp(band)}
    if abs(math.log(row["value"])) > band:
        return row
    why = f"within the noise: the same engine run twice differs by up to {math.exp(band):.2f}×"
    return row | {"verdict": "~", "runs_to_resolve": math.nan, "why": row["why"] if row["verdict"] == "~" else why}


def _verdicts(here: str, rows: Sequence[Row], pairs: pd.DataFrame, same_as: str) -> Iterator[Verdict]:
    by_name = {row["estimate"]: row for row in rows}
    if text := discarded(pairs):
        text = f"{here}: {text}, so only step time is compared"
        yield Verdict("warning", "completions-discarded", text)
    if same_as:
        off = [f"{n.replace('_', ' ')} {r['value']:.3f}×" for n, r in by_name.items() if r["verdict"] in "+-"]
        if off:
            text = f"{here}: one repeats the other, but they differ ({', '.join(off)}): find what else differs"
            yield Verdict("warning", "equal-arms-differ", text)
        return
    if text := disagreement(by_name):
        yield Verdict("warning", "raw-and-equal-work-disagree", f"{here}: {text}")
    if (text := str(by_name["roofline"]["why"])).startswith(UNSETTLED):
        yield Verdict("warning", "roofline-unsettled", f"{here}: the roofline estimate is {text}")
    low, high = rounding_reach(pairs)
    if max(low, high) >= ROUNDING_MATTERS_FROM:
        ratio = by_name["raw"]["value"]
        text = (
            f"{here}: the step times are printed with few digits, so rounding alone allows a ratio between "
            f"{ratio * math.exp(-low):.2f}× and {ratio * math.exp(high):.2f}× instead of {ratio:.2f}×"
        )
        yield Verdict("warning", "rounding-decides", text)


def legible(estimates: pd.DataFrame) -> pd.DataFrame:
    """The rows of `estimate_table` as they are shown: without the numbers of those that are too wide, which say why."""
    wide = [is_too_wide(*row) for row in estimates[["value", "low", "high"]].astype(float).itertuples(index=False)]
    if not any(wide):
        return estimates
    shown = estimates.astype({"verdict": object, "why": object})
    shown.loc[wide, ["value", "low", "high", "minimum_detectable_ratio"]] = math.nan
    shown.loc[wide, "verdict"] = "~"
    shown.loc[wide, "why"] = WIDE
    return shown
