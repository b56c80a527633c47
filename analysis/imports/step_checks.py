"""Checks an imported run's steps (holes, clock jumps, pauses), and adds the time between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice, pairwise

from analysis.phases import BETWEEN_STEPS
from analysis.steps import ChosenStep
from common.errors import UserError
from common.verdicts import Verdict, count_of
from trainers.logs.record import STEPS_LOGGED, Imported, StepRecord

# Step numbers have 32 bits in the tables.
HIGHEST_STEP = 2**31 - 1
# A step cannot take longer than the time since the step before was logged, but clocks and rounding differ by this.
CLOCK_TOLERANCE_S = 2.0
CLOCK_TOLERANCE_SHARE = 0.02
# In a gap of so many times the steps before it, and so many seconds more, the run may have had no GPUs.
PAUSE_TIMES, PAUSE_S = 10.0, 600.0
# From this share of the run on, the time between steps may change the ratio that people wait for.
BETWEEN_SHARE = 0.1
# The error of a difference of two times in whole seconds.
WHOLE_SECONDS_OFF_S = 1.0


def require_steps(part: Imported, run_id: str) -> None:
    """`UserError` for a step whose number is too high for the tables.

    A user's scalar may have the name `steps_logged`: where it is no number of steps it is left out.
    """
    steps = part.read.records
    if (last := max(steps, default=0)) > HIGHEST_STEP:
        raise UserError(
            f"run {run_id}: {steps[last].file}:{steps[last].line} is of step {last}, and {HIGHEST_STEP} is the highest "
            "that can be read. The line is damaged, or counts something else: correct it, or leave it out"
        )
    for step, record in steps.items():
        if not (logged := _window(record)) >= 1.0 or not logged.is_integer():
            kept = {name: value for name, value in record.scalars.items() if name != STEPS_LOGGED}
            steps[step] = replace(record, scalars=kept)


def hole_verdicts(chosen: Sequence[ChosenStep], run_id: str) -> list[Verdict]:
    """Reports the steps that are missing between the first and the last."""
    steps = [c.record.step for c in chosen]
    gaps = [b - a for a, b in pairwise(steps)]
    # A record that is the mean of all steps since the one before leaves no hole.
    if all(gap <= _window(c.record) for gap, c in zip(gaps, chosen[1:], strict=True)):
        return []
    every = min(gaps)
    if every == max(gaps):
        text = f"{run_id}: only every {every}th step is there, from {steps[0]} to {steps[-1]}"
        return [Verdict("note", "steps-apart", text)]
    windows = [int(c.record.scalars.get(STEPS_LOGGED, every)) for c in chosen[1:]]
    # Ranges: a counter that jumps leaves a hole of any length.
    holes = [range(a + w, b, w) for (a, b), w in zip(pairwise(steps), windows, strict=True)]
    rows, most = sum(map(len, holes)), 10
    # A row that is missing is of as many steps as the next one.
    count = sum(len(hole) * int(_window(c.record)) for hole, c in zip(holes, chosen[1:], strict=True))
    shown = ", ".join(map(str, islice(chain.from_iterable(holes), most)))
    shown += f" and {rows - most} more" if rows > most else ""
    shown = shown if rows == count else f"in {count_of(rows, 'row')}: {shown}"
    missing = f"{count_of(count, 'step')} between {steps[0]} and {steps[-1]} {'is' if count == 1 else 'are'}"
    text = f"{run_id}: {missing} in none of its sources ({shown}); the others count"
    return [Verdict("warning", "missing-steps", text)]


def _window(record: StepRecord) -> float:
    """The number of steps of which a record is the mean."""
    return record.scalars.get(STEPS_LOGGED, 1.0)


def clock_verdicts(chosen: Sequence[ChosenStep], run_id: str) -> list[Verdict]:
    """Reports where a step took longer than the time of day allows: the clock jumped."""
    jumps = []
    for before, after in pairwise(c.record for c in chosen):
        if before.time is None or after.time is None or after.resumed:
            continue
        # Of a record that is the mean of several steps, all of them; across a hole, none is certain.
        seconds, steps = after.phases.get("step", 0.0), after.step - before.step
        took = steps * seconds if steps == int(_window(after)) and math.isfinite(seconds) else 0.0
        passed = after.time - before.time
        if took - passed > max(CLOCK_TOLERANCE_S, CLOCK_TOLERANCE_SHARE * took):
            jumps.append((before.step, after.step, took, passed))
    if not jumps:
        return []
    first, last, took, passed = jumps[0]
    what = f"step {last}" if last == first + 1 else f"the log from step {first} to {last}"
    text = (
        f"{run_id}: {what} took {took:.3f} s by its timers, but {passed:.3f} s passed between the two log "
        f"lines{_more_like_it(jumps)}. A clock jumped, or the steps are of two runs"
    )
    return [Verdict("warning", "clock-jump", text)]


def _more_like_it(found: Sequence[object]) -> str:
    return f"; {len(found) - 1} more like it" if len(found) > 1 else ""


def add_time_between(chosen: list[ChosenStep], run_id: str) -> list[Verdict]:
    """Adds `between_steps_s` to the steps of the list: the time since the step before, without the step itself.

    It is the difference of the times of day at which steps were logged. Without these it comes from the whole seconds
    since the start, and each step has the run's mean. Steps after a hole, a restart or a pause have none.
    """
    exact = all(c.record.time is not None for c in chosen)
    gaps: list[tuple[int, float, float, float]] = []
    pauses = []
    for place, (a, b) in enumerate(pairwise(c.record for c in chosen), start=1):
        start, end = (a.time, b.time) if exact else (a.elapsed_s, b.elapsed_s)
        window = _window(b)
        took_s = window * b.phases.get("step", math.nan)
        if start is None or end is None or b.resumed or b.step - a.step != window or not math.isfinite(took_s):
            continue
        if end - start > PAUSE_TIMES * took_s + PAUSE_S:
            pauses.append(f"{end - start:.0f} s passed from step {a.step} to {b.step}, which took {took_s:.0f} s")
        else:
            gaps.append((place, window, took_s, end - start))
    steps, took_s, passed_s = (math.fsum(gap[at] for gap in gaps) for at in (1, 2, 3))
    for place, window, own_s, since_s in gaps:
        between_s = (since_s - own_s) / window if exact else (passed_s - took_s) / steps
        record = chosen[place].record
        scalars = {**record.scalars, BETWEEN_STEPS: max(0.0, between_s)}
        chosen[place] = replace(chosen[place], record=replace(record, scalars=scalars))
    verdicts = []
    if pauses:
        text = f"{run_id}: {pauses[0]}{_more_like_it(pauses)}. The run paused; GPU-hours do not count the pause"
        verdicts.append(Verdict("note", "stood-still", text))
    off_s = 0.0 if exact else WHOLE_SECONDS_OFF_S
    if (between_s := passed_s - took_s) - off_s > BETWEEN_SHARE * passed_s:
        text = (
            f"{run_id}: {between_s / passed_s:.0%} of the time from its first to its last step ({between_s:.0f} of "
            f"{passed_s:.0f} s) is between steps: checkpoints, evaluations, and what the trainer's step timer excludes "
            '("Between steps" in the table of phases). GPU-hours include it; the speed-up is of steps alone'
        )
        verdicts.append(Verdict("warning", "time-in-no-step", text))
    return verdicts
