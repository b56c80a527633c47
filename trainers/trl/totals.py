"""Finds the number of steps that a TRL run trained, and from it the steps of rows without a progress bar."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

# transformers' Trainer prints these at its start (trainer.py, _inner_training_loop).
_PLANNED = re.compile(r"Total optimization steps = (\d[\d,]{0,11})")
_RESUMED = re.compile(r"Continuing training from global step (\d[\d,]{0,11})")
# No training has more steps.
_MOST_STEPS = 10_000_000
# A bar that ran as long as the training is the training's; both times are rounded.
_SAME_TIME_S, _SAME_TIME_SHARE = 2.0, 0.02
# Epochs grow with the steps; transformers 4 prints them with two decimals.
_SAME_EPOCH, _SAME_EPOCH_SHARE = 0.006, 0.005
# Below it, printed epochs are too coarse to show that half of the rows are missing.
_TELLING_EPOCH = 0.05
# Rows are missing if the tokens per step exceed the neighbours' by this factor.
_MOST_TOKENS_MORE = 2.5


def clock_s(text: str | None) -> float | None:
    """Seconds from tqdm's `[hours:]minutes:seconds`; None without one."""
    return sum(int(part) * 60.0**n for n, part in enumerate(reversed(text.split(":")))) if text else None


@dataclass
class Totals:
    """What a log reports about the whole training: planned steps, resumed steps, progress bars, and its runtime."""

    planned: set[int] = field(default_factory=set)
    resumed_from: set[int] = field(default_factory=set)
    bars: dict[int, dict[int, tuple[float, float]]] = field(default_factory=dict)
    """A bar's total -> the seconds of each of its steps when it was first and last drawn."""
    runtime_s: float | None = None

    def read_plan(self, text: str) -> None:
        """Read the planned and resumed steps from transformers' output."""
        for mark, pattern, steps in (
            ("optimization steps", _PLANNED, self.planned),
            ("global step", _RESUMED, self.resumed_from),
        ):
            if mark in text and (found := pattern.search(text)) is not None:
                steps.add(int(found[1].replace(",", "")))

    def add_bar(self, done: int, total: int, elapsed_s: float) -> None:
        """Add a bar that may be the training's."""
        bar = self.bars.setdefault(total, {})
        if done >= next(reversed(bar), 0):
            bar[done] = bar.get(done, (elapsed_s,))[0], elapsed_s

    def reached(self) -> dict[int, int]:
        """By a bar's total, how far it has come."""
        return {total: next(reversed(bar)) for total, bar in self.bars.items()}

    def read_summary(self, row: Mapping[str, Any]) -> None:
        """Read the runtime from the row that the Trainer logs at the end of training."""
        try:
            self.runtime_s = float(row["train_runtime"])
        except (KeyError, TypeError, ValueError):
            return

    def steps_done(self) -> int | None:
        """The last trained step; None if the log does not show it."""
        if bar := self._bar():
            return next(reversed(bar))
        # Only a training that completed logs its summary.
        return next(iter(self.planned)) if len(self.planned) == 1 and self.runtime_s is not None else None

    def clocks(self, steps: Sequence[int]) -> list[float | None]:
        """The seconds since the start at the end of these steps, by the training's bar; None where it does not tell.

        Its bars may all be before the rows: stdout came late, and they tell of each step.
        """
        bar = self._bar()
        seconds = [first_s for first_s, _ in bar.values()]
        # After a restart the clock begins anew.
        return [bar[step][0] if step in bar and seconds == sorted(seconds) else None for step in steps]

    def _bar(self) -> dict[int, tuple[float, float]]:
        """The training's bar: that of the planned steps, else the one that ran as long or, without a summary, longest;
        empty without one."""
        if len(self.planned) == 1:
            return self.bars.get(next(iter(self.planned)), {})
        if self.planned or not self.bars:
            return {}
        ran_s = {total: next(reversed(bar.values()))[1] for total, bar in self.bars.items()}
        runtime_s = max(ran_s.values()) if self.runtime_s is None else self.runtime_s
        allowed = max(_SAME_TIME_S, _SAME_TIME_SHARE * runtime_s)
        same = [self.bars[total] for total, seconds in ran_s.items() if abs(seconds - runtime_s) <= allowed]
        return same[0] if len(same) == 1 else {}

    def _is_full(self, step: int) -> bool:
        """Whether the training's bar is full at a step."""
        return any(total == step for total, bar in self.bars.items() if bar is self._bar())

    def _shown(self, bars: Sequence[Mapping[int, int] | None]) -> list[tuple[int, int]]:
        """How far the training's bar was before each block of rows, and how many rows were printed by then."""
        total = next((total for total, bar in self.bars.items() if bar is self._bar()), 0)
        begins = [place for place, reached in enumerate(bars) if reached and total in reached]
        ends = [*begins[1:], len(bars)]
        found = [((bars[begin] or {})[total], end) for begin, end in zip(begins, ends, strict=False)]
        return found or [(self.steps_done() or 0, len(bars))]

    def steps_of(
        self,
        epochs: Sequence[float | None],
        tokens: Sequence[float | None],
        bars: Sequence[Mapping[int, int] | None],
    ) -> list[int] | None:
        """The steps of the rows: multiples of the only logging_steps that gives this number of rows; failing that, step
        1 (logging_first_step) and such multiples.

        `epochs` and `tokens` are the rows' counters, `bars` how far bars had come before a row. None if no
        logging_steps fits, several do, or the counters disagree. A training without a summary may have been killed with
        rows in a buffer; there, a logging_steps must fit each of several blocks of rows, or the rows came after the
        full bar.
        """
        done = self.steps_done()
        begun, rows = max(self.resumed_from, default=0), len(epochs)
        if not done or not rows or not begun < done <= _MOST_STEPS or len(self.resumed_from) > 1:
            return None
        # Missing rows could look like an additional first step; only epochs can show that.
        may_log_first = begun == 0 and rows > 2 and None not in epochs
        shown, waiting = [(done, rows)], 0
        if self.runtime_s is None:
            shown = self._shown(bars)
            # A full buffer is written at once: it leaves the beginning of a row at most.
            waiting = 0 if self._is_full(shown[-1][0]) else 1
        for first in ((), (1,)) if may_log_first else ((),):
            every = _only_every(begun, [(steps, count - len(first)) for steps, count in shown], waiting)
            if every is None or every <= len(first):
                continue
            if waiting and len(shown) == 1 and every > 1:
                return None
            multiples = (every * (begun // every + place) for place in range(1, rows - len(first) + 1))
            steps = [*first, *multiples]
            return steps if rows == 1 or _agree(steps, epochs, tokens) else None
        return None


def _only_every(begun: int, shown: Sequence[tuple[int, int]], waiting: int) -> int | None:
    """The only logging_steps whose multiples above `begun` and up to a step are the rows printed by then, or one more;
    None if there is none or several. `shown` has steps and rows; up to the last, `waiting` more are allowed."""
    done, rows = shown[-1]
    # Values outside these bounds give more rows, or fewer.
    least, most = max(1, (done - begun) // (rows + waiting + 1)), (done - begun) // max(1, rows - 1) + 1
    allowed = [*[1] * (len(shown) - 1), waiting]

    def fits(every: int) -> bool:
        missing = (step // every - begun // every - count for step, count in shown)
        return all(0 <= one <= most for one, most in zip(missing, allowed, strict=True))

    fitting = list(islice(filter(fits, range(least, most + 1)), 2))
    return fitting[0] if len(fitting) == 1 else None


def _agree(steps: Sequence[int], epochs: Sequence[float | None], tokens: Sequence[float | None]) -> bool:
    """Whether the epochs are proportional to the steps. If they are too small to show it, the tokens must grow: from
    row to row, nowhere by far more per step than in the rows before and after."""
    logged = [(step, epoch) for step, epoch in zip(steps, epochs, strict=True) if epoch is not None]
    last_step, last = logged[-1] if logged else (1, 0.0)
    allowed = _SAME_EPOCH + _SAME_EPOCH_SHARE * last
    if any(abs(epoch - last * step / last_step) > allowed for step, epoch in logged):
        return False
    if last >= _TELLING_EPOCH:
        return True
    counts = [(0, 0.0), *((step, count) for step, count in zip(steps, tokens, strict=True) if count is not None)]
    rates = [(after - before) / (step - since) for (since, before), (step, after) in pairwise(counts)]
    for n, rate in enumerate(rates):
        neighbours = [*rates[max(0, n - 1) : n], *rates[n + 1 : n + 2]]
        if not 0.0 < rate <= _MOST_TOKENS_MORE * max(neighbours, default=math.inf):
            return False
    return bool(rates)
