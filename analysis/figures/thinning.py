"""Thins what the figures draw to so few points that a page of 200 runs stays light."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from analysis.estimates.bootstrap import students_t
from analysis.wide import PHASE

MAX_LINES = 8
MAX_POINTS = 300
LEAST_RUNS = 3
"""An interval over two runs is nine standard deviations to either side: it would hide the curve."""


def binned(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with its steps rounded to the middle of at most `MAX_POINTS` equal bins."""
    last = int(frame["step"].max()) if len(frame) else 0
    width = math.ceil(last / MAX_POINTS) if last else 1
    if width == 1:
        return frame
    return frame.assign(step=((frame["step"] - 1) // width) * width + (width + 1) / 2)


def series(wide: pd.DataFrame, column: str) -> pd.DataFrame:
    """A quantity over steps: columns arm, line, step, value, low, high, counted.

    One line per run, or (more than `MAX_LINES` runs) one per arm: the median over its runs with the 10% to
    90% range. Values that are no finite number are left out.
    """
    names = ["arm", "line", "step", "value", "low", "high", "counted"]
    if column not in wide:
        return pd.DataFrame(columns=names)
    frame = wide[["arm", "run_id", "step", "counted"]].assign(value=wide[column].astype(float))
    frame["counted"] = frame["counted"].astype(bool)
    frame = binned(frame[np.isfinite(frame["value"])])
    if frame.empty:
        return pd.DataFrame(columns=names)
    frame["line"] = frame["run_id"] if wide["run_id"].nunique() <= MAX_LINES else frame["arm"]
    point = ["arm", "line", "step"]
    # A point with counted steps is drawn from those alone.
    some = frame.groupby(point)["counted"].transform("any")
    frame = frame[frame["counted"] | ~some]
    summary = frame.groupby(point)["value"].quantile(np.array([0.1, 0.5, 0.9])).unstack()
    summary.columns = pd.Index(["low", "value", "high"])
    return summary.assign(counted=frame.groupby(point)["counted"].any()).reset_index()[names]


def over_runs(wide: pd.DataFrame, column: str) -> pd.DataFrame | None:
    """A quantity over steps as `series` has it: an arm's mean over its runs, with the 95% interval of that mean.

    None with a sweep, and where no arm has `LEAST_RUNS` runs. A step of fewer runs has no interval.
    """
    if column not in wide or wide["factors"].nunique() > 1:
        return None
    if wide.groupby("arm")["run_id"].nunique().max() < LEAST_RUNS:
        return None
    frame = wide[["arm", "run_id", "step", "counted"]].assign(value=wide[column].astype(float))
    frame["counted"] = frame["counted"].astype(bool)
    frame = binned(frame[np.isfinite(frame["value"])])
    some = frame.groupby(["arm", "step"])["counted"].transform("any")
    each = frame[frame["counted"] | ~some].groupby(["arm", "step", "run_id"]).agg({"value": "mean", "counted": "any"})
    found = each.groupby(["arm", "step"]).agg(
        value=("value", "mean"), sd=("value", "std"), runs=("value", "size"), counted=("counted", "any")
    )
    reach = {n: students_t(n - 1) / math.sqrt(n) if n >= LEAST_RUNS else math.nan for n in found["runs"].unique()}
    half = found["sd"] * found["runs"].map(reach)
    found = found.assign(low=found["value"] - half, high=found["value"] + half).reset_index()
    return found.assign(line=found["arm"])[["arm", "line", "step", "value", "low", "high", "counted"]]


def with_tokens_per_second(wide: pd.DataFrame) -> pd.DataFrame:
    """The frame with `tokens_per_s`: response tokens over the step's wall clock."""
    if "response_tokens" not in wide or not len(wide):
        return wide
    step_s = wide[PHASE + "step"]
    return wide.assign(tokens_per_s=(wide["response_tokens"] / step_s).where(step_s > 0))


def length_histogram(lengths: pd.DataFrame, bins: int = 40) -> pd.DataFrame:
    """Share of an arm's responses by length, in bins that all arms share: arm, start, end, share."""
    names = ["arm", "start", "end", "share"]
    values = lengths["value"].astype(float)
    lengths = lengths[np.isfinite(values)]
    if lengths.empty:
        return pd.DataFrame(columns=names)
    low, high = float(lengths["value"].min()), float(lengths["value"].max())
    # Lengths are whole tokens: bins of whole width, or their heights would beat against the grid.
    width = max(1, math.ceil((high - low + 1) / bins))
    edges = np.arange(math.floor(low), high + 1 + width, width)
    rows = []
    for arm, group in lengths.groupby("arm", sort=False):
        counts, _ = np.histogram(group["value"].astype(float), bins=edges)
        for start, end, count in zip(edges[:-1], edges[1:], counts, strict=True):
            rows.append({"arm": arm, "start": start, "end": end, "share": count / len(group)})
        # Closes the outline of the last bin.
        rows.append({"arm": arm, "start": edges[-1], "end": edges[-1], "share": 0.0})
    return pd.DataFrame(rows, columns=names)


def wants_log(values: pd.Series) -> bool:
    """Whether positive values span more than a factor of ten between their 5% and 95% quantiles."""
    positive = values[values > 0]
    if positive.empty:
        return False
    return bool(positive.quantile(0.95) > 10 * positive.quantile(0.05))


def cumulative_shares(values: pd.DataFrame, at_most: int = 200) -> pd.DataFrame:
    """Share of an arm's values up to each: arm, value, share, order; of very many, at that many even shares."""
    names = ["arm", "value", "share", "order"]
    parts = []
    for arm, group in values.groupby("arm", sort=False):
        ordered = np.sort(group["value"].to_numpy(dtype=float))
        n = len(ordered)
        ranks = np.unique(np.linspace(1, n, min(n, at_most)).round().astype(int))
        # From no share below the first value.
        at = np.concatenate([ordered[:1], ordered[ranks - 1]])
        share = np.concatenate([[0.0], ranks / n])
        parts.append(pd.DataFrame({"arm": arm, "value": at, "share": share, "order": range(len(at))}))
    return pd.concat(parts, ignore_index=True)[names] if parts else pd.DataFrame(columns=names)
