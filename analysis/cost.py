"""Computes the GPU-hours that each arm used, and what a given number of steps would cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analysis.phases import BETWEEN_STEPS
from analysis.planned import PlanRead
from analysis.roofline.setup import setup_of
from analysis.runs import Run
from analysis.wide import ABSURD_S, BAD_TIME, JUMPED, OCCASIONAL_S, OVERRUN, PHASE
from analysis.windows import steps_per_row
from common.verdicts import count_of
from trainers.logs.record import STEPS_LOGGED

COLUMNS = [
    *("factors", "arm", "gpus", "gpu_hours", "step_gpu_s", "price", "currency", "cost"),
    *("to_steps", "gpu_hours_to_steps", "cost_to_steps", "why"),
]
# The reasons to leave out a row whose time is wrong: nobody paid for that time.
WRONG_TIME = (BAD_TIME, JUMPED, OVERRUN)
HOUR_S = 3600.0
_USED = (
    *("run_id", "arm", "factors", "seed", "step", "counted", "left_out", "overlap"),
    *(STEPS_LOGGED, PHASE + "step", OCCASIONAL_S, BETWEEN_STEPS),
)


def cost_table(wide: pd.DataFrame, runs: Sequence[Run], plan: PlanRead) -> pd.DataFrame:
    """One row per factor combination and arm whose number of GPUs is known (columns: `COLUMNS`).

    `gpu_hours` cover all steps of its runs, warm-up included, and the logged time between them; a row that is the mean
    of several steps counts for all of them. `step_gpu_s` are the GPU-seconds of the mean step, over the counted
    (seed, step) of all arms of the combination, or over the arm's own where there is none. `gpu_hours_to_steps` are
    those of `to_steps` such steps of one run, without start, validation and checkpoints. `price` is the price of one
    GPU-hour, NaN without one, and `cost` that of `gpu_hours`. `why` lists what `gpu_hours` lack: steps with a wrong
    time, steps that no log has, and the first time of steps that were done twice. It also says where `step_gpu_s` is
    not over all counted steps.
    """
    price, steps = (float(plan.report.get(key) or math.nan) for key in ("price_per_gpu_hour", "to_steps"))
    currency = str(plan.report.get("currency") or "")
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.factors_key, run.arm), []).append(run)
    rows = []
    wide = wide[[name for name in _USED if name in wide]]
    for factors in wide["factors"].unique():
        every = wide[(wide["factors"] == factors) & wide["counted"].astype(bool)]
        # The rows whose (seed, step) all of these arms count; none where they have no step in common.
        shared = every.index[every.groupby(["seed", "step"])["arm"].transform("nunique") == every["arm"].nunique()]
        for arm in plan.arms:
            mine = groups.get((factors, arm), [])
            counts = {None if run.without_gpu else setup_of(run).gpus for run in mine}
            here = wide[(wide["factors"] == factors) & (wide["arm"] == arm)]
            counted = here[here["counted"].astype(bool)]
            if len(counts) != 1 or not (gpus := counts.pop()) or counted.empty:
                continue
            timed = here[~(here["left_out"].isin(WRONG_TIME) | (here[PHASE + "step"] > ABSURD_S))]
            busy_s = sum(_positive_s(timed, name) for name in (PHASE + "step", OCCASIONAL_S, BETWEEN_STEPS))
            meant = counted[counted.index.isin(shared)] if len(shared) else counted
            times = steps_per_row(meant)
            step_gpu_s = gpus * float((meant[PHASE + "step"] * times).sum() / times.sum())
            gpu_hours, hours = gpus * busy_s / HOUR_S, step_gpu_s * steps / HOUR_S
            missing = _missing(here, here.drop(timed.index))
            if shared.empty:
                own = count_of(len(counted), "counted step")
                missing.append(f"the mean step is over its own {own}: no step is in all arms")
            elif len(meant) < len(counted):
                some = f"{len(meant)} of its {len(counted)}"
                missing.append(f"the mean step is over the {some} counted steps that all arms have")
            row = [factors, arm, gpus, gpu_hours, step_gpu_s, price, currency, gpu_hours * price]
            rows.append([*row, steps, hours, hours * price, "; ".join(missing)])
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


def _positive_s(rows: pd.DataFrame, column: str) -> float:
    if column not in rows:
        return 0.0
    seconds = rows[column].astype(float)
    return float((seconds * steps_per_row(rows))[(seconds > 0) & (seconds <= ABSURD_S)].sum())
