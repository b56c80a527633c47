"""Computes and adds the number of tokens of a step's completions, where only their mean was logged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from analysis.steps import ChosenStep
from common.dotted import lookup
from common.messages import join_first
from common.verdicts import Verdict, count_of
from trainers.logs.hf_work import SAMPLES_PER_STEP
from trainers.logs.record import STEPS_LOGGED, StepRecord
from trainers.registry import discards, discards_if, logged_as

# A mean of single-precision numbers is off by half a unit in its 24th bit; the factor is for its sum.
MEAN_PRECISION = 2.0**-22
# No step has more completions or tokens: above this a double does not distinguish whole numbers.
MOST = 2.0**53
# TRL's count of all tokens so far, of prompts and completions.
NUM_TOKENS = "train/num_tokens"
# The rows that a line through tokens by mean length needs, and how far its slope may be off.
LEAST_ROWS, SLOPE_WITHIN = 6, 0.25
# A rounded mean shows no whole number of tokens from this error of their sum on.
SHOWS_WHOLE = 0.2
MOST_SAMPLES = 1_000_000


def completions_of(scalars: Mapping[str, float], rounding: Mapping[str, float]) -> int | None:
    """How many completions a verl step had, by its total and its means; None where several numbers fit, or none."""
    total = scalars.get("perf/total_num_tokens", math.nan)
    names = ("prompt_length/mean", "response_length/mean")
    each = math.fsum(scalars.get(name, math.nan) for name in names)
    off = math.fsum(max(rounding.get(name, 0.0), each * MEAN_PRECISION) for name in names)
    if not (math.isfinite(total) and math.isfinite(each)) or each <= off or total <= 0.0:
        return None
    total_off = rounding.get("perf/total_num_tokens", 0.0)
    low, high = (total - total_off) / (each + off), (total + total_off) / (each - off)
    if not high < MOST:
        return None
    fewest, most = math.ceil(low), math.floor(high)
    return fewest if fewest == most and fewest > 0 else None


def tokens_from_mean(mean: float, rounding: float, completions: int) -> tuple[float, float]:
    """(sum of tokens, its largest error) from a printed mean: exact where only one whole number fits.

    NaN and no error where the mean cannot be one of tokens.
    """
    total = mean * completions
    off = max(rounding, abs(mean) * MEAN_PRECISION) * completions
    if not 0.0 <= total + off < MOST:
        return math.nan, 0.0
    fewest, most = math.ceil(total - off), math.floor(total + off)
    return (float(fewest), 0.0) if fewest == most else (total, off)


def counted_completions(chosen: Sequence[ChosenStep]) -> int | None:
    """How many completions each of TRL's steps had, by its count of tokens; None where several numbers fit, or none.

    The count grows by the completions times their mean length, and by the prompts: its slope over the mean length is
    near their number, and of the numbers near it one makes each mean one of whole tokens.
    """
    rows = [(mean, counted, off) for mean, counted, off, _ in _counted_tokens(chosen)]
    if len(rows) < LEAST_ROWS or np.ptp([mean for mean, _, _ in rows]) == 0:
        return None
    means, counted, offs = np.array(rows).T
    # A number as printed is off by half a unit of the last digit that any of them has.
    off = max(offs.max(), 0.5 * 10.0 ** -max(len(repr(mean).partition(".")[2]) for mean, _, _ in rows))
    slope = np.polyfit(means, counted, 1)[0]
    least, most = math.ceil(slope / (1 + SLOPE_WITHIN)), math.floor(slope * (1 + SLOPE_WITHIN))
    fitting = []
    for number in range(max(1, least), min(most, MOST_SAMPLES) + 1):
        sums = means * number
        whole = np.abs(sums - np.round(sums)) <= off * number + MEAN_PRECISION * sums
        if off * number < SHOWS_WHOLE and whole.all() and (counted > sums).all():
            fitting.append(number)
    return fitting[0] if len(fitting) == 1 else None


def _counted_tokens(chosen: Sequence[ChosenStep]) -> Iterator[tuple[float, float, float, int]]:
    """The rows whose step alone TRL counted: mean length, tokens with prompts, the mean's rounding, and its place."""
    for place, (before, after) in enumerate(pairwise(chosen), start=1):
        first, last = before.record, after.record
        mean = logged_as("mean_response_length", last.scalars)
        counted = last.scalars.get(NUM_TOKENS, math.nan) - first.scalars.get(NUM_TOKENS, math.nan)
        alone = last.scalars.get(STEPS_LOGGED, 1.0) == last.step - first.step == 1 and not after.resumed
        if mean is not None and alone and counted > 0:
            yield last.scalars[mean], counted, last.rounding.get(mean, 0.0), place


def add_known_tokens(
    chosen: list[ChosenStep], batch: object, run_id: str, config: Mapping[str, Any] | None = None
) -> list[Verdict]:
    """Adds `response_tokens` and `prompt_tokens`, computed from the means, to the steps of the list.

    The number of completions follows from verl's total of tokens or TRL's number of samples; otherwise it is `batch`,
    the declared one, unless the run's configuration or its count of tokens contradicts that each step generates that
    many; without a declared one it follows from TRL's count of tokens.
    """
    declared = batch if isinstance(batch, int) and batch > 0 else None
    key = next((key for key in discards_if() if lookup(config or {}, key) is True), "")
    if key and not any(discards().keys() & c.record.scalars.keys() for c in chosen):
        text = (
            f"{run_id}: no response tokens, because its {key} is true, so completions are generated and discarded, and "
            "no count of them is in the log: their time is in the step, their tokens are not"
        )
        return [Verdict("warning", "tokens-unknown", text)]
    contradiction = _batch_contradiction(chosen, declared, config or {}) if declared else ""
    counted = counted_completions(chosen) if declared is None else None
    different: list[tuple[int, int]] = []
    without, verdicts = 0, []
    for place, c in enumerate(chosen):
        scalars, rounding = c.record.scalars, c.record.rounding
        samples = scalars.get(SAMPLES_PER_STEP, math.nan)
        # Rounding means that several whole numbers fit.
        is_exact = samples > 0 and samples.is_integer() and not rounding.get(SAMPLES_PER_STEP)
        logged = completions_of(scalars, rounding) or (int(samples) if is_exact else counted)
        completions = declared if logged is None else logged
        if logged is not None and declared not in (None, logged):
            different.append((c.record.step, logged))
        if logged is None and contradiction:
            without += logged_as("mean_response_length", scalars) is not None and "response_tokens" not in scalars
        elif completions is not None:
            chosen[place] = replace(c, record=_with_tokens(c.record, completions))
    _add_counted_prompts(chosen)
    if without:
        text = (
            f"{run_id}: no response tokens in {count_of(without, 'step')}, because a step's tokens are not its mean "
            f"length times the batch_size of {declared}: {contradiction}"
        )
        verdicts.append(Verdict("warning", "tokens-unknown", text))
    if different:
        text = (
            f"{run_id}: the declared batch_size is {declared}, but the logged tokens are those of {different[0][1]} "
            f"completions (step {join_first([step for step, _ in different])}); the logged number counts"
        )
        verdicts.append(Verdict("warning", "batch-size-contradicted", text))
    return verdicts


def _with_tokens(record: StepRecord, completions: int) -> StepRecord:
    """A step with the tokens of so many completions and their prompts, where their mean lengths are known."""
    scalars, rounding = dict(record.scalars), dict(record.rounding)
    lengths = logged_as("mean_response_length", scalars)
    for name, mean in (("response_tokens", lengths), ("prompt_tokens", "prompt_length/mean")):
        if mean in scalars and name not in scalars and scalars[mean] >= 0.0:
            tokens, off = tokens_from_mean(scalars[mean], rounding.get(mean, 0.0), completions)
            if not math.isnan(tokens):
                scalars[name] = tokens
                rounding |= {name: off} if off else {}
    return replace(record, scalars=scalars, rounding=rounding)


def _add_counted_prompts(chosen: list[ChosenStep]) -> None:
    """Adds the prompts' tokens to the steps that TRL counted: what is not of completions."""
    for _, total, _, place in list(_counted_tokens(chosen)):
        record = chosen[place].record
        tokens = record.scalars.get("response_tokens", math.nan)
        if total > tokens and "prompt_tokens" not in record.scalars:
            scalars = {**record.scalars, "prompt_tokens": total - tokens}
            chosen[place] = replace(chosen[place], record=replace(record, scalars=scalars))


def _batch_contradiction(chosen: Sequence[ChosenStep], batch: int, config: Mapping[str, Any]) -> str:
    """Why TRL's mean length is not that of `batch` completions in each step; empty where nothing contradicts it.

    TRL generates once for `num_iterations` times `steps_per_generation` micro-batches, and logs lengths only then.
    """
    names = ("num_iterations", "steps_per_generation", "gradient_accumulation_steps")
    iterations, per_generation, per_step = (n if isinstance(n := config.get(name), int) else 0 for name in names)
    if iterations > 1:
        return f"its num_iterations is {iterations}, so not every step generates"
    if per_generation > per_step > 0:
        return (
            f"its steps_per_generation is {per_generation}, above its gradient_accumulation_steps of {per_step}, so "
            "not every step generates"
        )
    for before, after in pairwise(chosen):
        first, last = before.record, after.record
        steps, mean = last.scalars.get(STEPS_LOGGED, 1.0), logged_as("mean_response_length", last.scalars)
        counted = last.scalars.get(NUM_TOKENS, math.nan) - first.scalars.get(NUM_TOKENS, math.nan)
        if mean is None or after.resumed or last.step - first.step != steps:
            continue
        off = first.rounding.get(NUM_TOKENS, 0.0) + last.rounding.get(NUM_TOKENS, 0.0)
        total, total_off = tokens_from_mean(last.scalars[mean], last.rounding.get(mean, 0.0), batch)
        # The count includes prompts, so it cannot be below the completions' tokens alone.
        if counted + off < steps * (total - total_off):
            return (
                f"it counted {counted:.0f} tokens, with prompts, from step {first.step} to {last.step}, but the "
                f"lengths give {steps * total:.0f}. Its batch_size may be too large, or not every step generates "
                "(num_iterations)"
            )
    return ""
