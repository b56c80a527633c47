"""Compares how much work a step of two arms is: its responses, their prompts and turns.

"At equal work" is said only where these are the same; lengths of responses differ always, and the estimate takes them
out (analysis/ratio.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from common.messages import join_first

WITHIN = 0.02
"""Two means are the same within this share."""
ERRORS, NOISE_WITHIN = 3.0, 0.05
"""They are also the same within so many standard errors of their steps, which show no equality above this share."""
# verl counts the question as a turn, so responses without tools have one turn or two.
ONE_ANSWER = 2.0

RESPONSES, PROMPTS, TURNS, MEAN_LENGTH = "responses", "prompt_length", "turns", "mean_length"
TOOLS, SECONDS = "tool_seconds", "seconds"
COLUMNS = (RESPONSES, PROMPTS, TURNS, TOOLS, MEAN_LENGTH)
"""Columns of a side's steps: responses a step, and means of its prompts' tokens, turns, tools and responses' tokens."""
_LABELS = {
    RESPONSES: "the number of responses",
    PROMPTS: "the length of prompts",
    TURNS: "the number of turns",
}
_WORDS = {
    RESPONSES: "{} against {} responses a step",
    PROMPTS: "prompts of {} against {} tokens",
    TURNS: "{} against {} turns",
    TOOLS: "tool calls of {} against {} s for each response",
    MEAN_LENGTH: "responses of {} against {} tokens on average",
}


@dataclass(frozen=True)
class Work:
    """Why a step of two arms is not equal work; all empty where it is shown to be equal."""

    differs: tuple[str, ...] = ()
    """The quantities that differ, with both numbers, the baseline's first."""
    unknown: tuple[str, ...] = ()
    """The quantities that are not known of both, and of whom."""
    lacks: tuple[str, ...] = ()
    """The columns of these."""
    lengths: str = ""
    """The lengths of responses, where these differ."""

    @property
    def why_unequal(self) -> str:
        """Why nothing is claimed at equal work; "" where something may be."""
        return "; ".join(filter(None, (*self.differs, *self.unknown, self.lengths if self.unknown else "")))

    @property
    def settle(self) -> str:
        """What would show equal work, where a number is unknown."""
        if not self.unknown or self.differs:
            return ""
        batch = " (import.batch_size of the arms)" if RESPONSES in self.lacks else ""
        return f"logs with {join_first([_LABELS[name] for name in self.lacks], 3)}{batch}"


def work_of(baseline: pd.DataFrame, arm: pd.DataFrame) -> Work:
    """How the work of two arms' steps differs; frames have the columns `COLUMNS`, `n`, `seconds`, NaN where unknown.

    A number that one arm lacks is unknown for both. Logs without turns are of responses without tools, and prompts that
    no log has are not compared.
    """
    sides = (baseline, arm)
    unknown = dict(_unknown(sides))
    differs = tuple(text for name in (*_LABELS, TOOLS) if (text := _difference(sides, name)))
    return Work(differs, tuple(unknown.values()), tuple(unknown), _difference(sides, MEAN_LENGTH))


def _unknown(sides: tuple[pd.DataFrame, pd.DataFrame]) -> Iterator[tuple[str, str]]:
    for name, label in _LABELS.items():
        lacking = [who for who, side in zip(("the baseline", "the arm"), sides, strict=True) if side[name].isna().any()]
        # Without turns, or with one for each response in every step, there are no tools.
        alone = [
            side[name].isna().all() or (side[name].nunique() == 1 and side[name].max() <= ONE_ANSWER) for side in sides
        ]
        if name == TURNS and all(alone):
            continue
        if lacking and not (name == PROMPTS and all(side[name].isna().all() for side in sides)):
            yield name, f"{label} of {' and '.join(lacking)} is not known"


def _difference(sides: tuple[pd.DataFrame, pd.DataFrame], name: str) -> str:
    """Both means of a quantity, where these differ by more than `WITHIN` and more than their steps' noise."""
    if any(side[name].isna().any() for side in sides):
        return ""
    means = [float((side[name] * side["n"]).sum() / side["n"].sum()) for side in sides]
    apart = abs(means[0] - means[1])
    error = math.sqrt(sum(float(side[name].var(ddof=0)) / len(side) for side in sides))
    # Tools are not the engine's: their seconds are a part of the step's.
    whole = min(side[SECONDS].mean() for side in sides) if name == TOOLS else max(means)
    if apart <= whole * WITHIN or apart <= min(ERRORS * error, whole * NOISE_WITHIN):
        return ""
    digits = 0 if min(means) >= 100 else 1
    return _WORDS[name].format(*(f"{mean:,.{digits}f}".removesuffix(".0") for mean in means))
