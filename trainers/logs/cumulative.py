"""How long did each step take, where only the average since the start was logged?"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from trainers.logs.hf_logs import TRAIN
from trainers.logs.printed import half_digit

# ms-swift's names for it: seconds per step, in older releases steps per second. It rounds both to six decimals.
SECONDS_PER_STEP = "train_speed(s/it)"
STEPS_PER_SECOND = "train_speed(iter/s)"
_DECIMALS = 6
ELAPSED = "elapsed_time"
_ELAPSED_PARTS = re.compile(r"(?:(\d+)d )?(?:(\d+)h )?(?:(\d+)m )?(\d+(?:\.\d+)?)s")
# `elapsed_time` is told in whole seconds.
_ELAPSED_ROUNDING_S = 0.5
# Steps whose time is known no better than this share of it cannot be compared.
LARGEST_SHARE = 0.25
# No step is shorter, and none takes as many seconds as fit in one.
SHORTEST_S = 1e-9


@dataclass(frozen=True, slots=True)
class Average:
    """A row's average since the start: its step, seconds per step with their rounding, elapsed seconds if told."""

    step: int
    line: int
    per_step_s: float
    rounding_s: float
    elapsed_s: float | None


def average_of(
    numbers: Mapping[str, float], rounding: Mapping[str, float], elapsed_s: float | None, step: int, line: int
) -> Average | None:
    """The average that the numbers of a row of ms-swift's hold; None where they hold none."""
    for name in (SECONDS_PER_STEP, STEPS_PER_SECOND):
        value = numbers.get(TRAIN + name, 0.0)
        off = max(half_digit(_DECIMALS), rounding.get(TRAIN + name, 0.0))
        if not SHORTEST_S <= value <= 1.0 / SHORTEST_S:
            continue
        if name == STEPS_PER_SECOND:
            value, off = 1.0 / value, off / value**2
        return Average(step, line, value, off, elapsed_s)
    return None


def elapsed_s(text: object) -> float | None:
    """Seconds from `1h 2m 3s`; None for anything else."""
    match = _ELAPSED_PARTS.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    whole = 86400 * days + 3600 * hours + 60 * minutes + seconds
    return whole if math.isfinite(whole) else None


def step_times_s(averages: Sequence[Average], path: Path) -> dict[int, tuple[float, float, int]]:
    """Mean seconds up to each row's step, their worst rounding error and of how many steps, by averages in step order.

    The average times the steps since the start is the time since the start, and the difference of two such times is
    that of the steps between. A run that went on from a checkpoint counts its steps from there: told by the elapsed
    time. `UserError` where the rounding leaves too little of a step's time to compare.
    """
    found: dict[int, tuple[float, float, int]] = {}
    begun = _steps_before(averages[0]) if averages else 0
    before_s, before_rounding_s, before_step = 0.0, 0.0, begun
    for one in averages:
        since = one.step - begun
        whole_s, rounding_s = one.per_step_s * since, one.rounding_s * since
        steps = one.step - before_step
        if steps < 1:
            continue
        found[one.step] = ((whole_s - before_s) / steps, (rounding_s + before_rounding_s) / steps, steps)
        before_s, before_rounding_s, before_step = whole_s, rounding_s, one.step
    poor = [step for step, (seconds, error, _) in found.items() if error > LARGEST_SHARE * abs(seconds)]
    if 2 * len(poor) > len(found):
        seconds, error, _ = found[poor[0]]
        raise UserError(
            f"{path} has no step times, only the average since the start ({SECONDS_PER_STEP}), and its printing cut "
            f"off too much of that: step {poor[0]} took {seconds:.3g} s, give or take {error:.3g} s. Import ms-swift's "
            "logging.jsonl, which holds more digits, or the wandb run, instead"
        )
    return found


def _steps_before(first: Average) -> int:
    """How many steps were done before the life that a row tells the average of."""
    if first.elapsed_s is None or first.per_step_s <= 0.0:
        return 0
    counted = first.elapsed_s / first.per_step_s
    off = _ELAPSED_ROUNDING_S / first.per_step_s + counted * first.rounding_s / first.per_step_s
    if abs(counted - first.step) <= off + 0.01 * first.step:
        return 0
    return max(0, first.step - max(1, round(counted)))
