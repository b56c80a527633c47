"""Turns the rows of verl's fully asynchronous loop, each of several training steps, into means of these steps.

The loop logs a row for each weight sync, after `trigger_parameter_sync_step` training steps. The row's number is that
of the sync, `training/global_step` the last training step in it (verl 0.9.1 experimental/fully_async_policy/
{fully_async_trainer,detach_utils}.py: `MetricsAggregator` sums seconds and totals). The first row lacks one step: that
step's numbers are added after the row is logged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from common.verdicts import Verdict, count_of
from trainers.logs.hf_rows import windows_of
from trainers.logs.record import STEPS_LOGGED, TIMERS, StepRecord

GLOBAL_STEP = "training/global_step"
SYNCS = "fully_async/count/current_param_version"
_LOOP = "fully_async/"
# detach_utils.py, `_init_aggregation_rules` and `_get_aggregation_type`, in their order.
_NOT_SUMMED = (TIMERS + "agent_loop/tool_calls/", "fully_async/count/")
_KEPT_BY_NAME = ("mean", "avg", "average", "max", "min")
_SUMMED_BY_NAME = ("sum", "total")


def training_steps(records: Sequence[StepRecord], shown_as: str) -> tuple[list[StepRecord], list[Verdict]]:
    """The rows by training step, with sums divided by the steps that each stands for; rows of other loops as they are.

    The numbers of steps follow from the growth of `training/global_step`. A single row stands for all steps so far if
    it is of the first sync, otherwise for the usual number of a sync. Where no row has the number of its sync, it is
    the row's own.
    """
    counts_syncs = any(SYNCS in record.scalars for record in records)
    mark = SYNCS if counts_syncs else _LOOP
    of_loop = [row for row, record in enumerate(records) if any(name.startswith(mark) for name in record.scalars)]
    known = [(row, *counters) for row in of_loop if (counters := _counters(records[row]))]
    # Without its name wandb's rows have their training step for a sync.
    if counts_syncs and all(step == syncs for _, syncs, step in known):
        return list(records), []
    sizes = windows_of([step for _, _, step in known])
    if len(known) == 1:
        _, syncs, step = known[0]
        sizes = [step if syncs == 1 else (step + 1) // syncs]
    if not counts_syncs and max(sizes, default=1) == 1:
        return list(records), []
    found, wide = list(records), []
    for (row, _, step), size in zip(known, sizes, strict=True):
        record = replace(records[row], step=step)
        if size > 1:
            wide.append(size)
            scalars = {**_divided(record.scalars, size), STEPS_LOGGED: float(size)}
            record = replace(record, scalars=scalars, rounding=_divided(record.rounding, size))
        found[row] = record
    if not wide:
        return found, []
    each = str(max(wide)) if min(wide) == max(wide) else f"{min(wide)} to {max(wide)}"
    text = (
        f"{shown_as}: {count_of(len(wide), 'row')} of {len(records)} stand for {each} training steps each, those of a "
        f"weight sync ({GLOBAL_STEP}). Seconds and totals are divided by that number"
    )
    return found, [Verdict("note", "rows-of-several-steps", text)]


def _counters(record: StepRecord) -> tuple[int, int] | None:
    """The number of weight syncs, else the row's own, and of training steps; None where one is no whole number."""
    syncs, step = record.scalars.get(SYNCS, float(record.step)), record.scalars.get(GLOBAL_STEP, 0.0)
    whole = syncs >= 1 and step >= 1 and float(step).is_integer() and float(syncs).is_integer()
    return (int(syncs), int(step)) if whole else None


def _divided(numbers: Mapping[str, float], size: int) -> dict[str, float]:
    return {name: value / size if _is_sum(name) else value for name, value in numbers.items()}


def _is_sum(name: str) -> bool:
    if name.startswith(_NOT_SUMMED):
        return False
    if name.startswith(TIMERS) or name == "perf/time_per_step":
        return True
    lower = name.lower()
    return not any(part in lower for part in _KEPT_BY_NAME) and any(part in lower for part in _SUMMED_BY_NAME)
