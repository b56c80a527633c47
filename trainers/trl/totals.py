"""Reads how many steps a TRL run trained, and so how many each row stands for, where no bar stands behind its rows."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

# What transformers' Trainer prints at its start (trainer.py, _inner_training_loop).
_PLANNED = re.compile(r"Total optimization steps = (\d[\d,]{0,11})")
_RESUMED = re.compile(r"Continuing training from global step (\d[\d,]{0,11})")
# No training has more steps.
_MOST_STEPS = 10_000_000
# A bar that ran as long as the training is the training's; both are printed rounded.
_SAME_TIME_S, _SAME_TIME_SHARE = 2.0, 0.02
# Epochs grow with the steps; transformers 4 prints them with two decimals.
_SAME_EPOCH, _SAME_EPOCH_SHARE = 0.006, 0.005
# Below it, printed epochs are too coarse to show that half of the rows are missing.
_TELLING_EPOCH = 0.05
# Rows are missing where more tokens a step were counted than so many times those before and behind.
_MOST_TOKENS_MORE = 2.5


def clock_s(text: str | None) -> float | None:
    """Seconds from tqdm's `[hours:]minutes:seconds`; None without one."""
    return sum(int(part) * 60.0**n for n, part in enumerate(reversed(text.split(":")))) if text else None


@dataclass
class Totals:
    """What a log tells of the whole training: the steps that were planned, the furthest of each bar, its seconds."""

    planned: set[int] = field(default_factory=set)
    resumed_from: set[int] = field(default_factory=set)
    bars: dict[int, tuple[int, float]] = field(default_factory=dict)
    """By a bar's total, how far it came and in how many seconds."""
    runtime_s: float | None = None

    def see(self, text: str) -> None:
        """Notes what transformers printed of its plan."""
        if "optimization steps" in text and (found := _PLANNED.search(text)) is not None:
            self.planned.add(int(found[1].replace(",", "")))
        if "global step" in text and (found := _RESUMED.search(text)) is not None:
            self.resumed_from.add(int(found[1].replace(",", "")))

    def see_bar(self, done: int, total: int, elapsed_s: float) -> None:
        """Notes a bar that may be the training's."""
        if done >= self.bars.get(total, (0, 0.0))[0]:
            self.bars[total] = done, elapsed_s

    def see_summary(self, row: Mapping[str, Any]) -> None:
        """Notes the row that the Trainer logs when training has ended."""
        try:
            self.runtime_s = float(row["train_runtime"])
        except (KeyError, TypeError, ValueError):
            return

    def steps_done(self) -> int | None:
        """The number of the last step that was trained; None where nothing tells it."""
        if len(self.planned) == 1:
            (planned,) = self.planned
            if planned in self.bars:
                return self.bars[planned][0]
            # Its summary is logged by a training that came to its end.
            return planned if self.runtime_s is not None else None
        if self.planned or self.runtime_s is None:
            return None
        allowed = max(_SAME_TIME_S, _SAME_TIME_SHARE * self.runtime_s)
        same = [done for done, seconds in self.bars.values() if abs(seconds - self.runtime_s) <= allowed]
        return same[0] if len(same) == 1 else None

    def steps_of(self, epochs: Sequence[float | None], tokens: Sequence[float | None]) -> list[int] | None:
        """The steps of so many rows: the multiples of the one logging_steps that makes that many rows of the steps
        that were trained; where none does, these behind step 1 (logging_first_step).

        `epochs` and `tokens` are what the rows count. None where no logging_steps does, more than one, or the counts do
        not grow so. A training without a summary may have been killed with rows still in a buffer: there, only a row
        for each step tells the steps.
        """
        done = self.steps_done()
        begun, rows = max(self.resumed_from, default=0), len(epochs)
        if not done or not rows or not begun < done <= _MOST_STEPS or len(self.resumed_from) > 1:
            return None
        # Rows that are missing could make it look like a first step: the epochs tell.
        besides = begun == 0 and rows > 2 and None not in epochs
        for first in ((), (1,)) if besides else ((),):
            every = _only_every(begun, done, rows - len(first))
            if every is None or every <= len(first):
                continue
            if self.runtime_s is None and every > 1:
                return None
            multiples = (every * (begun // every + place) for place in range(1, rows - len(first) + 1))
            steps = [*first, *multiples]
            return steps if rows == 1 or _counted_with(steps, epochs, tokens) else None
        return None


def _only_every(begun: int, done: int, rows: int) -> int | None:
    """The one logging_steps of which so many multiples lie above `begun` and up to `done`; None for none or several."""
    # All outside these make more rows, or fewer.
    least, most = max(1, (done - begun) // (rows + 1)), (done - begun) // max(1, rows - 1) + 1
    fitting = list(islice((n for n in range(least, most + 1) if done // n - begun // n == rows), 2))
    return fitting[0] if len(fitting) == 1 else None


def _counted_with(steps: Sequence[int], epochs: Sequence[float | None], tokens: Sequence[float | None]) -> bool:
    """Whether the epochs are in proportion to the steps; where they are too small to tell, the tokens roughly."""
    told = [(step, epoch) for step, epoch in zip(steps, epochs, strict=True) if epoch is not None]
    last_step, last = told[-1] if told else (1, 0.0)
    allowed = _SAME_EPOCH + _SAME_EPOCH_SHARE * last
    if any(abs(epoch - last * step / last_step) > allowed for step, epoch in told):
        return False
    return last >= _TELLING_EPOCH or _tokens_with(steps, tokens)


def _tokens_with(steps: Sequence[int], tokens: Sequence[float | None]) -> bool:
    """Whether the tokens so far grow from row to row, nowhere by far more a step than before and behind."""
    told = [(0, 0.0), *((step, count) for step, count in zip(steps, tokens, strict=True) if count is not None)]
    rates = [(after - before) / (step - last) for (last, before), (step, after) in pairwise(told)]
    beside = [max([*rates[max(0, n - 1) : n], *rates[n + 1 : n + 2]], default=math.inf) for n in range(len(rates))]
    return bool(rates) and all(0.0 < rate <= _MOST_TOKENS_MORE * most for rate, most in zip(rates, beside, strict=True))
