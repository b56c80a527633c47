"""Computes the GPU-hours that each arm used, and what a given number of steps would cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analysis.phases import BETWEEN_STEPS
from analysis.planned import PlanRead
from analysis.roofline.setup import setup_of
from analysis.runs import Run
from analysis.wide import ABSURD_S, BAD_TIME, BESIDE_S, JUMPED, OCCASIONAL_S, OVERRUN, PHASE
from analysis.windows import mean_of, steps_per_row
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
