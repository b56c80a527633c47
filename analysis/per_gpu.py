"""Compares loops on unlike splits of GPUs: trained tokens per GPU-second, and GPU-hours to a reward that both reach.

Of all GPUs of a run, whichever pool they are in. As seconds are compared: one number a run, Welch's t on logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.compared import Compared, column_of
from analysis.cost import HOUR_S, paid_s
from analysis.planned import EQUAL_WITHIN
from analysis.ratio import RunNumbers, interval
from analysis.verdict.arm_verdict import NO_SPAN, Span, digits_text, equal_within, is_resolved, ratio_text, span_text
from analysis.wide import REWARD
from analysis.windows import missing_before, steps_per_row
from common.verdicts import count_of

TRAINED = "trained_tokens"
COLUMNS = [
    *("factors", "arm", "baseline_gpus", "arm_gpus", "baseline_tokens", "arm_tokens", "ratio", "low", "high"),
    *("reward", "baseline_hours", "arm_hours", "hours_ratio", "hours_low", "hours_high"),
]
# A reward is the mean of so many rows; a run of fewer than three windows shows no rise.
WINDOW, LEAST_ROWS = 5, 15
RISES_BY = 3.0
"""A reward rises where its lowest top lies so many standard errors of a window above its highest start."""
OF_THE_RISE = 0.9
"""The reward that is reached: this share of the way, as the last steps to a top are chance."""


@dataclass(frozen=True)
class Rate:
    """A quantity of both arms that is one number a run."""

    baseline: float
    arm: float
    ratio: float
    """How many times the baseline's the arm's is."""
    interval: Span
    """Its 95% interval; NaN where an arm has one run."""


@dataclass(frozen=True)
class PerGpu:
    """Two loops by what their GPUs did."""

    gpus: tuple[str, str]
    """Of a run of the baseline, and of the arm."""
    tokens: Rate | None
    """Trained tokens per GPU-second of the compared steps."""
    reward: float
    """What both reach; NaN where not all runs rise to one."""
    hours: Rate | None
    """GPU-hours to it, from a run's first step on, with checkpoints and the time between steps."""
    untimed: tuple[int, int] = (0, 0)
    """Steps before it whose time is not known, of a run of the baseline and of the arm: its hours are unknown."""
    without_tokens: tuple[int, int] = (0, 0)
    """Compared steps whose tokens are not logged, of the baseline and of the arm; they are in no rate of tokens."""


def per_gpu_of(wide: pd.DataFrame, one: Compared, gpus: Mapping[str, int | None]) -> PerGpu | None:
    """What both arms' GPUs did; None where a run's number of GPUs is unknown, or nothing is logged."""
    runs = [list(side["run"].unique()) for side in one.sides]
    counts = [sorted({gpus.get(run) or 0 for run in of}) for of in runs]
    if one.is_empty or not all(number for of in counts for number in of):
        return None
    tokens, without = _tokens(wide, one, gpus)
    reward, hours, untimed = _to_reward(wide, runs, gpus, one.rounding)
    shown = tuple(" or ".join(map(str, of)) for of in counts)
    found = PerGpu((shown[0], shown[1]), tokens, reward, hours, untimed, without)
    return found if tokens or hours or any(untimed) else None


def _rate(baseline: Sequence[float], arm: Sequence[float], rounding: float) -> Rate:
    sample = RunNumbers(np.sort(np.log(baseline)), np.sort(np.log(arm)), bias=rounding)
    low, high = interval(sample)
    values = [math.exp(float(of.mean())) for of in (sample.baseline, sample.arm)]
    return Rate(values[0], values[1], math.exp(-sample.log_ratio), (1 / high, 1 / low))


def _tokens(wide: pd.DataFrame, one: Compared, gpus: Mapping[str, int | None]) -> tuple[Rate | None, tuple[int, int]]:
    """Tokens per GPU-second, by the count that most steps have and each run has, and each arm's steps without it."""
    found: list[tuple[tuple[int, int], Rate]] = []
    for name in ("tokens", TRAINED):
        rates, without = [], []
        for side in one.sides:
            count = side[name] if name in side else column_of(wide, side, name)
            has = count > 0
            gpu_s = (side["seconds"] * side["run"].map(gpus).astype(float)).where(has, 0.0)
            every = pd.DataFrame({"tokens": count.where(has, 0.0), "gpu_s": gpu_s}).mul(side["n"], axis=0)
            sums = every.groupby(side["run"]).sum()
            rates.append((sums["tokens"] / sums["gpu_s"]).tolist())
            without.append(int(side["n"][~has].sum()))
        if all(rate > 0 for of in rates for rate in of):
            found.append(((without[0], without[1]), _rate(rates[0], rates[1], one.rounding)))
    without_tokens, rate = min(found, key=lambda one: sum(one[0]), default=((0, 0), None))
    return rate, without_tokens


def _to_reward(
    wide: pd.DataFrame, runs: Sequence[Sequence[str]], gpus: Mapping[str, int | None], rounding: float
) -> tuple[float, Rate | None, tuple[int, int]]:
    """A reward that all runs rise to, the GPU-hours to it, and each arm's steps without a time before it.

    NaN and None where they do not rise; None where a step has no time.
    """
    nowhere = math.nan, None, (0, 0)
    if REWARD not in wide:
        return nowhere
    curves, noise = {}, []
    for run in (run for of in runs for run in of):
        rows = wide[wide["run_id"] == run].sort_values("step")
        known = rows[REWARD].astype(float)
        if known.notna().sum() < LEAST_ROWS:
            return nowhere
        seconds = paid_s(rows)
        hours = (seconds * steps_per_row(rows)).cumsum() * float(gpus[run] or 0) / HOUR_S
        curves[run] = (
            pd.DataFrame({"hours": hours, "untimed": _untimed(rows, seconds)}),
            known.rolling(WINDOW, min_periods=WINDOW).mean(),
        )
        noise.append(float(known.diff().std()) / math.sqrt(2 * WINDOW))
    start = max(float(smooth.dropna().iloc[0]) for _, smooth in curves.values())
    top = min(float(smooth.max()) for _, smooth in curves.values())
    if not top - start > RISES_BY * max(noise):
        return nowhere
    reward = start + OF_THE_RISE * (top - start)
    there = [pd.DataFrame([curves[run][0][curves[run][1] >= reward].iloc[0] for run in of]) for of in runs]
    baseline, arm = (int(of["untimed"].max()) for of in there)
    spent = [of["hours"].tolist() for of in there]
    is_known = not baseline and not arm and min(map(min, spent)) > 0
    return reward, _rate(spent[0], spent[1], rounding) if is_known else None, (baseline, arm)


def _untimed(rows: pd.DataFrame, seconds: pd.Series) -> pd.Series:
    """How many steps up to each row of a run, in order, are in no row, or in one whose time is not known (0 s)."""
    found: pd.Series = missing_before(rows).add(steps_per_row(rows).where(seconds == 0.0, 0.0)).cumsum()
    return found


def per_gpu_table(found: Mapping[tuple[str, str], PerGpu]) -> pd.DataFrame:
    """One row for each, by factor combination and arm (columns: `COLUMNS`)."""
    nothing = Rate(math.nan, math.nan, math.nan, NO_SPAN)
    rows = []
    for place, one in found.items():
        tokens, hours = one.tokens or nothing, one.hours or nothing
        rows.append(
            [
                *(*place, *one.gpus, tokens.baseline, tokens.arm, tokens.ratio, *tokens.interval),
                *(one.reward, hours.baseline, hours.arm, hours.ratio, *hours.interval),
            ]
        )
    return pd.DataFrame(rows, columns=COLUMNS)


def per_gpu_lines(arms: tuple[str, str], one: PerGpu | None) -> tuple[str, ...]:
    """`b trains 1.31 times a's tokens per GPU-second: 1,310 against 1,000 (...).`, and of GPU-hours."""
    if one is None:
        return ()
    baseline, arm = arms
    found = []
    if one.tokens is not None:
        pools = f"{one.gpus[1]} GPUs against {one.gpus[0]}, of all pools"
        for name, count in zip(arms, one.without_tokens, strict=True):
            pools += f"; without {count_of(count, 'step')} of {name}, whose tokens are not logged" if count else ""
        texts = (
            "{first} trains {times} times {second}'s tokens per GPU-second",
            "Trained tokens per GPU-second",
        )
        found.append(_line(texts, (baseline, arm), one.tokens, pools))
    if one.hours is not None:
        texts = "{first} takes {times} times {second}'s GPU-hours", "The GPU-hours"
        found.append(_line(texts, (baseline, arm), one.hours, f"to a reward of {one.reward:.3g}, which all runs reach"))
    lacking = [(name, count) for name, count in zip(arms, one.untimed, strict=True) if count]
    if lacking:
        steps = " and ".join(
            f"{count_of(count, 'step')} before it {'is' if count == 1 else 'are'} in no log of {name}, or "
            f"{'has' if count == 1 else 'have'} no time there"
            for name, count in lacking
        )
        found.append(f"The GPU-hours to a reward of {one.reward:.3g} are not known: {steps}.")
    return tuple(found)


def _line(texts: tuple[str, str], arms: tuple[str, str], rate: Rate, known: str) -> str:
    """How many times the baseline's the arm's is; where no interval shows it, both alone."""
    (first, own), (second, other) = (arms[1], rate.arm), (arms[0], rate.baseline)
    values = f"{digits_text(own)} against {digits_text(other)}"
    ends = "" if math.isnan(rate.interval[0]) else f"; 95% CI {span_text(rate.interval)} times"
    if not is_resolved(rate.interval):
        how = "equal" if equal_within(rate.interval, EQUAL_WITHIN) else "not resolved"
        return f"{texts[1]} of {first} and {second} are {how}: {values} ({known}{ends})."
    return (
        f"{texts[0].format(first=first, second=second, times=ratio_text(rate.ratio)[:-1])}: {values} ({known}{ends})."
    )
