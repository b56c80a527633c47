"""Computes the GPU-hours that each arm used, and what a given number of steps would cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analysis.roofline.setup import setup_of
from analysis.runs import PlanRead, Run
from analysis.wide import ABSURD_S, BAD_TIME, JUMPED, OVERRUN, PHASE, steps_per_row
from common.verdicts import count_of

COLUMNS = [
    *("factors", "arm", "gpus", "gpu_hours", "step_gpu_s", "price", "currency", "cost"),
    *("to_steps", "gpu_hours_to_steps", "cost_to_steps", "why"),
]
# A row that is left out for one of these has a time that cannot be right: it is no time that was paid for.
NO_TIME = (BAD_TIME, JUMPED, OVERRUN)
HOUR_S = 3600.0


def cost_table(wide: pd.DataFrame, runs: Sequence[Run], plan: PlanRead) -> pd.DataFrame:
    """One row per factor combination and arm whose number of GPUs is known (columns: `COLUMNS`).

    `gpu_hours` are those of all steps of its runs, warm-up too, and of the time between them where that is told; a row
    that is the mean of several steps counts for all of them. `step_gpu_s` are the GPU-seconds of the mean step over the
    counted (seed, step) that all arms of the combination have, or over its own where there is none;
    `gpu_hours_to_steps` those of `to_steps` such steps of one run: start, validation and checkpoints come on top.
    `price` is that of one GPU-hour, NaN where none is given, `cost` that of `gpu_hours`. `why` says what `gpu_hours`
    lack: steps whose time cannot be right, those that no log holds, and those that were done twice, of which only one
    time is known; they are too few then. It says besides where `step_gpu_s` is not over all counted steps.
    """
    price, steps = _number(plan.report.get("price_per_gpu_hour")), _number(plan.report.get("to_steps"))
    currency = str(plan.report.get("currency") or "")
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.factors_key, run.arm), []).append(run)
    rows = []
    for factors in wide["factors"].unique():
        shared = _shared(wide[(wide["factors"] == factors) & wide["counted"].astype(bool)])
        for arm in plan.arms:
            mine = groups.get((factors, arm), [])
            counts = {None if run.without_gpu else setup_of(run).gpus for run in mine}
            here = wide[(wide["factors"] == factors) & (wide["arm"] == arm)]
            counted = here[here["counted"].astype(bool)]
            if len(counts) != 1 or not (gpus := counts.pop()) or counted.empty:
                continue
            timed = here[~(here["left_out"].isin(NO_TIME) | (here[PHASE + "step"] > ABSURD_S))]
            busy_s = _positive_s(timed, PHASE + "step") + _positive_s(timed, "between_steps_s")
            meant = counted[counted.index.isin(shared)] if len(shared) else counted
            times = steps_per_row(meant)
            step_gpu_s = gpus * float((meant[PHASE + "step"] * times).sum() / times.sum())
            hours = step_gpu_s * steps / HOUR_S
            row = {"factors": factors, "arm": arm, "gpus": gpus, "gpu_hours": gpus * busy_s / HOUR_S}
            row |= {"step_gpu_s": step_gpu_s, "price": price, "currency": currency, "to_steps": steps}
            row |= {"cost": row["gpu_hours"] * price}
            row |= {"gpu_hours_to_steps": hours, "cost_to_steps": hours * price}
            told = [*_lacking(here, here.drop(timed.index)), *_over(meant, counted, len(shared) > 0)]
            rows.append(row | {"why": "; ".join(told)})
    return pd.DataFrame(rows, columns=COLUMNS)


def _shared(counted: pd.DataFrame) -> pd.Index:
    """The rows whose (seed, step) all of these arms count; none where they have no step in common."""
    arms = counted.groupby(["seed", "step"])["arm"].transform("nunique")
    return counted.index[arms == counted["arm"].nunique()]


def _over(meant: pd.DataFrame, counted: pd.DataFrame, shared: bool) -> list[str]:
    """Over which steps the mean step is, where these are not simply an arm's own."""
    if not shared:
        return [f"the mean step is over its own {count_of(len(counted), 'counted step')}: none is in all arms"]
    if len(meant) == len(counted):
        return []
    return [f"the mean step is over the {len(meant)} of its {len(counted)} counted steps that all arms have"]


def _lacking(rows: pd.DataFrame, untimed: pd.DataFrame) -> list[str]:
    """What the GPU-hours of these steps lack."""
    bad, again = int(steps_per_row(untimed).sum()), int(steps_per_row(rows[rows["overlap"].astype(bool)]).sum())
    told = [f"without {count_of(bad, 'step')} whose time cannot be right"] if bad else []
    if missing := _missing(rows):
        told.append(f"without {count_of(missing, 'step')} that no log holds")
    told += [f"without the first time of {count_of(again, 'step')} done again after a restart"] if again else []
    return told


def _missing(rows: pd.DataFrame) -> int:
    """How many steps up to each run's last are in none of these rows."""
    steps = rows.sort_values("step")
    before = steps.groupby("run_id")["step"].shift(fill_value=0)
    held = steps_per_row(steps).clip(upper=steps["step"] - before)
    return int(steps.groupby("run_id")["step"].max().sum() - held.sum())


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _positive_s(rows: pd.DataFrame, column: str) -> float:
    if column not in rows:
        return 0.0
    seconds = rows[column].astype(float)
    return float((seconds * steps_per_row(rows))[(seconds > 0) & (seconds <= ABSURD_S)].sum())
