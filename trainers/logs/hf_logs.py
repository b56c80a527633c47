"""Which training step, under which names, is a row that transformers' Trainer logs (TRL, ms-swift)?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from common.verdicts import Verdict
from trainers.logs.printed import half_significant, printed
from trainers.logs.record import as_number

# What transformers' callbacks put before a row's names in wandb: so a log's names are those of the wandb run.
TRAIN = "train/"
STEP_TIME = "train/step_time"
# transformers 5 prints numbers as texts with so many digits, and no zeros at their end ('.4g').
PRINTED_DIGITS = 4
# A double has no more.
ALL_DIGITS = 15
_EVALUATION = ("eval_", "test_")
# One of these is in every row of a training step. `reward` alone is not: reward functions print samples with it.
_TRAINING = ("learning_rate", "step_time", "loss")
# What a printed dictionary of something else hardly has.
_SURE = ("learning_rate", "step_time")


def is_training_row(row: Mapping[str, Any]) -> bool:
    """Whether a logged row is of a training step: no evaluation, and not the summary at the end (`train_runtime`)."""
    if "train_runtime" in row or any(str(name).startswith(_EVALUATION) for name in row):
        return False
    return any(name in row for name in _TRAINING)


def is_surely_logged(row: Mapping[str, Any]) -> bool:
    """Whether a training row has what only a trainer writes: where one has it, one without is another program's."""
    return any(name in row for name in _SURE)


def numbers_of(row: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """A row's numbers under wandb's names, and the rounding of those that were printed as texts."""
    numbers: dict[str, float] = {}
    rounding: dict[str, float] = {}
    for name, raw in row.items():
        value = as_number(raw)
        if value is not None:
            numbers[TRAIN + name] = value
        elif isinstance(raw, str) and (text := printed(raw)) is not None:
            numbers[TRAIN + name] = text.value
            digits = max(significant_digits(raw), PRINTED_DIGITS)
            if text.value != 0.0 and digits < ALL_DIGITS and (cut := half_significant(text.value, digits)) > 0.0:
                rounding[TRAIN + name] = cut
    return numbers, rounding


def significant_digits(text: str) -> int:
    """How many digits a printed number has, without zeros before the first."""
    mantissa = text.strip().lower().partition("e")[0]
    return len("".join(c for c in mantissa if c.isdigit()).lstrip("0"))


def windows_of(order: Sequence[int]) -> list[int]:
    """How many steps, up to its own, each record stands for: transformers logs means since the record before.

    `order` are the steps of a log's records as they come, restarts too. A gap that is larger than most are is a hole,
    not a window; of the first record after a restart it is the most that it can be. A single record says nothing: 1.
    """
    # transformers logs at the multiples of logging_steps, and besides at step 1 if it is told to (logging_first_step).
    starts = [0, *order[1:]] if order[:1] == [1] else order
    gaps = Counter(b - a for a, b in pairwise(starts) if b > a)
    if not gaps:
        return [1] * len(order)
    usual = min(gap for gap, times in gaps.items() if times == max(gaps.values()))
    found: list[int] = []
    for before, step in pairwise([0, *order]):
        if step == before:
            found.append(found[-1])
        else:
            found.append(min(usual, step - before if step > before else step))
    return found


def window_verdict(shown_as: str, windows: Iterable[int]) -> Verdict:
    """Says that records stand for so many steps each, more than one (transformers' logging_steps)."""
    least, most = min(sizes := list(windows)), max(sizes)
    shown = str(least) if least == most else f"{least} to {most}"
    text = (
        f"{shown_as} was logged every {shown} steps (logging_steps): each of its records stands for the mean of so "
        "many steps, and a step that is left out takes the others with it"
    )
    return Verdict("warning", "logging-window", text)
