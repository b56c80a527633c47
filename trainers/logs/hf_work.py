"""Finds what rows of transformers' Trainer say of a step's work: its samples, and a generation that steps share."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from common.messages import join_first
from common.verdicts import Verdict, count_of
from node.over_ranks import SHORTENED
from trainers.logs.log_files import half_digit, parse_number
from trainers.logs.record import SourceRead, StepRecord

SAMPLES_PER_STEP = "samples_per_step"
"""The scalar with the samples of a training step, which are completions (of TRL 0.14 prompts)."""
SHARED_GENERATION = "shared_generation"
"""The scalar with the number of the generation that a row's steps share with others, from 1."""
# The summary at the end of training (transformers trainer_utils.py, speed_metrics) has three decimals or more.
_PER_SECOND = ("train_samples_per_second", "train_steps_per_second")
_LEAST_DECIMALS = 3
# transformers 4 rounds epochs to two decimals.
_WHOLE_EPOCH = 0.01
# transformers trainer.py, _inner_training_loop: of all processes, with the accumulated ones.
_BATCH = re.compile(r"Total train batch size \([^)]*\) = (\d[\d,]{0,11})")
# A generation logs these, and steps that only train on it do not (num_iterations, steps_per_generation).
_GENERATED = ("train/reward", "train/completion", "train/num_tokens")
_OF_TRANSFORMERS = ("train/learning_rate", "train/epoch")
# Fewer rows without a generation are another program's.
_LEAST_SHARE = 0.1
# So many equal numbers are those of one generation.
_CERTAIN_NUMBERS = 3


def shortened_responses(records: Sequence[StepRecord], run_id: str) -> Iterator[Verdict]:
    """A warning where the engine's cache cut responses short, as our driver counts them."""
    counts = {record.step: int(count) for record in records if (count := record.scalars.get(SHORTENED, 0.0))}
    if counts:
        text = (
            f"{run_id}: the engine shortened {count_of(sum(counts.values()), 'response')} in "
            f"{count_of(len(counts), 'step')} ({join_first(list(counts))}), because its KV cache has no room for the "
            "longest: it generates less than the workload asks. Give the engine more memory or a larger cache, or "
            "lower workload.max_response_length"
        )
        yield Verdict("warning", "responses-shortened", text)


@dataclass(frozen=True)
class Samples:
    """The samples of each step, half the width of what fits, and where the log says so."""

    number: float
    rounding: float
    file: Path
    line: int

    def added_to(self, read: SourceRead) -> None:
        """Add it to every step of a source."""
        for step, record in read.records.items():
            read.records[step] = replace(
                record,
                scalars={**record.scalars, SAMPLES_PER_STEP: self.number},
                rounding={**record.rounding, SAMPLES_PER_STEP: self.rounding} if self.rounding else record.rounding,
                origins={**record.origins, SAMPLES_PER_STEP: (self.file, self.line)},
            )


def samples_of_plan(text: str, file: Path, line: int) -> Samples | None:
    """The samples of a step by what the Trainer prints at its start; None for another text."""
    found = _BATCH.search(text) if "train batch size" in text else None
    return Samples(float(found[1].replace(",", "")), 0.0, file, line) if found else None


def samples_of(row: Mapping[str, Any], file: Path, line: int) -> Samples | None:
    """The samples of a step by the summary's samples and steps per second; None for another row.

    A training by epochs counts the prompts of its data set instead: none is given where it ends with a whole epoch.
    """
    found = [parse_number(str(row.get(name))) for name in _PER_SECOND]
    epoch = parse_number(str(row.get("epoch")))
    if any(one is None or not one.value > 0.0 for one in found):
        return None
    if epoch is None or abs(epoch.value - max(1, round(epoch.value))) <= _WHOLE_EPOCH:
        return None
    (samples, samples_off), (steps, steps_off) = (
        (one.value, half_digit(max(_LEAST_DECIMALS, one.decimals or 0))) for one in found if one is not None
    )
    if steps <= steps_off:
        return None
    low, high = (samples - samples_off) / (steps + steps_off), (samples + samples_off) / (steps - steps_off)
    if math.ceil(low) == math.floor(high):
        return Samples(float(math.ceil(low)), 0.0, file, line)
    return Samples((low + high) / 2.0, (high - low) / 2.0, file, line)


def add_shared_generations(read: SourceRead, shown_as: str) -> None:
    """Number the generations on the rows of steps that share one, where each generation has as many steps."""
    records = [record for _, record in sorted(read.records.items())]
    if not records or not any(name in records[0].scalars for name in _OF_TRANSFORMERS):
        return
    begins = _begins_without_numbers(records)
    if begins is None:
        begins = _begins_with_equal_numbers(records)
    elif not _regular(records, begins) and len(begins) - sum(begins) >= _LEAST_SHARE * len(begins):
        text = (
            f"{shown_as}: several steps share a generation of responses, and its rows have different shares of it, so "
            "they differ in how much was generated. Log every step, or whole generations (logging_steps)"
        )
        read.verdicts.append(Verdict("warning", "generations-unclear", text))
    if begins is None or not _regular(records, begins):
        return
    number = 0
    for record, is_first in zip(records, begins, strict=True):
        number += is_first
        scalars = {**record.scalars, SHARED_GENERATION: float(number)}
        read.records[record.step] = replace(record, scalars=scalars)


def _of_generation(record: StepRecord) -> dict[str, float]:
    return {name: value for name, value in record.scalars.items() if name.startswith(_GENERATED)}


def _begins_without_numbers(records: Sequence[StepRecord]) -> list[bool] | None:
    """Whether each row begins a generation, where the others log none of its numbers; None if all or none do."""
    has = [bool(_of_generation(record)) for record in records]
    if all(has) or not any(has):
        return None
    return [here or bool(record.resumed) for here, record in zip(has, records, strict=True)]


def _begins_with_equal_numbers(records: Sequence[StepRecord]) -> list[bool] | None:
    """Whether each row begins a generation, where the others repeat its numbers; None if no row does."""
    numbers = list(map(_of_generation, records))
    same = [a == b and len(a) >= _CERTAIN_NUMBERS for a, b in pairwise(numbers)]
    if not any(same):
        return None
    return [True, *(not s or bool(record.resumed) for s, record in zip(same, records[1:], strict=True))]


def _regular(records: Sequence[StepRecord], begins: Sequence[bool]) -> bool:
    """Whether every generation has as many steps, above one, but those that the log or a restart cuts."""
    spans = list(_spans(records, begins))
    return len(spans) > 1 and min(spans) == max(spans) > 1


def _spans(records: Sequence[StepRecord], begins: Sequence[bool]) -> Iterator[int]:
    """How far the steps go from one generation to the next, in one life of the run."""
    first = [record for record, is_first in zip(records, begins, strict=True) if is_first]
    for record, after in pairwise(first):
        if not after.resumed:
            yield after.step - record.step
