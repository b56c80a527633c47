"""Computes the GPU-hours that each arm used, and what the GPUs of loops on unlike splits of them did.

Trained tokens per GPU-second, and GPU-hours to a reward that both reach, are of all GPUs of a run, whichever pool they
are in. As seconds are compared: one number a run, Welch's t on logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.compared import Compared, column_of
from analysis.counted import mean_of, missing_before, steps_per_row
from analysis.phases import BETWEEN_STEPS
from analysis.planned import EQUAL_WITHIN, PlanRead
from analysis.ratio import RunNumbers, interval
from analysis.roofline.setup import setup_of
from analysis.runs import Run
from analysis.verdict.arm_verdict import NO_SPAN, Span, digits_text, equal_within, is_resolved, ratio_text, span_text
from analysis.wide import ABSURD_S, BAD_TIME, BESIDE_S, JUMPED, OCCASIONAL_S, OVERRUN, PHASE, REWARD
from common.verdicts import count_of
from trainers.logs.record import STEPS_LOGGED

COLUMNS = [
    *("factors", "arm", "gpus", "gpu_hours", "step_gpu_s", "price", "currency", "cost"),
    *("to_steps", "gpu_hours_to_steps", "cost_to_steps", "why"),
]
# The reasons to leave out a row whose time is wrong: nobody paid for that time.
WRONG_TIME = (BAD_TIME, JUMPED, OVERRUN)
HOUR_S = 3600.0
_TIMES = (PHASE + "step", OCCASIONAL_S, BETWEEN_STEPS)
_USED = ("run_id", "arm", "factors", "step", "counted", "left_out", "overlap", STEPS_LOGGED, BESIDE_S, *_TIMES)


def cost_table(wide: pd.DataFrame, runs: Sequence[Run], plan: PlanRead) -> pd.DataFrame:
    """One row per factor combination and arm whose number of GPUs is known (columns: `COLUMNS`).

    `gpu_hours` cover all steps of its runs, warm-up included, and the logged time between them; a row that is the mean
    of several steps counts for all of them. `step_gpu_s` are the GPU-seconds of the mean step, over the counted step
    numbers that all arms of the combination have, or over the arm's own where there is none. `gpu_hours_to_steps` are
    those of `to_steps` such steps of one run, without start, validation and checkpoints. `price` is the price of one
    GPU-hour, NaN without one, and `cost` that of `gpu_hours`. `why` lists what `gpu_hours` lack, and says where
    `step_gpu_s` is not over all counted steps.
    """
    price, steps = (float(plan.report.get(key) or math.nan) for key in ("price_per_gpu_hour", "to_steps"))
    gpus_of: dict[tuple[str, str], set[int | None]] = {}
    for run in runs:
        gpus_of.setdefault((run.factors_key, run.arm), set()).add(None if run.without_gpu else setup_of(run).gpus)
    wide = wide[[name for name in _USED if name in wide]]
    counted = wide[wide["counted"].astype(bool)]
    arms = counted.groupby("factors")["arm"].transform("nunique")
    in_all = counted.groupby(["factors", "step"])["arm"].transform("nunique") == arms
    by_arm = dict(iter(wide.groupby(["factors", "arm"], sort=False)))
    rows = []
    for factors, arm in ((factors, arm) for factors in wide["factors"].unique() for arm in plan.arms):
        known, here = gpus_of.get((factors, arm), set()), by_arm.get((factors, arm))
        if len(known) != 1 or not (gpus := known.pop()) or here is None:
            continue
        mine = counted.loc[here.index[here["counted"].astype(bool)]]
        meant = mine[in_all[mine.index]] if in_all[mine.index].any() else mine
        if mine.empty:
            continue
        gpu_hours = gpus * float((paid_s(here) * steps_per_row(here)).sum()) / HOUR_S
        step_gpu_s = gpus * mean_of(meant[PHASE + "step"], steps_per_row(meant))
        missing = _missing(here, here[_has_wrong_time(here)])
        if not in_all[mine.index].all():
            those = (
                f"the {len(meant)} that all arms have" if len(meant) < len(mine) else "all, and no step is in all arms"
            )
            missing.append(f"of its {count_of(len(mine), 'counted step')} the mean step is over {those}")
        hours = step_gpu_s * steps / HOUR_S
        money = [price, str(plan.report.get("currency") or ""), gpu_hours * price]
        rows.append(
            [factors, arm, gpus, gpu_hours, step_gpu_s, *money, steps, hours, hours * price, "; ".join(missing)]
        )
    return pd.DataFrame(rows, columns=COLUMNS)


def _missing(rows: pd.DataFrame, untimed: pd.DataFrame) -> list[str]:
    """The steps that the GPU-hours of these rows lack."""
    bad, again = int(steps_per_row(untimed).sum()), int(steps_per_row(rows[rows["overlap"].astype(bool)]).sum())
    steps = rows.sort_values("step")
    before = steps.groupby("run_id")["step"].shift(fill_value=0)
    logged = steps_per_row(steps).clip(upper=steps["step"] - before)
    unlogged = int(steps.groupby("run_id")["step"].max().sum() - logged.sum())
    texts = {
        f"{count_of(bad, 'step')} with a wrong time": bad,
        f"{count_of(unlogged, 'step')} missing from the logs": unlogged,
        f"the first time of {count_of(again, 'step')} done again after a restart": again,
    }
    return [text for text, count in texts.items() if count]


def _has_wrong_time(rows: pd.DataFrame) -> pd.Series:
    found: pd.Series = rows["left_out"].isin(WRONG_TIME) | (rows[PHASE + "step"] > ABSURD_S)
    return found


def paid_s(rows: pd.DataFrame) -> pd.Series:
    """The seconds of each row's steps, with their checkpoints and evaluations and the logged time between them.

    0 where a row's time is wrong.
    """
    known = [rows[name].astype(float) for name in _TIMES if name in rows]
    if BESIDE_S in rows:
        beside = rows[BESIDE_S].astype(float)
        known.append(beside.where(rows[BETWEEN_STEPS].isna(), 0.0) if BETWEEN_STEPS in rows else beside)
    seconds = sum(one.where((one > 0) & (one <= ABSURD_S), 0.0) for one in known)
    return pd.Series(seconds, index=rows.index).where(~_has_wrong_time(rows), 0.0)


TRAINED = "trained_tokens"
PER_GPU_COLUMNS = [
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
    reward, hours, untimed = _to_reward(wide, runs, gpus, one.steps.rounding)
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
            found.append(((without[0], without[1]), _rate(rates[0], rates[1], one.steps.rounding)))
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
    """One row for each, by factor combination and arm (columns: `PER_GPU_COLUMNS`)."""
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
    return pd.DataFrame(rows, columns=PER_GPU_COLUMNS)


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
