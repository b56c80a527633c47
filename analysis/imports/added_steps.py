"""Adds what can be derived to an imported run's steps, and names what is odd about them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from analysis.phases import BETWEEN_STEPS
from analysis.steps import ChosenStep
from analysis.tokens import completions_told, tokens_from_mean
from common.verdicts import Verdict, count_of
from trainers.logs.record import STEPS_LOGGED, Imported
from trainers.quantities import logged_as

# A step cannot have taken longer than passed since the step before was logged; clocks and rounding are off by that.
CLOCK_TOLERANCE_S = 2.0
CLOCK_TOLERANCE_SHARE = 0.02
# Nobody knows whether a run had its GPUs in a gap of so many times the steps before it, and so many seconds more.
STILL_TIMES, STILL_S = 10.0, 600.0
# From here on a ratio of steps may be far from one of what people wait for.
NO_STEPS_SHARE = 0.1
# How far a difference of two times in whole seconds may be off.
WHOLE_SECONDS_OFF_S = 1.0
# The formats whose readers find that a record is the mean of several steps.
WINDOWED = ("trl-console", "swift-console", "swift-jsonl", "trainer-state", "wandb", "wandb-offline")
# TRL's count of all tokens so far, prompts' and completions'.
NUM_TOKENS = "train/num_tokens"


def add_known_tokens(
    chosen: list[ChosenStep], batch: object, run_id: str, config: Mapping[str, Any] | None = None
) -> list[Verdict]:
    """Adds `response_tokens` and `prompt_tokens` from the means to the steps of the list, as exact as those are.

    Each mean is over as many completions as verl's total of tokens gives; where that gives no number, over `batch`,
    the one declared: not where the run's configuration or its own count of tokens denies that each step generates
    that many.
    """
    declared = batch if isinstance(batch, int) and batch > 0 else None
    denied = _denied(chosen, declared, config or {}) if declared else ""
    contradicted, without, inexact = [], 0, []
    for place, c in enumerate(chosen):
        scalars, rounding = dict(c.record.scalars.items()), dict(c.record.rounding.items())
        told = completions_told(scalars, rounding)
        completions = declared if told is None else told
        if told is not None and declared not in (None, told):
            contradicted.append((c.record.step, told))
        means = (
            ("response_tokens", logged_as("mean_response_length", scalars)),
            ("prompt_tokens", "prompt_length/mean"),
        )
        for name, mean in means:
            if completions is None or mean not in scalars or name in scalars or not scalars[mean] >= 0.0:
                continue
            if told is None and denied:
                without += name == "response_tokens"
                continue
            tokens, off = tokens_from_mean(scalars[mean], rounding.get(mean, 0.0), completions)
            if math.isnan(tokens):
                continue
            scalars[name] = tokens
            if off:
                rounding[name] = off
                if name == "response_tokens":
                    inexact.append((off, -c.record.step, tokens))
        chosen[place] = replace(c, record=replace(c.record, scalars=scalars, rounding=rounding))
    return list(_token_verdicts(run_id, declared, denied, without, contradicted, inexact))


def _token_verdicts(
    run_id: str,
    declared: int | None,
    denied: str,
    without: int,
    contradicted: Sequence[tuple[int, int]],
    inexact: Sequence[tuple[float, int, float]],
) -> Iterator[Verdict]:
    """What to know of sums of tokens: steps without, (step, completions) that were logged, (error, -step, tokens)."""
    if without:
        text = (
            f"{run_id}: no response tokens in {count_of(without, 'step')}, as a step's are not its mean length times "
            f"the batch_size of {declared}: {denied}"
        )
        yield Verdict("warning", "tokens-unknown", text)
    if contradicted:
        step, told = contradicted[0]
        text = (
            f"{run_id}: its batch_size is said to be {declared}, but its logged tokens are those of {told} completions "
            f"(step {step}{_and_more(len(contradicted) - 1)}); the tokens are summed over as many as were logged"
        )
        yield Verdict("warning", "batch-size-contradicted", text)
    if inexact:
        off, step, tokens = max(inexact)
        text = (
            f"{run_id}: the tokens of {count_of(len(inexact), 'step')} are sums from rounded means, off by {off:.3g} "
            f"at most (step {-step}: {tokens:.0f})"
        )
        yield Verdict("note", "tokens-from-means", text)


def _denied(chosen: Sequence[ChosenStep], batch: int, config: Mapping[str, Any]) -> str:
    """Why TRL's mean length is not that of `batch` completions in each step; empty where nothing speaks against it.

    TRL generates once for `num_iterations` times `steps_per_generation` micro-batches, and logs lengths only then.
    """
    names = ("num_iterations", "steps_per_generation", "gradient_accumulation_steps")
    iterations, apart, together = (n if isinstance(n := config.get(name), int) else 0 for name in names)
    if iterations > 1:
        return f"its num_iterations is {iterations}, so that not every step generates"
    if apart > together > 0:
        return (
            f"its steps_per_generation is {apart}, above its gradient_accumulation_steps of {together}, so that not "
            "every step generates"
        )
    for before, after in pairwise(chosen):
        first, last = before.record, after.record
        steps, mean = last.scalars.get(STEPS_LOGGED, 1.0), logged_as("mean_response_length", last.scalars)
        counted = last.scalars.get(NUM_TOKENS, math.nan) - first.scalars.get(NUM_TOKENS, math.nan)
        if mean is None or after.resumed or last.step - first.step != steps:
            continue
        off = first.rounding.get(NUM_TOKENS, 0.0) + last.rounding.get(NUM_TOKENS, 0.0)
        total, total_off = tokens_from_mean(last.scalars[mean], last.rounding.get(mean, 0.0), batch)
        # Prompts are counted with the completions: fewer tokens than the completions' alone cannot be.
        if counted + off < steps * (total - total_off):
            return (
                f"it counted {counted:.0f} tokens, with prompts, from step {first.step} to {last.step}, where that "
                f"would be {steps * total:.0f}. Its batch_size may be too large, or not every step generates "
                "(num_iterations)"
            )
    return ""


def _and_more(steps: int) -> str:
    return f" and {count_of(steps, 'more step')}" if steps else ""


def drop_windows_not_ours(part: Imported, run_id: str) -> list[Verdict]:
    """Leaves out `steps_logged` where no reader of ours wrote it: a user's scalar may have that name."""
    steps = part.read.records
    trusted = part.format in WINDOWED
    bad = [
        step
        for step, record in steps.items()
        if (logged := record.scalars.get(STEPS_LOGGED)) is not None
        and not (trusted and logged >= 1.0 and logged.is_integer())
    ]
    for step in bad:
        record = steps[step]
        scalars, rounding, origins = dict(record.scalars), dict(record.rounding), dict(record.origins)
        for held in (scalars, rounding, origins):
            held.pop(STEPS_LOGGED, None)
        steps[step] = replace(record, scalars=scalars, rounding=rounding, origins=origins)
    if not bad:
        return []
    text = (
        f"{run_id}: the scalar {STEPS_LOGGED} of {count_of(len(bad), 'step')} (step {bad[0]}{_and_more(len(bad) - 1)}) "
        "is left out: the tables have that name for how many steps a record is the mean of. Give it another name"
    )
    return [Verdict("warning", "name-taken", text)]


def hole_verdicts(chosen: Sequence[ChosenStep], run_id: str) -> list[Verdict]:
    """Says which steps between the first and the last are not there."""
    steps = [c.record.step for c in chosen]
    gaps = [b - a for a, b in pairwise(steps)]
    # A record that is the mean of all steps since the one before leaves no hole.
    if all(gap <= c.record.scalars.get(STEPS_LOGGED, 1) for gap, c in zip(gaps, chosen[1:], strict=True)):
        return []
    if min(gaps) == max(gaps):
        text = f"{run_id}: only every {gaps[0]}th step is there, from {steps[0]} to {steps[-1]}"
        return [Verdict("note", "steps-apart", text)]
    every = min(gaps)
    windows = [int(c.record.scalars.get(STEPS_LOGGED, every)) for c in chosen[1:]]
    holes = [hole for (a, b), w in zip(pairwise(steps), windows, strict=True) if (hole := range(a + w, b, w))]
    count = sum(map(len, holes))
    if count <= 10:
        shown = ", ".join(str(step) for hole in holes for step in hole)
    else:
        each = [f"{hole[0]} to {hole[-1]}" if len(hole) > 1 else str(hole[0]) for hole in holes[:10]]
        shown = ", ".join(each) + (", …" if len(holes) > 10 else "")
    lack = f"{count_of(count, 'step')} between {steps[0]} and {steps[-1]} {'is' if count == 1 else 'are'}"
    text = f"{run_id}: {lack} in none of its sources ({shown}); the others count"
    return [Verdict("warning", "missing-steps", text)]


def clock_verdicts(chosen: Sequence[ChosenStep], run_id: str) -> list[Verdict]:
    """Says where the time of day at which steps were logged cannot be right: it jumped."""
    jumps = []
    for before, after in pairwise(chosen):
        begun, ended = before.record.time, after.record.time
        if begun is None or ended is None or after.resumed:
            continue
        # Of a record that is the mean of several steps, all of them; across a hole, none that is certain.
        steps, window = after.record.step - before.record.step, int(after.record.scalars.get(STEPS_LOGGED, 1.0))
        seconds = after.record.phases.get("step", 0.0)
        took, passed = window * (seconds if math.isfinite(seconds) else 0.0) if steps == window else 0.0, ended - begun
        if took - passed > max(CLOCK_TOLERANCE_S, CLOCK_TOLERANCE_SHARE * took):
            jumps.append((before.record.step, after.record.step, took, passed))
    if not jumps:
        return []
    first, last, took, passed = jumps[0]
    others = f"; {len(jumps) - 1} more like it" if len(jumps) > 1 else ""
    what = f"step {last}" if last == first + 1 else f"what was logged from step {first} to {last}"
    text = (
        f"{run_id}: {what} took {took:.3f} s by its timers, yet {passed:.3f} s passed between the two logs{others}: a "
        "clock jumped, or the steps are of two runs"
    )
    return [Verdict("warning", "clock-jump", text)]


def add_time_between(chosen: list[ChosenStep], run_id: str) -> list[Verdict]:
    """Adds `between_steps_s` to the steps of the list: what passed since the step before, without the step itself.

    By the time of day at which steps were logged. Where that is not told, by the whole seconds since the start, and
    each step has the mean of its run. Not behind steps that are missing, a restart, or a while in which the run stood.
    """
    exact = all(c.record.time is not None for c in chosen)
    told: list[tuple[int, float, float, float]] = []
    still = []
    for place, (a, b) in enumerate(pairwise(c.record for c in chosen), start=1):
        begun, ended = (a.time, b.time) if exact else (a.elapsed_s, b.elapsed_s)
        window = b.scalars.get(STEPS_LOGGED, 1.0)
        took_s = window * b.phases.get("step", math.nan)
        if begun is None or ended is None or b.resumed or b.step - a.step != window or not math.isfinite(took_s):
            continue
        if ended - begun > STILL_TIMES * took_s + STILL_S:
            still.append(f"{ended - begun:.0f} s passed from step {a.step} to {b.step}, and {took_s:.0f} s are theirs")
        else:
            told.append((place, window, took_s, ended - begun))
    steps, took_s, passed_s = (math.fsum(one[at] for one in told) for at in (1, 2, 3))
    for place, window, own_s, since_s in told:
        between_s = (since_s - own_s) / window if exact else (passed_s - took_s) / steps
        record = chosen[place].record
        scalars = {**record.scalars, BETWEEN_STEPS: max(0.0, between_s)}
        chosen[place] = replace(chosen[place], record=replace(record, scalars=scalars))
    verdicts = []
    if still:
        more = f"; {len(still) - 1} more like it" if len(still) > 1 else ""
        text = f"{run_id}: {still[0]}{more}: the run stood still meanwhile, and the rest is in no GPU-hours"
        verdicts.append(Verdict("note", "stood-still", text))
    off_s = 0.0 if exact else WHOLE_SECONDS_OFF_S
    if (between_s := passed_s - took_s) - off_s > NO_STEPS_SHARE * passed_s:
        text = (
            f"{run_id}: {between_s / passed_s:.0%} of the time from its first to its last step ({between_s:.0f} of "
            f"{passed_s:.0f} s) lies in no step: checkpoints, evaluations, and what the trainer's step leaves out "
            '("Between steps" in the table of phases). GPU-hours count it; the speed-up is one of steps alone'
        )
        verdicts.append(Verdict("warning", "time-in-no-step", text))
    return verdicts
